"""What calls on jobs return, and what the codes of their scripts mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from deferd.contract.errors import JobCancelled, JobNotFound, ReceiptStale, StoreUnavailable
from deferd.contract.model import FinishItem, HeldJob, JobState
from deferd.contract.responses.job_calls import FinishResult
from deferd.engine.script_arguments import EncodedFinish

OK, NOT_FOUND, _STALE, _CANCELLED = 0, 1, 2, 3
_NOT_HELD = {4: JobState.DELAYED, 5: JobState.READY, 6: JobState.DEAD, 7: JobState.FINISHED}
"""The codes of lib/delivery.lua for a job that no consumer holds."""
_FINISH_STATUS: dict[int, tuple[int, str | None]] = {
    OK: (200, None),
    NOT_FOUND: (404, JobNotFound.code),
    **dict.fromkeys((_STALE, *_NOT_HELD), (409, ReceiptStale.code)),
    _CANCELLED: (410, JobCancelled.code),
}
"""The status and the error's name in the response to a batch finish, by code."""


class Released(NamedTuple):
    """The state of a job after its release: delayed until `due_at_ms`, or dead (`due_at_ms` None)."""

    state: JobState
    due_at_ms: int | None
    attempts: int


def finish_results(
    jobs: Sequence[HeldJob | FinishItem | EncodedFinish], codes: Sequence[int | StoreUnavailable]
) -> list[FinishResult]:
    """The results of deliveries in the response to a batch."""
    if codes.count(OK) == len(codes):
        return [FinishResult(id=job.id, status=200) for job in jobs]
    results = []
    for job, code in zip(jobs, codes, strict=True):
        status, name = (503, code.code) if isinstance(code, StoreUnavailable) else _FINISH_STATUS[code]
        results.append(FinishResult(id=job.id, status=status, code=name))
    return results


def is_missing(reply: Any) -> bool:
    """Whether a script on one job did not find it."""
    return reply is None or reply == NOT_FOUND or (isinstance(reply, list) and reply[0] == NOT_FOUND)


def raise_unless_ok(code: int, topic: str, job_id: str) -> None:
    """Turn the code of a consumer's call into its result. Raises as `JobQueue.finish`."""
    if code == OK:
        return
    if code == NOT_FOUND:
        raise JobNotFound(topic, job_id)
    if code == _STALE:
        raise ReceiptStale(topic, job_id)
    if code == _CANCELLED:
        raise JobCancelled(topic, job_id)
    if code in _NOT_HELD:
        raise ReceiptStale(topic, job_id, f"nobody holds job {job_id!r} of topic {topic!r}: it is {_NOT_HELD[code]}")

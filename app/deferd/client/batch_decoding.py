"""The fast path for the responses to batches: it makes no dict for each job, and leaves most of a job unparsed.

`deferd.client.responses` is the specification. Anything unusual gives None and is read there.
"""

from __future__ import annotations

from functools import partial

import msgspec

from deferd.client.jobs import Delivery, PoppedJob, PoppedJobs
from deferd.client.results import FinishResult, PutResult
from deferd.contract.model import JobState


class _PutLine(msgspec.Struct, gc=False):
    topic: str
    id: str
    status: int
    code: str | None = None
    durability: str | None = None
    state: JobState | None = None
    follow_up: bool = False


class _PutLines(msgspec.Struct):
    results: list[_PutLine]


class _FinishLine(msgspec.Struct, gc=False):
    id: str
    status: int
    code: str | None = None


class _FinishLines(msgspec.Struct):
    results: list[_FinishLine]


class _Jobs(msgspec.Struct):
    jobs: list[PoppedJob]


_KEPT_MAX_BYTES = 256 * 1024
_put_lines = msgspec.json.Decoder(_PutLines)
_finish_lines = msgspec.json.Decoder(_FinishLines)
_jobs = msgspec.json.Decoder(_Jobs)
# ValueError: invalid UTF-8. RecursionError: nesting counts as depth of the caller's stack, even where it is skipped.
_UNUSUAL = (msgspec.MsgspecError, ValueError, RecursionError)
# Calls of the classes themselves would take twice the time.
_put_result = partial(tuple.__new__, PutResult)
_finish_result = partial(tuple.__new__, FinishResult)


def put_results(content: bytes) -> list[PutResult] | None:
    """The results of a batch of puts; None when the general path must read them."""
    try:
        lines = _put_lines.decode(content).results
    except _UNUSUAL:
        return None
    return [
        _put_result((line.topic, line.id, line.status, line.code, None, line.durability, line.state, line.follow_up))
        for line in lines
    ]


def finish_results(content: bytes) -> list[FinishResult] | None:
    """The results of a batch of finishes; None when the general path must read them."""
    try:
        lines = _finish_lines.decode(content).results
    except _UNUSUAL:
        return None
    return [_finish_result((line.id, line.status, line.code)) for line in lines]


def deliveries(content: bytes) -> list[Delivery] | None:
    """The jobs of a pop; None when the general path must read them.

    What msgspec skips it does not check, so texts are checked here, and escaped characters left to the general path. A
    job that is held keeps the whole response in memory, so large ones are left to it too.
    """
    if len(content) > _KEPT_MAX_BYTES:
        return None
    try:
        if not content.isascii():
            content.decode()
        if b"\\" in content and rb"\u" in content:  # it may be half a surrogate pair
            return None
        jobs = _jobs.decode(content).jobs
    except _UNUSUAL:
        return None
    response = PoppedJobs(content)
    return [Delivery.of_popped(job, response) for job in jobs]

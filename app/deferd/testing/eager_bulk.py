"""The calls on many jobs, as EagerJobs performs them: which jobs are meant, and the response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import ValidationError

from deferd.client.put_options import body_errors
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected, Select
from deferd.contract.errors import InvalidInput
from deferd.contract.limits import DELAY_MAX_S
from deferd.contract.topic_patterns import TopicPatterns
from deferd.testing.eager_clients import EagerUnsupported
from deferd.testing.eager_job import LIVE, EagerJob

_Call = TypeVar("_Call", CancelSelected, RescheduleSelected)


def checked(model: type[_Call], sent: dict[str, Any]) -> _Call:
    """The call, validated as by the service. Raises InvalidInput."""
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        raise InvalidInput(body_errors(error)) from None


def selected(jobs: Iterable[EagerJob], select: Select) -> list[EagerJob]:
    """The live jobs that are meant, in the order of their puts."""
    if select.cutoff is not None:
        raise EagerUnsupported("`cutoff` needs a clock: use the fixture `deferd_service`")
    if select.due_after is not None or select.due_before is not None:
        raise EagerUnsupported("`due_after` and `due_before` need a clock: use the fixture `deferd_service`")
    names = None if select.ids is None else {(job.topic, job.id) for job in select.ids}
    topics = TopicPatterns(["*"] if select.topics is None else select.topics)
    return [
        job
        for job in jobs
        if job.state in LIVE
        and topics.match(job.topic)
        and (names is None or (job.topic, job.id) in names)
        and (select.tag is None or select.tag in (job.fields.get("tags") or ()))
        and (select.state is None or job.state == select.state)
    ]


def new_delay(job: EagerJob, call: RescheduleSelected) -> timedelta | None:
    """How long a job waits after a reschedule; None if it stays as it is, as it would be due in more than 10 years."""
    if call.by is not None:
        before = job.delay or timedelta()
        wanted = before + timedelta(seconds=call.by)
        if wanted > max(before, timedelta(seconds=DELAY_MAX_S)):
            return None
    elif call.run_at is not None:
        wanted = call.run_at - datetime.now(UTC)
    else:
        wanted = timedelta(seconds=call.delay or 0)
    return max(wanted, timedelta())


@dataclass
class _Done:
    """What the calls with one request id have done together; the states are those before."""

    was: dict[EagerJob, str] = field(default_factory=dict)
    done: int = 0


class EagerBulk:
    """Acts on jobs, on none twice for one `request_id`."""

    def __init__(self) -> None:
        self._done: dict[tuple[type, str], _Done] = {}

    def run(
        self, call: CancelSelected | RescheduleSelected, jobs: Iterable[EagerJob], act: Callable[[EagerJob], bool]
    ) -> dict[str, Any]:
        """Call `act` for each job that is meant; it returns whether the job was changed. Returns the response."""
        if call.samples:
            raise EagerUnsupported("`samples` has a cutoff, which needs a clock: use the fixture `deferd_service`")
        is_named = call.request_id is not None and not call.dry_run
        so_far = self._done.setdefault((type(call), call.request_id or ""), _Done()) if is_named else _Done()
        meant = [job for job in selected(jobs, call.select) if job not in so_far.was]
        for job in meant[: call.limit]:
            so_far.was[job] = job.state
            so_far.done += not call.dry_run and act(job)
        was = dict(Counter(so_far.was.values()))
        return {
            "matched": len(so_far.was),
            "done": so_far.done,
            "was": was,
            "complete": len(meant) <= call.limit,
        }

"""What a route gets in addition to its arguments: the admitted request and the application's context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from pydantic import BaseModel

from deferd.api.auth.admission import Admission
from deferd.api.context import AppContext
from deferd.api.incoming_request import IncomingRequest
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.model import ChangeJob, FinishItem, PutJob
from deferd.contract.schedules import PutSchedule
from deferd.engine.engine import Engine
from deferd.engine.record import json_bytes
from deferd.engine.schedules.stored_schedule import StoredSchedule
from deferd.engine.script_arguments import EncodedFinish, EncodedPut, PutBounds

_NO_QUOTA = nullcontext()
Result = TypeVar("Result")


class RequestContext:
    """One admitted request. Its methods check the quota of its key; without a key or a quota they pass.

    A route whose changes are recorded sets `changed`, how many jobs it changed, and `changed_topic`, if only the store
    knew the topic.
    """

    __slots__ = ("admission", "app", "changed", "changed_topic", "incoming")

    def __init__(self, app: AppContext, incoming: IncomingRequest, admission: Admission) -> None:
        self.app = app
        self.incoming = incoming
        self.admission = admission
        self.changed: int | None = None
        self.changed_topic: str | None = None

    @property
    def engine(self) -> Engine:
        """The application's engine."""
        return self.app.engine

    def room_for(self, jobs: Sequence[PutJob | EncodedPut]) -> AbstractContextManager[None]:
        """Around a put. Raises RateLimited when the key's quota has no room for these jobs."""
        usage = self.admission.usage
        return _NO_QUOTA if usage is None else usage.room_for(jobs)

    def room_for_schedule(self, schedule: PutSchedule) -> AbstractContextManager[None]:
        """Around a put of a schedule. Raises RateLimited when the key's quota has no room for it and its next run."""
        usage = self.admission.usage
        return _NO_QUOTA if usage is None or usage.quota is None else usage.quota.room_for_schedule(schedule)

    def room_for_run(self, schedule: StoredSchedule) -> AbstractContextManager[None]:
        """Around what puts a run of a stored schedule. Raises RateLimited when the key's quota has no room for it."""
        usage = self.admission.usage
        return _NO_QUOTA if usage is None or usage.quota is None else usage.quota.room_for_run(schedule)

    def room_for_call(self, call: CancelSelected | RescheduleSelected) -> AbstractContextManager[None]:
        """Around a call on many jobs. Raises RateLimited when the key's quota has no room to remember it."""
        usage = self.admission.usage
        if usage is None or usage.quota is None or not call.is_remembered:
            return _NO_QUOTA
        return usage.quota.room_to_remember(1, len(call.request_id or ""))

    def room_for_task(self, given: BaseModel) -> AbstractContextManager[None]:
        """Around the begin of a task. Raises RateLimited when the key's quota has no room for what was given."""
        usage = self.admission.usage
        if usage is None or usage.quota is None:
            return _NO_QUOTA
        return usage.quota.room_to_remember(2, len(given.model_dump_json(exclude_unset=True)))

    def room_for_change(self, change: ChangeJob) -> AbstractContextManager[None]:
        """Around a change of a job. Raises RateLimited when the key's quota has no room for the new body."""
        usage = self.admission.usage
        return _NO_QUOTA if usage is None or usage.quota is None else usage.quota.room_for_change(change)

    def counting(self, *values: Any) -> AbstractContextManager[None]:
        """Around the end of a delivery that may store these values: they count for the key's quota."""
        usage = self.admission.usage
        if usage is None or usage.quota is None:
            return _NO_QUOTA
        return usage.counting(sum(len(json_bytes(value)) for value in values if value is not None))

    def counting_results(self, jobs: Sequence[FinishItem | EncodedFinish]) -> AbstractContextManager[None]:
        """Around a batch of finishes, as `counting`."""
        usage = self.admission.usage
        if usage is None or usage.quota is None:
            return _NO_QUOTA
        encoded = [job.result_bytes for job in jobs if isinstance(job, EncodedFinish)]
        values = [job.result for job in jobs if not isinstance(job, EncodedFinish) and job.result is not None]
        return usage.counting(sum(encoded) + sum(len(json_bytes(value)) for value in values))

    async def compute(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run a computation that may take long, within the key's share and only while the client is connected.

        Raises:
            RateLimited: too many requests of the key wait to compute.
            ClientDisconnect: the client has disconnected.
        """
        return await self.incoming.cancel_on_disconnect(self._in_share(work))

    async def _in_share(self, work: Callable[[], Awaitable[Result]]) -> Result:
        async with self.app.computations.share_of(self.incoming.key_name):
            return await work()

    def put_bounds(self) -> PutBounds:
        """The bounds that the key and the service set for each job."""
        return self.admission.put_bounds(self.app.settings.max_body_bytes)


def _bound_by_operation() -> RequestContext:
    raise AssertionError("Operation binds the context itself")


CurrentRequest = Annotated[RequestContext, Depends(_bound_by_operation)]
"""How a route declares its RequestContext. `Depends` keeps it out of the OpenAPI document."""

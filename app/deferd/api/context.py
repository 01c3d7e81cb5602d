"""What a route gets in addition to its arguments: the admitted request, and the application's context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends
from pydantic import BaseModel

from deferd.api.auth.admission import Admission, Gate
from deferd.api.consumer_tracker import ConsumerTracker
from deferd.api.incoming_request import IncomingRequest
from deferd.api.unsent_bytes import UnsentBytes
from deferd.contract import limits
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import RateLimited
from deferd.contract.model import ChangeJob, FinishItem, PutJob
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.contract.push_targets import AllowedTargets
from deferd.engine.engine import Engine
from deferd.engine.record import json_bytes
from deferd.engine.schedule_store import StoredSchedule
from deferd.engine.script_arguments import EncodedFinish, EncodedPut, PutBounds
from deferd.settings import Settings

if TYPE_CHECKING:
    from deferd.push.pushers import Pushers

_NO_QUOTA = nullcontext()
_NOTHING: Mapping[str, Any] = {}
Result = TypeVar("Result")


class RequestContext:
    """One admitted request. Its methods check the quota of its key; without a key or a quota they pass.

    A route whose changes are recorded sets `changed`, how many jobs it changed, `changed_topic`, if only the store knew
    the topic, and `was` and `now`, what it changed by field (see `api.recorded_values`).
    """

    __slots__ = ("admission", "app", "changed", "changed_topic", "incoming", "now", "was")

    def __init__(self, app: AppContext, incoming: IncomingRequest, admission: Admission) -> None:
        self.app = app
        self.incoming = incoming
        self.admission = admission
        self.changed: int | None = None
        self.changed_topic: str | None = None
        self.was: Mapping[str, Any] | None = _NOTHING
        self.now: Mapping[str, Any] = _NOTHING

    @property
    def engine(self) -> Engine:
        """The application's engine."""
        return self.app.engine

    def room_for(self, jobs: Sequence[PutJob | EncodedPut]) -> AbstractContextManager[None]:
        """Around a put. Raises RateLimited when the key's quota has no room for these jobs."""
        usage = self.admission.usage
        return _NO_QUOTA if usage is None else usage.room_for(jobs)

    async def check_batches(self, jobs: Sequence[PutJob | EncodedPut]) -> None:
        """Before a put. Raises Forbidden unless the key is for the topics into which the batches of these jobs put."""
        if self.admission.visible_topics is None:
            return
        for name in {job.batch for job in jobs}:
            batch = None if name is None else await self.engine.batches.find(name)
            if batch is not None:
                self.admission.check_topic(batch.topic)

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


class AppContext:
    """Settings, gate, engine, the consumers seen, the budget of unsent bytes, the shares of the computing time, and
    what may be pushed to.

    `engine` exists once the application has started, and so does `pushers`, which is None when nothing is pushed.
    """

    __slots__ = ("computations", "consumers", "engine", "gate", "pushers", "settings", "targets", "unsent")

    engine: Engine

    def __init__(self, settings: Settings, gate: Gate) -> None:
        self.settings = settings
        self.gate = gate
        self.computations = Computations()
        self.consumers = ConsumerTracker()
        self.unsent = UnsentBytes(settings.max_unsent_bytes)
        self.targets = AllowedTargets(settings.push_allow, settings.push_network)
        self.pushers: Pushers | None = None


@dataclass(slots=True)
class _Share:
    """The share of one key. `requests` are its requests that compute or wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: int = 0


class Computations:
    """A share of the process for each key: one long computation at a time. Further ones of the key wait, up to a bound.

    What computes ends its slices (`deferd.engine.time_slice`), so other requests are served in between; the share keeps
    one key from making the computations of all others wait.
    """

    def __init__(self) -> None:
        self._of_key: dict[str | None, _Share] = {}
        """By the name of the key, or None without keys; only keys with computations."""

    @asynccontextmanager
    async def share_of(self, key_name: str | None) -> AsyncIterator[None]:
        """Around a long computation.

        Raises:
            RateLimited: as many others of the key wait already as may.
        """
        share = self._of_key.setdefault(key_name, _Share())
        if share.requests > limits.WAITING_COMPUTATIONS_MAX:
            text = f"{limits.WAITING_COMPUTATIONS_MAX} requests wait already for the long computation of another one"
            raise RateLimited(text if key_name is None else f"{text} with key {key_name!r}")
        share.requests += 1
        try:
            async with share.lock:
                yield
        finally:
            share.requests -= 1
            if not share.requests:
                del self._of_key[key_name]

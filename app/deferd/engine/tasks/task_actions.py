"""What tasks do: cancel or reschedule selected jobs, redrive or purge jobs of a topic.

Of a task's spec, `kind` is one of `cancel`, `reschedule`, `redrive` and `purge`, and `cutoff` and `begun` are instants
in ms. The first two have `call`, the JSON object of the request, and `visible`, the topics that the caller may see, or
null; the others have `sweep`, the fields of a Sweep. `limit` is the most jobs, or null. `key` is the name of the
API key that began it, or null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.model import JobState
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.bulk_actions import BulkActions, SelectedTask, forget_key
from deferd.engine.bulk_throttle import BulkThrottle
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.tasks.task_store import KEPT_MS
from deferd.engine.topic_sweeps import STEPS, Pace, Sweep, TopicSweeps

OnStep = Callable[[int], bool]
"""Called with the jobs of each step; when it returns False the work ends."""


class TaskAction(Protocol):
    """The work of one task. Each method raises StoreUnavailable and may be called again; `run` then does the rest."""

    async def done(self) -> int:
        """How many jobs were changed, by all processes that ran the task."""

    async def count(self, on_step: OnStep) -> int:
        """How many jobs are left to change."""

    async def run(self, on_step: OnStep) -> None:
        """Change them."""

    async def forget(self, after_ms: int) -> None:
        """Delete what the scripts have noted after so long, 0: now."""


class TaskActions:
    """Makes the actions of tasks."""

    def __init__(
        self, scripts: Scripts, keys: Keys, bulk: BulkActions, sweeps: TopicSweeps, throttle: BulkThrottle
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._bulk = bulk
        self._sweeps = sweeps
        self._throttle = throttle

    def action_of(self, task_id: str, spec: dict[str, Any]) -> TaskAction:
        """The action of a task. Raises ValueError, KeyError or TypeError for one that this release does not know."""
        kind, cutoff_ms, limit = spec["kind"], spec["cutoff"], spec["limit"]
        request = f"{kind}/task/{task_id}/{spec['begun']}"  # an hour after its end another task may have its id
        if kind in {"cancel", "reschedule"}:
            model = CancelSelected if kind == "cancel" else RescheduleSelected
            visible = None if spec["visible"] is None else TopicPatterns(spec["visible"])
            call = model.model_validate(spec["call"])
            times = (KEPT_MS, cutoff_ms, spec["begun"])
            return SelectedTask(self._bulk, call, visible, request, *times, limit, spec.get("key"))
        fields = dict(spec["sweep"])
        ids, state = fields.pop("ids", None), fields.pop("state", None)
        sweep = Sweep(
            verb=kind,
            ids=None if ids is None else tuple(ids),
            state=None if state is None else JobState(state),
            cutoff_ms=cutoff_ms,
            limit=limit,
            **fields,
        )
        return _Swept(self, sweep, request)

    async def now_ms(self, shards: list[int]) -> int:
        """The earliest time among the clocks of these shards. Raises StoreUnavailable."""
        times = [await self._scripts.run("now", (self._keys.of_shard(shard, "due"),), ()) for shard in shards]
        return int(min(times))


class _Swept:
    """Redrives or purges jobs of a topic."""

    def __init__(self, actions: TaskActions, sweep: Sweep, request: str) -> None:
        self._actions = actions
        self._sweep = sweep
        self._request = request

    def _pace(self, on_step: OnStep, *, is_named: bool) -> Pace:
        request = self._request if is_named else None
        return Pace(STEPS[self._sweep.verb], self._actions._throttle.slot, request, KEPT_MS, on_step)

    async def _left(self) -> Sweep:
        if self._sweep.limit is None:
            return self._sweep
        return self._sweep.with_limit(max(self._sweep.limit - await self.done(), 0))

    async def done(self) -> int:
        return await self._actions._sweeps.count_of(self._sweep.topic, self._request)

    async def count(self, on_step: OnStep) -> int:
        pace = self._pace(on_step, is_named=False)
        return (await self._actions._sweeps.preview(await self._left(), 0, pace)).matched

    async def run(self, on_step: OnStep) -> None:
        await self._actions._sweeps.run(await self._left(), self._pace(on_step, is_named=True))

    async def forget(self, after_ms: int) -> None:
        for key in await self._actions._sweeps.request_keys(self._sweep.topic, self._request):
            await forget_key(self._actions._scripts, key, after_ms)

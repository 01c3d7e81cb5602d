"""Sweeps: redrive or purge many jobs of one topic, step by step, or preview what would be done.

A preview returns a cutoff: the same sweep with that `cutoff` acts on what the preview counted, or on less, and on
nothing else. A job that was put or that died since is left alone, also one that was dead, was redriven and has died
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from deferd.contract.model import JobState
from deferd.engine import metrics
from deferd.engine.inspection.dead_errors import DeadJobs
from deferd.engine.record import json_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.tag_index import ids_with_tag
from deferd.engine.topic_view import STATES, view_topic

STEPS = {"redrive": 60, "purge": 180}
"""Most jobs of a step, which ends early at 1 MiB of records read: two to four milliseconds of the store's time.
Steps of a thousand made jobs of other topics late by 50 ms and more."""
_LOOK_AT = 250
"""Most jobs that a shorter step looks at, to find those that match: about three milliseconds of the store's time."""
_PREVIEW_STEP = 250
SETTLE_S = 0.002
"""After the cutoff of a preview was read: what has it as its time is in the store when the clock shows a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Which jobs of a topic to redrive or to purge; None is no condition.

    `state` is for purges. `error` is an error text as GET /dead shows it, '' for dead jobs without one, not together
    with `ids`. `cutoff_ms`: only jobs that were put until then, and dead ones that died until then, as far as that is
    known. `limit` is for redrives without `ids`. `frees_taken`: a purge of all finished jobs frees the ids that
    `unique_for` keeps taken also with a `cutoff_ms`; without one it always does.
    """

    verb: Literal["redrive", "purge"]
    topic: str
    ids: tuple[str, ...] | None = None
    state: JobState | None = None
    tag: str | None = None
    reason: str | None = None
    error: str | None = None
    cutoff_ms: int | None = None
    limit: int | None = None
    frees_taken: bool = False

    def with_limit(self, limit: int | None) -> Sweep:
        """The same sweep for at most so many jobs, None for all."""
        return replace(self, limit=limit)

    @property
    def is_for_all(self) -> bool:
        """Whether it purges the whole topic."""
        conditions = (self.ids, self.state, self.tag, self.reason, self.error, self.cutoff_ms)
        return self.verb == "purge" and all(condition is None for condition in conditions)

    @property
    def states(self) -> tuple[JobState, ...]:
        """The states of the jobs, in the order in which they are looked at."""
        if self.verb == "redrive" or self.reason is not None or self.error is not None:
            return (JobState.DEAD,)
        return tuple(STATES) if self.state is None else (self.state,)


@dataclass(slots=True)
class SweepPreview:
    """How many jobs a sweep would act on. `samples` are ids and states of some of them.

    `is_complete`: whether that are all, or the limit was reached.
    """

    matched: int
    cutoff_ms: int
    samples: list[tuple[str, JobState]]
    is_complete: bool


@dataclass
class Pace:
    """How a sweep proceeds: in steps of at most `jobs`, each in a `slot`.

    `request` is the name under which the scripts count what it has done, for `kept_ms`. `on_step` is called after each
    step with the jobs that matched in it; when it returns False the sweep ends.
    """

    jobs: int = STEPS["purge"]
    slot: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    request: str | None = None
    kept_ms: int = 0
    on_step: Callable[[int], bool] = field(default=lambda _: True)


class TopicSweeps:
    """Redrives and purges."""

    def __init__(self, scripts: Scripts, keys: Keys, labels: metrics.TopicLabels, dead_jobs: DeadJobs) -> None:
        self._scripts = scripts
        self._keys = keys
        self._label = labels.label
        self._counted = labels.counted
        self._dead_jobs = dead_jobs

    async def run(self, sweep: Sweep, pace: Pace | None = None) -> int:
        """Make the jobs ready, or remove them; returns how many. Raises TopicNotFound, StoreUnavailable."""
        await view_topic(self._scripts, self._keys, sweep.topic)
        if sweep.error is not None and sweep.cutoff_ms is None:
            sweep = self.with_cutoff(sweep, await self.now_ms(sweep.topic))
        work = _Run(self, sweep, pace or Pace(STEPS[sweep.verb]))
        try:
            await work.run()
        finally:
            self._counted.of(sweep.topic)
            if sweep.verb == "redrive":
                metrics.REDRIVES.labels(self._label(sweep.topic)).inc(work.matched)
        if sweep.is_for_all:
            await self._scripts.run("forget", self._keys.of_topic(sweep.topic), (sweep.topic,))
        return work.matched

    async def preview(self, sweep: Sweep, samples: int, pace: Pace | None = None) -> SweepPreview:
        """Count the jobs that `run` would act on, and change nothing. Raises TopicNotFound, StoreUnavailable."""
        await view_topic(self._scripts, self._keys, sweep.topic)
        if sweep.cutoff_ms is None:
            sweep = self.with_cutoff(sweep, await self.now_ms(sweep.topic))
            await asyncio.sleep(SETTLE_S)
        work = _Run(self, sweep, pace or Pace(_PREVIEW_STEP), samples)
        await work.run()
        return SweepPreview(work.matched, sweep.cutoff_ms or 0, work.samples, not work.is_limit_reached)

    @staticmethod
    def with_cutoff(sweep: Sweep, cutoff_ms: int) -> Sweep:
        """The same sweep for jobs of that time."""
        return replace(sweep, cutoff_ms=cutoff_ms)

    async def now_ms(self, topic: str) -> int:
        """The time of the topic's shard. Raises StoreUnavailable."""
        now_ms: int = await self._scripts.run("now", (self._keys.of_topic(topic)[0],), ())
        return now_ms


class _Step(NamedTuple):
    """What a step says of how to go on: whether there may be more, and behind which job, or so many of the ids."""

    more: int
    score: str
    last_id: str
    looked_at: int


class _Run:
    """One run of a sweep; with `most_samples`, of a preview."""

    def __init__(self, of: TopicSweeps, sweep: Sweep, pace: Pace, most_samples: int | None = None) -> None:
        self._scripts = of._scripts
        self._keys = of._keys
        self._dead_jobs = of._dead_jobs
        self._sweep = sweep
        self._pace = pace
        self._most_samples = most_samples
        options = {
            "reason": sweep.reason,
            "tag": sweep.tag,
            "cutoff": sweep.cutoff_ms,
            "frees_taken": sweep.frees_taken or None,
            "request": pace.request,
            "kept": pace.kept_ms or None,
        }
        self._options = {name: value for name, value in options.items() if value is not None}
        self.matched = 0
        self.samples: list[tuple[str, JobState]] = []
        self.is_limit_reached = False
        self._is_stopped = False

    async def run(self) -> None:
        sweep = self._sweep
        if sweep.ids is not None:
            await self._act_on_ids(sweep.ids)
        elif sweep.error is not None:
            async for ids in self._dead_jobs.ids_with_error(
                sweep.topic, sweep.error, reason=sweep.reason, until_ms=sweep.cutoff_ms
            ):
                if not await self._act_on_ids(ids):
                    return
        elif sweep.tag is not None:
            async for ids in ids_with_tag(self._scripts, self._keys, sweep.topic, sweep.tag):
                if not await self._act_on_ids(ids):
                    return
        else:
            for state in sweep.states:
                await self._act_on_state(state)

    async def _act_on_ids(self, ids: tuple[str, ...] | list[str]) -> bool:
        """Act on those of the ids that match. Returns whether the sweep goes on."""
        states = self._sweep.states
        if not ids:
            self._is_stopped = not self._pace.on_step(0)
            return not self._is_stopped
        at = 0
        while at < len(ids):
            if self._left() == 0:
                self.is_limit_reached = True
                return False
            named = {"state": states[0].value} if self._sweep.verb == "purge" and len(states) == 1 else {}
            at += (await self._step(named, ids[at : at + self._pace.jobs])).looked_at
            if self._is_stopped:
                return False
        return True

    async def _act_on_state(self, state: JobState) -> None:
        position: dict[str, str] = {}
        more = 1
        while more and not self._is_stopped:
            if self._left() == 0:
                self.is_limit_reached = True
                return
            named = {"state": state.value} if self._sweep.verb == "purge" else {}
            step = await self._step({**named, **position}, ())
            more = step.more
            if self._leaves_jobs and step.score:
                position = {"score": step.score, "id": step.last_id}

    @property
    def _leaves_jobs(self) -> bool:
        """Whether a step may leave jobs that it looked at, so that the next one must begin behind them."""
        sweep = self._sweep
        conditions = (sweep.reason, sweep.cutoff_ms, self._most_samples)
        return sweep.verb == "redrive" or any(condition is not None for condition in conditions)

    def _left(self) -> int | None:
        limit = None if self._sweep.ids is not None else self._sweep.limit
        return None if limit is None else limit - self.matched

    async def _step(self, options: dict[str, Any], ids: tuple[str, ...] | list[str]) -> _Step:
        left = self._left()
        most = self._pace.jobs if left is None else min(left, self._pace.jobs)
        options = {**self._options, **options, "most": len(ids) if self._sweep.ids is not None else most}
        if self._sweep.verb == "redrive":
            options["look_at"] = max(self._pace.jobs, _LOOK_AT)
        if self._most_samples is not None:
            options["samples"] = self._most_samples - len(self.samples)
        topic = self._sweep.topic
        async with self._pace.slot():
            reply = await self._scripts.run(
                self._sweep.verb, self._keys.of_topic(topic), (topic, json_bytes(options), *ids)
            )
        count, more, score, last_id, looked_at, *named = reply
        self.matched += count
        self.samples += (
            (job_id.decode(), JobState(was.decode())) for job_id, was in zip(named[::2], named[1::2], strict=True)
        )
        self._is_stopped = not self._pace.on_step(count)
        return _Step(more, _text(score), _text(last_id), looked_at)


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

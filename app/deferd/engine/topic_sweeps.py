"""Sweeps: redrive or purge many jobs of one topic, step by step, or preview what would be done.

A preview returns a cutoff: the same sweep with that `cutoff` acts on what the preview counted, or on less, and on
nothing else. A job that was put or that died since is left alone, also one that was dead, was redriven and has died
again.

A sweep of a topic with several partitions goes through one after the other, or for ids through those where each may be.
The cutoff is one instant for all: the earliest that a clock of their shards shows.

A purge loads jobs on the shelf before the step that they belong to. A preview counts those of a state where they are;
one that is loaded meanwhile it may count twice.

A redrive at a rate waits between its steps: jobs stay dead until their turn. So to stop it is to end it, and another
process that goes on with it keeps to the rate as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from deferd.contract.model import JobState
from deferd.engine import metrics
from deferd.engine.delayed_ranges import DelayedRanges
from deferd.engine.inspection.dead_errors import DeadJobs
from deferd.engine.partition_store import PartitionStore
from deferd.engine.record import json_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Job, Shelf, Wanted
from deferd.engine.topics import STATES, ids_with_tag, partitions_of

STEPS = {"redrive": 60, "purge": 180}
"""Most jobs of a step, which ends early at 1 MiB of records read: two to four milliseconds of the store's time.
Steps of a thousand made jobs of other topics late by 50 ms and more."""
_LOOK_AT = 250
"""Most jobs that a shorter step looks at, to find those that match: about three milliseconds of the store's time."""
_PREVIEW_STEP = 250
_BURST_S = 0.25
"""With a rate, a step has the jobs of this time, or one."""
DRAWN = 1000
"""Of how many jobs of a redrive that has a request the ids are kept: shares of them are those of all, give or take 3
percentage points.
"""
_LOOK_EVERY_S = 0.5
"""How often a sweep that waits for its turn looks whether it is to end."""
SETTLE_S = 0.002
"""After the cutoff of a preview was read: what has it as its time is in the store when the clock shows a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Which jobs of a topic to redrive or to purge; None is no condition.

    `state` is for purges. `error` is an error text as GET /dead shows it, '' for dead jobs without one, not together
    with `ids`. `cutoff_ms`: only jobs that were put until then, and dead ones that died until then, as far as that is
    known. `limit` is for redrives without `ids`. `rate` is the most jobs a second, for tasks. `frees_taken`: a purge of
    all finished jobs frees the ids that `unique_for` keeps taken also with a `cutoff_ms`; without one it always does.
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
    rate: float | None = None
    frees_taken: bool = False
    group: str | None = None

    def with_limit(self, limit: int | None) -> Sweep:
        """The same sweep for at most `limit` jobs, None for all."""
        return replace(self, limit=limit)

    @property
    def is_for_all(self) -> bool:
        """Whether it purges the whole topic."""
        conditions = (self.ids, self.state, self.tag, self.group, self.reason, self.error, self.cutoff_ms)
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

    `is_complete` is false when the limit was reached.
    """

    matched: int
    cutoff_ms: int
    samples: list[tuple[str, JobState]]
    is_complete: bool


@dataclass(slots=True)
class Turns:
    """When a sweep may make its next step so that it changes at most `rate` jobs a second."""

    rate: float
    next_s: float = 0.0

    @property
    def jobs(self) -> int:
        """Most jobs of a step."""
        return max(1, int(self.rate * _BURST_S))

    async def wait(self, goes_on: Callable[[], bool]) -> None:
        """Wait for the next turn, while it goes on."""
        while goes_on() and (left_s := self.next_s - time.monotonic()) > 0:  # noqa: ASYNC110 (it waits for a time)
            await asyncio.sleep(min(left_s, _LOOK_EVERY_S))

    def note(self, jobs: int) -> None:
        """Note how many jobs a step has changed just now."""
        self.next_s = time.monotonic() + jobs / self.rate


@dataclass
class Pace:
    """How a sweep proceeds: in steps of at most `jobs`, each in a `slot`, which is called with the partition.

    With `turns`, which outlive a run that the store has interrupted, each step waits for its turn.
    `request` is the name under which the scripts count what it has done, in each shard, for `kept_ms`. `on_step` is
    called after each step with the jobs that matched in it; when it returns False the sweep ends.
    """

    jobs: int = STEPS["purge"]
    slot: Callable[[str], AbstractAsyncContextManager[None]] = field(default=lambda _: nullcontext())
    request: str | None = None
    kept_ms: int = 0
    on_step: Callable[[int], bool] = field(default=lambda _: True)
    turns: Turns | None = None


class TopicSweeps:
    """Redrives and purges."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        dead_jobs: DeadJobs,
        partitions: PartitionStore,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._partitions = partitions
        self._labels = labels
        self._dead_jobs = dead_jobs

    async def run(self, sweep: Sweep, pace: Pace | None = None) -> int:
        """Make the jobs ready, or remove them; returns how many. Raises TopicNotFound, StoreUnavailable."""
        partitions = await partitions_of(self._scripts, self._keys, self._partitions, sweep.topic)
        if sweep.error is not None and sweep.cutoff_ms is None:
            sweep = replace(sweep, cutoff_ms=await self._now_ms(partitions))
        work = _Run(self, sweep, partitions, pace or Pace(STEPS[sweep.verb]))
        await work.run()
        if sweep.is_for_all:
            await self._scripts.run("forget", self._keys.of_topic(sweep.topic), (sweep.topic,))
        return work.matched

    async def preview(self, sweep: Sweep, samples: int, pace: Pace | None = None) -> SweepPreview:
        """Count the jobs that `run` would act on, and change nothing. Raises TopicNotFound, StoreUnavailable."""
        partitions = await partitions_of(self._scripts, self._keys, self._partitions, sweep.topic)
        if sweep.cutoff_ms is None:
            sweep = replace(sweep, cutoff_ms=await self._now_ms(partitions))
            await asyncio.sleep(SETTLE_S)
        work = _Run(self, sweep, partitions, pace or Pace(_PREVIEW_STEP), samples)
        await work.run()
        return SweepPreview(work.matched, sweep.cutoff_ms or 0, work.samples, not work.is_limit_reached)

    async def now_ms(self, topic: str) -> int:
        """The earliest time among the clocks of the topic's shards. Raises StoreUnavailable."""
        return await self._now_ms(await self._refreshed(topic))

    async def count_of(self, topic: str, request: str) -> int:
        """How many jobs of a topic the steps of a sweep with this request have changed. Raises StoreUnavailable."""
        keys = await self.request_keys(topic, request)
        counts = await asyncio.gather(*(self._scripts.command("HGET", key, "done") for key in keys))
        return sum(int(count or 0) for count in counts)

    async def request_keys(self, topic: str, request: str) -> list[str]:
        """The keys under which the scripts count for a request: one in each shard. Raises StoreUnavailable."""
        shards = sorted(set(map(self._keys.shard_of, await self._refreshed(topic))))
        return [self._keys.of_shard(shard, f"bulk/{request}") for shard in shards]

    async def _now_ms(self, partitions: Sequence[str]) -> int:
        keys = [self._keys.of_topic(partition)[0] for partition in partitions]
        times: list[int] = await asyncio.gather(*(self._scripts.run("now", (key,), ()) for key in keys))
        return min(times)

    async def _refreshed(self, topic: str) -> tuple[str, ...]:
        """The partitions of a topic, which need not exist."""
        await self._partitions.refresh(topic)
        return self._partitions.known.of(topic)


class _Step(NamedTuple):
    """How to continue after a step: whether there may be more jobs, and the job or the number of ids after which they
    come.
    """

    more: int
    score: str
    last_id: str
    looked_at: int


class _Run:
    """One run of a sweep; with `most_samples`, of a preview."""

    def __init__(
        self,
        sweeps: TopicSweeps,
        sweep: Sweep,
        partitions: Sequence[str],
        pace: Pace,
        most_samples: int | None = None,
    ) -> None:
        self._scripts = sweeps._scripts
        self._keys = sweeps._keys
        is_for_shelved = sweep.verb == "purge" and JobState.DELAYED in sweep.states
        self._shelf = sweeps._partitions.shelf if is_for_shelved else Shelf()
        self._dead_jobs = sweeps._dead_jobs
        self._labels = sweeps._labels
        self._sweep = sweep
        self._partitions = partitions
        self._pace = pace
        self._most_samples = most_samples
        options = {
            "reason": sweep.reason,
            "tag": sweep.tag,
            "group": sweep.group,
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
        self._turns = pace.turns
        self._jobs = pace.jobs if pace.turns is None else min(pace.jobs, pace.turns.jobs)
        """Most jobs of a step."""

    async def run(self) -> None:
        by_home = None if self._sweep.ids is None else self._by_home(self._sweep.ids)
        for partition in self._partitions if by_home is None else by_home:
            if by_home is None:
                goes_on = await self._act_on_partition(partition)
            else:
                goes_on = await self._act_on_ids(partition, by_home[partition])
            if not goes_on:
                return

    def _by_home(self, ids: Sequence[str]) -> dict[str, list[str]]:
        """The ids by the partitions where they may be: a job is in one of them at most."""
        by_home: dict[str, list[str]] = {}
        for job_id in ids:
            for home in self._keys.partitions.homes(self._sweep.topic, job_id):
                by_home.setdefault(home, []).append(job_id)
        return by_home or {self._sweep.topic: []}

    async def _act_on_partition(self, partition: str) -> bool:
        """Returns whether the sweep goes on."""
        sweep = self._sweep
        if sweep.error is not None or sweep.tag is not None:
            async for ids in self._pages(partition):
                if not await self._act_on_ids(partition, ids):
                    return False
            return True
        for state in sweep.states:
            if not await self._act_on_state(partition, state):
                return False
        return True

    def _pages(self, partition: str) -> AsyncIterator[list[str]]:
        """The ids of the jobs of a partition that have the error or the tag."""
        sweep = self._sweep
        if sweep.error is None:
            return ids_with_tag(self._scripts, self._keys, partition, sweep.tag or "", shelf=self._shelf.calls)
        return self._dead_jobs.ids_with_error(partition, sweep.error, reason=sweep.reason, until_ms=sweep.cutoff_ms)

    async def _act_on_ids(self, partition: str, ids: Sequence[str]) -> bool:
        """Act on the jobs with these ids, as far as they match. Returns whether the sweep goes on."""
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
            at += (await self._step(partition, named, ids[at : at + self._jobs])).looked_at
            if self._is_stopped:
                return False
        return True

    async def _act_on_state(self, partition: str, state: JobState) -> bool:
        """Returns whether the sweep goes on."""
        position: dict[str, str] = {}
        ranges = self._ranges(partition, state)
        async for bounds, on_shelf in ranges:
            more = 1
            while more and not self._is_stopped:
                if self._left() == 0:
                    is_first = not position and partition != self._partitions[0]
                    if is_first and not await self._scripts.command("ZCARD", self._keys.named(partition, "dead")):
                        return True
                    self.is_limit_reached = True
                    return False
                named = {"state": state.value} if self._sweep.verb == "purge" else {}
                async with ranges.kept():
                    step = await self._step(partition, {**named, **position, **bounds}, ())
                more = step.more
                if self._leaves_jobs and step.score:
                    position = {"score": step.score, "id": step.last_id}
            if on_shelf and not self._is_stopped:
                self._count_on_shelf(on_shelf)
            if self._is_stopped:
                return False
        return True

    def _ranges(self, partition: str, state: JobState) -> DelayedRanges:
        return DelayedRanges(
            self._shelf.calls if state is JobState.DELAYED else None,
            partition,
            Wanted(created_until_ms=self._sweep.cutoff_ms, group=self._sweep.group),
            self._pace.slot,
            loads=self._most_samples is None,
        )

    def _count_on_shelf(self, jobs: Sequence[Job]) -> None:
        """Count jobs on the shelf, for a preview."""
        self.matched += len(jobs)
        named = jobs[: (self._most_samples or 0) - len(self.samples)]
        self.samples += ((job.id, JobState.DELAYED) for job in named)
        self._is_stopped = not self._pace.on_step(len(jobs))

    @property
    def _leaves_jobs(self) -> bool:
        """Whether a step may leave jobs that it looked at, so that the next one must begin behind them."""
        sweep = self._sweep
        conditions = (sweep.reason, sweep.group, sweep.cutoff_ms, self._most_samples)
        return sweep.verb == "redrive" or any(condition is not None for condition in conditions)

    def _left(self) -> int | None:
        limit = None if self._sweep.ids is not None else self._sweep.limit
        return None if limit is None else limit - self.matched

    def _goes_on(self) -> bool:
        self._is_stopped = not self._pace.on_step(0)
        return not self._is_stopped

    async def _step(self, partition: str, options: dict[str, Any], ids: Sequence[str]) -> _Step:
        if self._turns is not None:
            await self._turns.wait(self._goes_on)
            if self._is_stopped:
                return _Step(0, "", "", 0)
            self._turns.note(self._jobs)  # also if the reply is lost
        left = self._left()
        most = self._jobs if left is None else min(left, self._jobs)
        options = {**self._options, **options, "most": len(ids) if self._sweep.ids is not None else most}
        if self._sweep.verb == "redrive":
            options |= {"look_at": max(self._pace.jobs, _LOOK_AT), "drawn": DRAWN}
        if self._most_samples is None:
            self._labels.counted.of(partition)
        else:
            options["samples"] = self._most_samples - len(self.samples)
        async with self._pace.slot(partition), self._shelf.loaded(partition, ids):
            reply = await self._scripts.run(
                self._sweep.verb, self._keys.of_topic(partition), (partition, json_bytes(options), *ids)
            )
        count, more, score, last_id, looked_at, *named = reply
        self.matched += count
        if self._sweep.verb == "redrive" and self._most_samples is None:
            metrics.REDRIVES.labels(self._labels.label(self._sweep.topic)).inc(count)
        if self._turns is not None:
            self._turns.note(count)
        self.samples += (
            (job_id.decode(), JobState(was.decode())) for job_id, was in zip(named[::2], named[1::2], strict=True)
        )
        self._is_stopped = not self._pace.on_step(count)
        return _Step(more, _text(score), _text(last_id), looked_at)


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

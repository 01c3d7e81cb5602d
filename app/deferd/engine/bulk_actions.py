"""Calls on many jobs: cancel or reschedule all that have a tag, are of a group, in a state, or named.

Such a call works in steps, one script call each (`lua/lib/selection.lua`). Each job changes atomically, the whole does
not. The shards work at the same time; within each, the bulk throttle lets other calls pass between the steps. A call
that is repeated with its `request_id`, also after a crash in the middle, continues where the first attempt ended: the
scripts remember in the store what they have done, for an hour.

In a topic with several partitions a job is looked for in each where it may be. Patterns and the tag index find the
partitions in the shards; for topics that are named, the store is asked first how many they have.

Jobs on the shelf are loaded before a step that they may belong to: those of its ids, or of the range of due times in
which it looks. A dry run counts the jobs of a state where they are; one that is loaded meanwhile it may count twice.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected, Select
from deferd.contract.model import JobState
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import metrics
from deferd.engine.delayed_ranges import LOADED_AT_ONCE, DelayedRanges
from deferd.engine.job_batches import BulkThrottle, all_results
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import topic_of
from deferd.engine.record import instant_ms, json_bytes, to_ms
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Job, Wanted
from deferd.engine.topic_sweeps import SETTLE_S
from deferd.engine.topic_usage import TopicUsage
from deferd.engine.topics import STATES, ids_with_tag, jobs_with_tag, topics_with_tag
from deferd.engine.undos import name_of

_JOBS_PER_STEP = 180
"""About two milliseconds of the store's time: others do not wait long behind a step, nor the call for many fsyncs."""
_TOPICS_AT_ONCE = 8
_UNLIMITED = 10**15
_DUE_AT = 6 + len(STATES)
_SAMPLES_AT = _DUE_AT + 2
"""Where the reply of a step has the due times, and names jobs; see lua/lib/selection.lua."""


Call = CancelSelected | RescheduleSelected


@dataclass(slots=True)
class BulkPreview:
    """What a dry run found: topics, ids and states of up to `most` jobs, all there or dead at the cutoff.

    `first_due_ms` and `last_due_ms`: when the first and the last of the delayed and ready ones are due, if there are
    any.
    """

    cutoff_ms: int
    most: int
    samples: list[tuple[str, str, str]] = field(default_factory=list)
    first_due_ms: int | None = None
    last_due_ms: int | None = None

    def note_due(self, first_ms: int, last_ms: int) -> None:
        """Note when the first and the last of some jobs are due."""
        self.first_due_ms = first_ms if self.first_due_ms is None else min(first_ms, self.first_due_ms)
        self.last_due_ms = last_ms if self.last_due_ms is None else max(last_ms, self.last_due_ms)


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """What a call did, with the fields of `contract.responses.bulk.BulkResult`."""

    matched: int
    done: int
    was: dict[JobState, int]
    complete: bool
    preview: BulkPreview | None = None


async def forget_key(scripts: Scripts, key: str, after_ms: int) -> None:
    """Delete a key of `bulk/` after `after_ms`, or with 0 at once.

    The store deletes it in a thread of its own, since it may have a field for each job.
    """
    await (scripts.write("PEXPIRE", key, after_ms) if after_ms else scripts.write("UNLINK", key))


class BulkActions:
    """Cancels and reschedules many jobs. `usage` finds the topics of a pattern."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        throttle: BulkThrottle,
        *,
        usage: TopicUsage,
        partitions: PartitionStore,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._partitions = partitions
        self.shelf = partitions.shelf
        self._labels = labels
        self._throttle = throttle
        self._usage = usage

    async def cancel(
        self, call: CancelSelected, visible: TopicPatterns | None = None, caller: str | None = None
    ) -> BulkOutcome:
        """Cancel jobs in any state. `visible`: the topics that the caller may see, None for all; others do not match.

        `caller` is the name of the API key: request ids of different callers are different ones.

        Raises:
            StoreUnavailable: the call was carried out in part or not at all. To repeat it with its `request_id`, or any
                cancel, is safe.
        """
        return await self._run(call, visible, caller)

    async def reschedule(
        self, call: RescheduleSelected, visible: TopicPatterns | None = None, caller: str | None = None
    ) -> BulkOutcome:
        """Move the due times of delayed and ready jobs; see `cancel`.

        A repetition without the `request_id` of the first attempt may move a job twice.
        """
        return await self._run(call, visible, caller)

    async def _begin(self, shard: int, request: str, caller: str | None, args: tuple[Any, ...]) -> Any:
        keys = (self._keys.of_shard(shard, f"bulk/{request}"), *self._keys.of_caller(shard, caller))
        return await self._scripts.run("bulk_begin", keys, args)

    async def _forget(self, shard: int, request: str, caller: str | None) -> None:
        await self._scripts.write("UNLINK", self._keys.of_shard(shard, f"bulk/{request}"))
        for key in self._keys.of_caller(shard, caller):
            await self._scripts.write("ZREM", key, f"bulk/{request}")

    async def _run(self, call: Call, visible: TopicPatterns | None, caller: str | None) -> BulkOutcome:
        verb = "cancel" if isinstance(call, CancelSelected) else "reschedule"
        is_named = call.request_id is not None and not call.dry_run
        owner = "" if caller is None else f"{caller}/"
        request = f"{verb}/{owner}{call.request_id if is_named else os.urandom(16).hex()}"
        options = _action(call)
        if call.is_remembered:
            options["request"] = request
        if isinstance(call, CancelSelected) and call.undo and call.request_id is not None:
            options["undo"] = name_of(caller, call.request_id)
        if call.dry_run:
            options["dry_run"] = True
        if call.select.cutoff is not None:
            options["cutoff"] = instant_ms(call.select.cutoff)
        shards = await self.shards_of(call.select)
        run = _Run(self, call, options, visible, _Budget(call.limit))

        async def begin(shard: int) -> list[int]:
            reply: list[int] = await self._begin(shard, request, caller, (int(call.is_remembered), ""))
            return reply

        async def work(shard: int) -> None:
            bound_ms, *_ = await begin(shard)
            await run.in_shard(shard, bound_ms)

        if call.samples:
            run.preview = BulkPreview(options.get("cutoff", 0), call.samples)
            if call.select.cutoff is None:
                run.preview.cutoff_ms = options["cutoff"] = min(
                    bound for bound, *_ in await all_results(map(begin, shards))
                )
                await asyncio.sleep(SETTLE_S)
        await run.find_tagged(shards)
        await all_results(work(shard) for shard in shards)
        done, *states = run.totals
        if is_named:
            numbers = await all_results(begin(shard) for shard in shards)
            done, *states = map(sum, zip(*(some[1:] for some in numbers), strict=True))
        elif call.is_remembered:
            await all_results(self._forget(shard, request, caller) for shard in shards)
        was = {state: count for state, count in zip(STATES, states, strict=True) if count}
        return BulkOutcome(sum(states), done, was, not run.budget.is_used_up, run.preview)

    async def shards_of(self, select: Select) -> list[int]:
        """The shards that may hold selected jobs."""
        await self._partitions.refresh_all(select.named_topics)
        partitions = self._keys.partitions
        if select.ids is not None:
            homes = {home for job in select.ids for home in partitions.homes(job.topic, job.id)}
            return sorted(set(map(self._keys.shard_of, homes)))
        if select.topics is not None and not select.patterns:
            return sorted(set(map(self._keys.shard_of, partitions.of_all(select.topics))))
        return list(range(self._keys.shards))

    async def step(
        self,
        call: Call,
        topic: str,
        options: dict[str, Any],
        ids: Sequence[str],
        jobs: int,
    ) -> list[Any]:
        """Run one step for at most `jobs` jobs and return its reply."""
        verb = "bulk_cancel" if isinstance(call, CancelSelected) else "bulk_reschedule"
        async with self._throttle.slot(topic, jobs), self.shelf.loaded(topic, ids):
            reply: list[Any] = await self._scripts.run(
                verb, self._keys.of_topic(topic), (topic, json_bytes(options), *ids)
            )
        return reply

    async def topics(self, shard: int, selectors: Sequence[str]) -> AsyncIterator[list[str]]:
        """The partitions of a shard whose topics are selected, page by page; named topics need not exist."""
        named = self._keys.partitions.of_all(name for name in selectors if "*" not in name)
        yield sorted({name for name in named if self._keys.shard_of(name) == shard})
        patterns = TopicPatterns(pattern for pattern in selectors if "*" in pattern)
        if patterns.prefixes:
            async for page in self._usage.names(shard, patterns.prefixes):
                yield [name for name in page if patterns.match(topic_of(name)) and topic_of(name) not in selectors]

    def count(self, call: Call, topic: str, done: int, states: Sequence[int]) -> None:
        """Count what a step has done, for the metrics and the history; `states` are the jobs that matched."""
        if not done:
            return
        counts = self._labels.counted.of(topic)
        if isinstance(call, RescheduleSelected):
            metrics.RESCHEDULES.labels(self._labels.label(topic)).inc(done)
            return
        left = sum(states) - done  # reserved ones
        for state, number in zip(STATES, states, strict=True):
            cancelled = number - left if state is JobState.RESERVED else number
            if cancelled:
                metrics.CANCELS.labels(self._labels.label(topic), state.value).inc(cancelled)
                counts.cancelled += cancelled


@dataclass(frozen=True, slots=True)
class SelectedTask:
    """The action of a task that cancels or reschedules jobs of the cutoff, at most `limit`; see TaskAction.

    What it does is remembered under `request` for `kept_ms` after its last step. It began at `begun_ms`. `caller` is
    the name of the API key that began it. `visible`: as of `BulkActions.cancel`. `undo`: the name under which what it
    cancels is kept, if it is.
    """

    actions: BulkActions
    call: Call
    visible: TopicPatterns | None
    request: str
    kept_ms: int
    cutoff_ms: int
    begun_ms: int
    limit: int | None
    caller: str | None
    undo: str | None = None

    async def done(self) -> int:
        """See TaskAction."""
        return sum(done for _, done, *_ in (await self._begin()).values())

    async def count(self, on_step: Callable[[int], bool]) -> int:
        """See TaskAction."""
        run = await self._run({"dry_run": True}, on_step)
        _, *states = run.totals
        was = dict(zip(STATES, states, strict=True))
        if isinstance(self.call, RescheduleSelected):
            return was[JobState.DELAYED] + was[JobState.READY]
        return sum(states) - (was[JobState.RESERVED] if self.call.if_reserved == "refuse" else 0)

    async def run(self, on_step: Callable[[int], bool]) -> None:
        """See TaskAction."""
        await self._run({}, on_step)

    async def forget(self, after_ms: int) -> None:
        """See TaskAction."""
        actions = self.actions
        keys = [actions._keys.of_shard(shard, f"bulk/{self.request}") for shard in await self._shards()]
        await all_results(forget_key(actions._scripts, key, after_ms) for key in keys)

    async def _run(self, more_options: dict[str, Any], on_step: Callable[[int], bool]) -> _Run:
        options = {**_action(self.call), **more_options, "cutoff": self.cutoff_ms}
        if "delay" in options:  # from when the task began, also when another process goes on
            options["at"] = self.begun_ms + options.pop("delay")
        options |= {"request": self.request, "kept": self.kept_ms}
        options |= {} if self.undo is None else {"undo": self.undo}
        numbers = await self._begin()
        left = _UNLIMITED
        if self.limit is not None:
            left = max(self.limit - sum(sum(some[2:]) for some in numbers.values()), 0)
        run = _Run(self.actions, self.call, options, self.visible, _Budget(left), on_step=on_step)
        await run.find_tagged(list(numbers))
        await all_results(run.in_shard(shard, bound_ms) for shard, (bound_ms, *_) in numbers.items())
        return run

    async def _begin(self) -> dict[int, list[int]]:
        """By shard: its bound, the jobs that were changed so far, and by state those that matched."""
        shards = await self._shards()
        runs = (self.actions._begin(shard, self.request, self.caller, (1, self.kept_ms)) for shard in shards)
        return dict(zip(shards, await all_results(runs), strict=True))

    async def _shards(self) -> list[int]:
        return await self.actions.shards_of(self.call.select)


def _action(call: Call) -> dict[str, Any]:
    """What to do with the jobs, as the scripts read it."""
    if isinstance(call, CancelSelected):
        return {"refuse_reserved": True} if call.if_reserved == "refuse" else {}
    spread = {} if call.spread is None else {"spread": to_ms(call.spread)}
    if call.by is not None:
        # Moved jobs land where the call has been already, so it does not meet them again.
        return {"by": to_ms(call.by), **({"last_first": True} if call.by > 0 else {}), **spread}
    if call.delay is not None:
        return {"delay": to_ms(call.delay), **spread}
    return {} if call.run_at is None else {"at": instant_ms(call.run_at), **spread}


class _Budget:
    """How many more jobs a call may match. The shards share it: what a step takes and does not use is returned."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._taken = 0
        self._changed = asyncio.Condition()
        self._is_stopped = False
        self.is_used_up = False
        """Whether the limit prevented a step."""

    async def take(self, most: int) -> int:
        """Take up to `most`; 0 when the limit is reached."""
        async with self._changed:
            while self._left == 0 and self._taken > 0 and not self._is_stopped:
                await self._changed.wait()
            took = 0 if self._is_stopped else min(most, self._left)
            self._left -= took
            self._taken += took
            self.is_used_up = self.is_used_up or took == 0
            return took

    def stop(self) -> None:
        """Make no further step."""
        self._is_stopped = self.is_used_up = True

    async def settle(self, took: int, used: int) -> None:
        """Return what was taken and not used."""
        async with self._changed:
            self._taken -= took
            self._left += took - used
            self._changed.notify_all()


@dataclass
class _Run:
    """One attempt of a call."""

    actions: BulkActions
    call: Call
    options: dict[str, Any]
    visible: TopicPatterns | None
    budget: _Budget
    totals: list[int] = field(default_factory=lambda: [0] * (1 + len(STATES)))
    """Done, and the matched jobs by state."""
    preview: BulkPreview | None = None
    on_step: Callable[[int], bool] = field(default=lambda _: True)
    patterns: TopicPatterns = field(init=False)
    _tagged: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.patterns = TopicPatterns(self.call.select.topics or ("*",))

    async def find_tagged(self, shards: Sequence[int]) -> None:
        """With a shelf, find the partitions where jobs may have the tag, if there is one. Call it before `in_shard`."""
        actions, select = self.actions, self.call.select
        if select.tag is None or actions.shelf.calls is None:
            return
        if select.topics is None or select.patterns:
            self._tagged = await topics_with_tag(
                actions._scripts, actions._keys, shards, select.tag, actions.shelf.calls
            )
            return
        for partition in sorted(actions._keys.partitions.of_all(select.topics)):
            self._tagged.setdefault(actions._keys.shard_of(partition), []).append(partition)

    async def in_shard(self, shard: int, bound_ms: int) -> None:
        """Do the work of one shard."""
        options = {**self.options, "bound": bound_ms}
        select, keys = self.call.select, self.actions._keys
        if select.tag is not None:
            await self._act_on_tagged({**options, "tag": select.tag}, shard)
        elif select.ids is not None:
            by_topic: dict[str, list[str]] = {}
            for job in select.ids:
                for home in keys.partitions.homes(job.topic, job.id):
                    if keys.shard_of(home) == shard:
                        by_topic.setdefault(home, []).append(job.id)
            await self._act_on_ids(options, by_topic)
        elif select.group is not None:
            options["group"] = select.group
            states = STATES if isinstance(self.call, CancelSelected) else (JobState.DELAYED, JobState.READY)
            for state in states:
                await self._in_state({**options, "state": state.value}, shard)
        else:
            if select.due_after is not None:
                options["from"] = instant_ms(select.due_after)
            if select.due_before is not None:
                options["before"] = instant_ms(select.due_before)
            await self._in_state({**options, "state": select.state}, shard)

    async def _in_state(self, options: dict[str, Any], shard: int) -> None:
        """Act on the jobs in a state, in the topics that are selected."""
        if options["state"] != "delayed":
            options.pop("last_first", None)
        async for names in self.actions.topics(shard, self.call.select.topics or ()):
            await self._at_some(names, lambda topic: self._act_on_state(options, topic))

    def _is_meant(self, partition: str) -> bool:
        topic = topic_of(partition)
        return self.patterns.match(topic) and (self.visible is None or self.visible.match(topic))

    async def _act_on_tagged(self, options: dict[str, Any], shard: int) -> None:
        actions = self.actions
        if actions.shelf.calls is not None:
            await self._at_some(self._tagged.get(shard, ()), lambda topic: self._act_on_tag(options, topic))
            return
        async for by_topic in jobs_with_tag(actions._scripts, actions._keys, shard, options["tag"]):
            await self._act_on_ids(options, by_topic)
            if self.budget.is_used_up:
                return

    async def _act_on_ids(self, options: dict[str, Any], by_topic: dict[str, list[str]]) -> None:
        await self._at_some(by_topic, lambda topic: self._act_on_some(options, topic, by_topic[topic]))

    async def _act_on_tag(self, options: dict[str, Any], topic: str) -> None:
        actions = self.actions
        pages = ids_with_tag(actions._scripts, actions._keys, topic, options["tag"], shelf=actions.shelf.calls)
        async for ids in pages:
            await self._act_on_some(options, topic, ids)
            if self.budget.is_used_up:
                return

    async def _act_on_some(self, options: dict[str, Any], topic: str, ids: Sequence[str]) -> None:
        while ids and (most := await self.budget.take(min(len(ids), _JOBS_PER_STEP))):
            reply = await self._step(options, topic, ids[:most], most)
            ids = ids[reply[0] :]

    async def _act_on_state(self, options: dict[str, Any], topic: str) -> None:
        ranges = self._ranges(options, topic)
        position: dict[str, Any] = {}
        async for bounds, on_shelf in ranges:
            more = 1
            position.pop("end", None)  # jobs that were loaded since may be due later
            while more and (most := await self.budget.take(_JOBS_PER_STEP)):
                async with ranges.kept():
                    reply = await self._step({**options, **position, **bounds, "most": most}, topic, (), most)
                _, more, score, last_id, end, *_ = reply
                if score:
                    position = {"score": score.decode(), "id": last_id.decode(), "end": end.decode()}
            await self._count_on_shelf(options, topic, on_shelf)
            if self.budget.is_used_up:
                return

    def _ranges(self, options: dict[str, Any], topic: str) -> DelayedRanges:
        actions = self.actions
        return DelayedRanges(
            actions.shelf.calls if options["state"] == "delayed" else None,
            topic,
            Wanted(
                options.get("from"),
                options.get("before"),
                created_until_ms=options.get("cutoff"),
                group=options.get("group"),
            ),
            lambda topic: actions._throttle.slot(topic, LOADED_AT_ONCE),
            last_first="last_first" in options,
            loads="dry_run" not in options,
        )

    async def _count_on_shelf(self, options: dict[str, Any], topic: str, jobs: list[Job]) -> None:
        """Count jobs on the shelf, for a dry run. Which ones match is as in lua/lib/selection.lua."""
        if not jobs:
            return
        scripts, keys = self.actions._scripts, self.actions._keys
        now_ms = await scripts.run("now", (keys.of_topic(topic)[0],), ())
        ids = [job.id for job in jobs if not options["bound"] < job.created_ms <= now_ms]
        if ids and "request" in options:
            remembered = keys.of_shard(keys.shard_of(topic), f"bulk/{options['request']}")
            noted = await scripts.command("HMGET", remembered, *(f"{topic} {job_id}" for job_id in ids))
            ids = [job_id for job_id, note in zip(ids, noted, strict=True) if note is None]
        due_ms = {job.id: job.due_ms for job in jobs}
        while ids and (most := await self.budget.take(len(ids))):
            self._name(topic, [(job_id, JobState.DELAYED) for job_id in ids[:most]])
            if self.preview is not None:
                times_ms = [due_ms[job_id] for job_id in ids[:most]]
                self.preview.note_due(min(times_ms), max(times_ms))
            self.totals[1 + STATES.index(JobState.DELAYED)] += most
            await self.budget.settle(most, most)
            ids = ids[most:]
            if not self.on_step(0):
                self.budget.stop()

    async def _step(self, options: dict[str, Any], topic: str, ids: Sequence[str], most: int) -> list[Any]:
        matched = 0
        preview = self.preview
        if preview is not None:
            options = {**options, "samples": preview.most - len(preview.samples)}
        try:
            reply = await self.actions.step(self.call, topic, options, ids, most)
            done, *states = reply[5:_DUE_AT]
            matched = sum(states)
        finally:
            await self.budget.settle(most, matched)
        if preview is not None:
            first_due, last_due = reply[_DUE_AT:_SAMPLES_AT]
            if first_due:
                preview.note_due(int(first_due), int(last_due))
            named = [text.decode() for text in reply[_SAMPLES_AT:]]
            self._name(topic, list(zip(named[::2], named[1::2], strict=True)))
        self.totals = [total + number for total, number in zip(self.totals, (done, *states), strict=True)]
        self.actions.count(self.call, topic, done, states)
        if not self.on_step(done):
            self.budget.stop()
        return reply

    def _name(self, topic: str, found: Sequence[tuple[str, str]]) -> None:
        """Note ids and states of jobs that were found, as samples."""
        if self.preview is not None:
            left = self.preview.most - len(self.preview.samples)
            self.preview.samples += [(topic_of(topic), *job) for job in found[:left]]

    async def _at_some(self, topics: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
        """Act on the topics that are meant, some at the same time."""
        meant = [topic for topic in topics if self._is_meant(topic)]
        for at in range(0, len(meant), _TOPICS_AT_ONCE):
            if self.budget.is_used_up:
                return
            await all_results(act(topic) for topic in meant[at : at + _TOPICS_AT_ONCE])

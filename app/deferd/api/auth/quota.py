"""Quotas: how many jobs, bytes and topics a key may have in the store, over all topics that it is for.

No script can enforce this, since the topics are in several shards of the store. So their content is counted from time
to time, and what the key has put through this process since then is added. Until the next count other processes may put
as much again. Everything that is kept counts, also dead and retained jobs, follow-ups, collected items, schedules, the
tombstones of cancelled deliveries, and what is remembered of calls on many jobs: a client could fill the store with
those alone. `docs/authentication.md` lists all keys of the store with what bounds each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NoReturn

from deferd.api.auth.api_keys import Bounds, end_topics
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput, RateLimited, StoreUnavailable
from deferd.contract.model import ChangeJob, JobPolicy, PutJob
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.contract.topic_patterns import TopicPatterns
from deferd.contract.windows import window_text
from deferd.engine.partitions import topic_of
from deferd.engine.record import json_bytes
from deferd.engine.schedule_store import StoredSchedule, definition_to_store, rest_to_store
from deferd.engine.script_arguments import NO_BOUNDS, EncodedPut, all_tags
from deferd.engine.topic_usage import (
    CALL_OVERHEAD_BYTES,
    JOB_OVERHEAD_BYTES,
    SCHEDULE_OVERHEAD_BYTES,
    TAG_OVERHEAD_BYTES,
    TOMBSTONE_BYTES,
    TopicUsage,
)

COUNT_EVERY_S = 1.0
COUNTING_SHARE = 0.05
"""The maximum share of time spent counting for one key, however much its topics hold."""
_MADE_ID_BYTES = 32
_log = logging.getLogger("deferd.keys")


@dataclass(slots=True)
class _Counted:
    """The content of a key's topics in one shard of the store."""

    jobs: int = 0
    bytes: int = 0
    calls: int = 0
    call_bytes: int = 0
    topics: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Use:
    """How much of `what` is in use: `held` is the last count, what was added since then, and what is being added now.

    `bound` is the name of its limit, `most` the limit, None for none.
    """

    bound: str
    what: str
    most: int | None = None
    held: int = 0
    counted: int = 0
    since: int = 0
    """What calls that have ended since the last count began have added, though they may have been refused."""

    def note_count(self, counted: int, since_before: int) -> None:
        """Correct it by a count, when `since` was `since_before` as it began.

        What was put during the count may be in use twice until the next one.
        """
        self.held += counted - self.counted - since_before
        self.counted = counted
        self.since -= since_before


_Amounts = Sequence[tuple[_Use, int]]


class _Claim:
    """Around a call that may add these amounts to what is in use, and these topics.

    Entering it raises the errors of `Quota.room_for` when there is no room for the topics and the amounts `checked`,
    and has no effect then. Not a generator, and few calls: this is done for each put.
    """

    __slots__ = ("_added", "_checked", "_quota", "topics")

    def __init__(self, quota: Quota, added: _Amounts, checked: _Amounts, topics: Collection[str] = ()) -> None:
        self._quota = quota
        self._added = added
        self._checked = checked
        self.topics = topics

    def __enter__(self) -> None:
        quota, topics = self._quota, self.topics
        are_new = topics and not quota.topics.issuperset(topics)
        if are_new:
            quota.check_new_topics(topics)
        for use, amount in self._checked:
            if use.most is not None and use.held + amount > use.most and amount:
                quota.refuse(use, use.most, amount)
        for use, amount in self._added:
            use.held += amount
        if are_new:
            quota.topics.update(topics)
        if topics:  # they are in use from now on, also if a count that is under way does not find them
            quota.topics_since.update(topics)
            quota.under_way.add(self)

    def __exit__(self, *_error: object) -> None:
        for use, amount in self._added:
            use.since += amount
        if self.topics:
            self._quota.under_way.remove(self)  # a count that begins now finds them


class Quota:
    """The quota of one key over the topics that match `patterns`. Its first count is due at once."""

    def __init__(self, key_name: str, patterns: TopicPatterns, bounds: Bounds) -> None:
        self._key_name = key_name
        self._jobs, self._bytes = _Use("max_jobs_total", "jobs"), _Use("max_bytes_total", "bytes")
        self._calls = _Use("max_jobs_total", "notes of calls on many jobs")
        self._call_bytes = _Use("max_bytes_total", "bytes of notes of calls on many jobs")
        self._in_topics = _Use("max_topics", "topics")
        self._of_shard: dict[int, _Counted] = {}
        self.topics: set[str] = set()
        """Those that are in use, if there is a limit of topics."""
        self.topics_since: set[str] = set()
        """Those of the calls that have begun since the last count began."""
        self.under_way: set[_Claim] = set()
        """Those that name topics."""
        self._count_at_s = -math.inf
        self.revise(patterns, bounds)

    def revise(self, patterns: TopicPatterns, bounds: Bounds) -> None:
        """Replace patterns and bounds; the last count stays until the next one."""
        self._patterns = patterns
        self._bounds = bounds
        self._jobs.most = self._calls.most = bounds.max_jobs_total
        self._bytes.most = self._call_bytes.most = bounds.max_bytes_total
        self._in_topics.most = bounds.max_topics
        self._was_used = True

    def room_for(self, jobs: Sequence[PutJob | EncodedPut]) -> AbstractContextManager[None]:
        """Around a put.

        Raises, before anything is put:
            RateLimited: there is no room for all jobs now.
            InvalidInput: the put is larger than a bound, so there never will be.
        """
        counts_bytes, topics, needed_bytes = self._bounds.max_bytes_total is not None, set(), 0
        for job in jobs:
            topics.add(job.topic)
            if (end_topic := job.end_topic) is not None:
                topics.add(end_topic)
            if counts_bytes:
                needed_bytes += _bytes_of_encoded(job) if isinstance(job, EncodedPut) else _bytes_of(job)
        return self._room_in(topics, len(jobs), needed_bytes)

    def room_for_schedule(self, schedule: PutSchedule) -> AbstractContextManager[None]:
        """Around a put of a schedule: it counts as a job, its next run as another one. Raises as `room_for` does."""
        runs, needed_bytes = 0 if schedule.paused else 1, 0
        if self._bounds.max_bytes_total is not None:
            rest = rest_to_store(schedule, NO_BOUNDS)
            needed_bytes = len(definition_to_store(schedule)) + len(rest) + SCHEDULE_OVERHEAD_BYTES
            needed_bytes += runs * (len(rest) + JOB_OVERHEAD_BYTES)
        return self._room_in({schedule.topic, *end_topics((schedule.job,))}, 1 + runs, needed_bytes)

    def room_for_run(self, schedule: StoredSchedule) -> AbstractContextManager[None]:
        """Around what puts a run of a stored schedule. Raises as `room_for` does."""
        return self._room_in({schedule.topic}, 1, len(schedule.rest or b"") + JOB_OVERHEAD_BYTES)

    def room_to_remember(self, notes: int, text_bytes: int) -> AbstractContextManager[None]:
        """Around a call on many jobs, of which `notes` notes are kept: one, or two if it is a task.

        It is refused only when such notes alone reach a limit, because clients use these calls to make room. Raises as
        `room_for` does.
        """
        self._was_used = True
        needed_bytes = text_bytes + notes * CALL_OVERHEAD_BYTES
        checked = ((self._calls, notes), (self._call_bytes, needed_bytes))
        return _Claim(self, (*checked, (self._jobs, notes), (self._bytes, needed_bytes)), checked)

    def room_for_change(self, change: ChangeJob) -> AbstractContextManager[None]:
        """Around a change of a job, whose new body may be longer. Raises RateLimited as `room_for` does."""
        self._was_used = True
        needed_bytes = 0
        if self._bounds.max_bytes_total is not None:
            body_bytes = len(json_bytes(change.body)) if "body" in change.model_fields_set else 0
            needed_bytes = body_bytes + _policy_bytes(change) + _label_bytes(change)
        amounts = ((self._bytes, needed_bytes),)
        return _Claim(self, amounts, amounts, self._counted_topics(end_topics((change,))))

    def counting(self, stored_bytes: int) -> AbstractContextManager[None]:
        """Around the end of a delivery that may store this many bytes: they count, but are never refused."""
        self._was_used = True
        return _Claim(self, ((self._bytes, stored_bytes),), ())

    def _room_in(self, named: set[str], jobs: int, needed_bytes: int) -> AbstractContextManager[None]:
        self._was_used = True
        amounts = ((self._jobs, jobs), (self._bytes, needed_bytes))
        return _Claim(self, amounts, amounts, self._counted_topics(named))

    def _counted_topics(self, named: set[str]) -> Collection[str]:
        return () if self._bounds.max_topics is None else named

    def check_new_topics(self, topics: Collection[str]) -> None:
        """Raise as `room_for` does when there is no room for those of the topics that are new."""
        use = self._in_topics
        use.held = len(self.topics)
        new = len(self.topics.union(topics)) - use.held
        if use.most is not None and use.held + new > use.most:
            self.refuse(use, use.most, new)

    def refuse(self, use: _Use, most: int, needed: int) -> NoReturn:
        """Raise the error for a call that needs more than there may be."""
        if needed > most:  # a retry cannot help
            text = (
                f"needs room for {needed} {use.what}, but key {self._key_name!r} may have at most {most} ({use.bound})"
            )
            raise InvalidInput([FieldError(("body",), text)])
        raise RateLimited(
            f"the topics of key {self._key_name!r} are full: {use.bound} is {most}, including dead and retained jobs; "
            f"{use.what} in use: {use.held}, needed: {needed} more",
            retry_after_s=math.ceil(max(1.0, self._count_at_s - time.monotonic())),
        )

    def is_due(self, now_s: float) -> bool:
        """Whether to count: the quota was used since the last count, and that is long enough ago."""
        return self._was_used and now_s >= self._count_at_s

    async def count(self, usage: TopicUsage) -> None:
        """Count the content of the topics. For a shard that cannot be reached the last count stands.

        Raises:
            StoreUnavailable: no shard can be reached.
        """
        began_s = time.monotonic()
        self._was_used = False
        uses = {"jobs": self._jobs, "bytes": self._bytes, "calls": self._calls, "call_bytes": self._call_bytes}
        before = {name: use.since for name, use in uses.items()}
        self.topics_since = {topic for claim in self.under_way for topic in claim.topics}
        try:
            counts = await asyncio.gather(
                *(self._count_shard(usage, shard) for shard in range(usage.shards)), return_exceptions=True
            )
            _raise_unless_some_are_counted(counts)
        except BaseException:
            self._was_used = True
            raise
        finally:
            took_s = time.monotonic() - began_s
            self._count_at_s = began_s + took_s + max(COUNT_EVERY_S, took_s / COUNTING_SHARE)
        for shard, count in enumerate(counts):
            if not isinstance(count, BaseException):
                self._of_shard[shard] = count
        for name, use in uses.items():
            use.note_count(sum(getattr(count, name) for count in self._of_shard.values()), before[name])
        self.topics = self.topics_since.union(*(count.topics for count in self._of_shard.values()))

    async def _count_shard(self, usage: TopicUsage, shard: int) -> _Counted:
        counted = _Counted()
        async for page in usage.names(shard, self._patterns.prefixes):
            names = [name for name in page if self._patterns.match(topic_of(name))]
            jobs, tombstones = await usage.jobs(shard, names)
            counted.jobs += jobs + tombstones // 2  # each delivery leaves two
            counted.bytes += tombstones * TOMBSTONE_BYTES
            if self._bounds.max_topics is not None:
                counted.topics.update(map(topic_of, names))
            if self._bounds.max_bytes_total is not None:
                counted.bytes += sum([step for name in names async for step in usage.record_bytes(name)])
        async for some in usage.schedules(shard):
            for topic, schedules, schedule_bytes in some:
                if self._patterns.match(topic):
                    counted.jobs += schedules
                    counted.bytes += schedule_bytes
                    counted.topics.add(topic)
        counted.calls, counted.call_bytes = await usage.calls(shard, self._key_name)
        counted.jobs += counted.calls
        counted.bytes += counted.call_bytes
        return counted


def _bytes_of(job: PutJob) -> int:
    id_bytes = _MADE_ID_BYTES if job.id is None else len(job.id)
    index_bytes = len(all_tags(job)) * (len(job.topic) + len(job.id or ""))
    if job.batch is not None:  # its tag, in the index and twice in the record
        index_bytes += 4 * len(limits.BATCH_TAG + job.batch) + TAG_OVERHEAD_BYTES
    labels = _policy_bytes(job) + _label_bytes(job) + len(job.traceparent or "")
    return 2 * id_bytes + index_bytes + labels + len(json_bytes(job.body)) + JOB_OVERHEAD_BYTES


def _bytes_of_encoded(job: EncodedPut) -> int:
    """The same, and what the numbers of its policy use."""
    window_bytes = 0 if job.to_place is None else len(job.to_place.window or "")
    needed_bytes = 2 * len(job.id) + window_bytes + len(job.job) + JOB_OVERHEAD_BYTES
    for tag in job.tags:
        needed_bytes += 2 * len(tag) + TAG_OVERHEAD_BYTES + len(job.topic) + len(job.id)
    return needed_bytes


def _policy_bytes(policy: JobPolicy) -> int:
    """The bytes that a backoff, a window and `on_end` use in the record."""
    objects = (policy.backoff, policy.on_end)
    object_bytes = sum(len(value.model_dump_json()) for value in objects if value is not None)
    return object_bytes + (0 if policy.window is None else len(window_text(policy.window)))


def _label_bytes(job: PutJob | ChangeJob) -> int:
    """The bytes that tags, headers and group use in the record, and the tags in the index, without the job's name
    there.
    """
    index_bytes = len(job.group or "") + sum(2 * len(tag) + TAG_OVERHEAD_BYTES for tag in job.tags or ())
    return index_bytes + sum(len(json_bytes(labels)) for labels in (job.tags, job.headers) if labels)


def _raise_unless_some_are_counted(counts: Sequence[_Counted | BaseException]) -> None:
    failures = [count for count in counts if isinstance(count, BaseException)]
    for failure in failures:
        if len(failures) == len(counts) or not isinstance(failure, StoreUnavailable):
            raise failure


async def keep_counting(quotas: Callable[[], Iterable[Quota]], usage: TopicUsage) -> None:
    """Count for all current `quotas` repeatedly, each at its own pace, until cancelled."""
    counts: dict[Quota, asyncio.Task[None]] = {}
    try:
        while True:
            now_s = time.monotonic()
            for quota in quotas():
                if quota not in counts and quota.is_due(now_s):
                    counts[quota] = asyncio.create_task(_count(quota, usage), name="quota")
            await asyncio.sleep(COUNT_EVERY_S / 4)
            for quota in [quota for quota, task in counts.items() if task.done()]:
                del counts[quota]
    finally:
        for task in counts.values():
            task.cancel()
        if counts:
            await asyncio.wait(counts.values())


async def _count(quota: Quota, usage: TopicUsage) -> None:
    try:
        await quota.count(usage)
    except StoreUnavailable as exc:
        _log.warning("the stored jobs of a key with a quota could not be counted: %s", exc)
    except Exception:  # noqa: BLE001 (the next count may succeed; a full key must not stay refused for ever)
        _log.exception("the stored jobs of a key with a quota could not be counted")

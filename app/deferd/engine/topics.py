"""One topic: what it is now, and the verbs of operators on it: get, set, pause, resume, list jobs.

For redrive and purge see TopicSweeps.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable, TopicNotFound
from deferd.contract.fields import POLICY, TOPIC
from deferd.contract.model import JobState, TopicSettings
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.ends import check_end_topic
from deferd.engine.inspection.job_facts import JobFacts, MissingJob, Pause, pause_of, read_job_facts
from deferd.engine.inspection.normalized_errors import normalized, part_of_each
from deferd.engine.job_pages import JobPage, Position, merged
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import names_of, number_of, topic_of
from deferd.engine.placement import DueTimePlacer, read_due_defaults
from deferd.engine.push_store import TargetState
from deferd.engine.record import JobRecord, from_store, json_bytes, policy_extra, read_reply, to_store
from deferd.engine.redis_keys import TAG_PREFIX, Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import HELD_S, Shelf, ShelfCalls, Wanted

_SEARCHED = 250
"""Most jobs that one script call looks at: less than 5 ms of the store's time."""
_SCORE = re.compile(r"(?:-?[0-9]{1,16})?")
_FEWER_PARTITIONS, _IS_PUSHED, _HAS_FLOWS = -2, -3, -4
_PAGE_BYTES = 1024 * 1024
_MOST_LOOKED_AT = 10_000
"""By one page of a search; the last step may exceed it."""
_LATEST_MS = (1 << 48) - 1
"""Later than any due time."""


class Topics:
    """The verbs on a topic; TopicList reads over all topics."""

    def __init__(self, scripts: Scripts, keys: Keys, placer: DueTimePlacer, partitions: PartitionStore) -> None:
        self._placer = placer
        self._partitions = partitions
        self._shelf = partitions.shelf
        self._scripts = scripts
        self._keys = keys

    async def _run(self, verb: str, topic: str, *args: str | bytes | float) -> Any:
        return await self._scripts.run(verb, self._keys.of_topic(topic), (topic, *args))

    async def get(self, topic: str) -> TopicView:
        """Return the topic as it is now, all its partitions together. Raises TopicNotFound."""
        return await get_topic(self._scripts, self._keys, topic, self._shelf)

    async def why(self, topic: str, job_id: str) -> JobFacts | MissingJob:
        """What decides when a job runs; for a job that does not exist, what is known about it."""
        return await read_job_facts(self._scripts, self._keys, self._partitions, topic, job_id)

    async def set(self, topic: str, settings: TopicSettings) -> TopicView:
        """Replace the defaults for jobs put from now on, and the limits of the topic. Makes the topic known.

        Its number of partitions stays as it is, unless the settings have one. When several partitions cannot be reached
        at once, those that can have the new settings, and the others get them within a minute of being back.

        A `durability` that the store does not support is accepted here; puts that name none are refused as long as
        the store does not support it.

        Raises:
            InvalidInput: a zone or calendar of the window is unknown, or that never opens; the topic has more
                partitions; or it would have several with limits, or while it is pushed or has jobs with a group or
                a priority.
        """
        if settings.window is not None:
            await self._placer.calendars.check(settings.window)
        if settings.on_end is not None:
            await self._partitions.refresh_all({topic, settings.on_end.topic})
            count = max(self._keys.partitions.count(topic), settings.partitions or 1)
            check_end_topic(self._keys, names_of(topic, count), settings.on_end.topic)
        if settings.limits is not None:
            await self._partitions.refresh(topic)
            partitions = max(self._keys.partitions.count(topic), settings.partitions or 1)
            if partitions > 1:
                message = f"must be left out for a topic with {partitions} partitions"
                raise InvalidInput([FieldError(("body", "limits"), message)])
        stored = settings_to_store(settings)
        code = await self._run("topic_set", topic, "settings", json_bytes(stored) if stored else "")
        await self._partitions.spread(topic)
        if code in {_FEWER_PARTITIONS, _IS_PUSHED, _HAS_FLOWS}:
            most = "at most 1: the topic is pushed"
            if code == _HAS_FLOWS:
                most = "at most 1: the topic has limits, or jobs with a group or a priority"
            if code == _FEWER_PARTITIONS:
                most = f"at least {self._keys.partitions.count(topic)}: partitions can grow, not shrink"
            raise InvalidInput([FieldError(("body", "partitions"), f"must be {most}", settings.partitions)])
        return await self.get(topic)

    async def pause(self, topic: str, by: str | None = None, reason: str | None = None) -> TopicView:
        """Stop handing out jobs; everything else goes on. Makes the topic known.

        `by` is who pauses it, and `reason` why. A topic that is paused already stays paused by the first.
        """
        return await self._set_paused(topic, "pause", by or "", reason or "")

    async def resume(self, topic: str) -> TopicView:
        """Hand out jobs again, to waiting consumers at once. Raises TopicNotFound."""
        return await self._set_paused(topic, "resume")

    async def _set_paused(self, topic: str, verb: Literal["pause", "resume"], *why: str) -> TopicView:
        if await self._run("topic_set", topic, verb, *(why or ("", ""))) < 0:
            raise TopicNotFound(topic)
        await self._partitions.spread(topic)
        return await self.get(topic)

    async def jobs(
        self,
        topic: str,
        state: JobState | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        reverse: bool = False,
    ) -> tuple[list[JobRecord], str | None]:
        """Up to `limit` jobs in `state` (None: in every state, one after the other), and the cursor of the next page.

        The jobs of one state come partition by partition, and within a partition in their order. `reverse`: within
        each state in the opposite order.

        The cursor is None after the last page. A page with large bodies may be shorter without being the last. Jobs
        that change their state between two pages may be missed or returned twice.

        Raises:
            TopicNotFound.
            InvalidInput: this method did not return the cursor.
        """
        partitions = await partitions_of(self._scripts, self._keys, self._partitions, topic)
        places = _places([one.value for one in (STATES if state is None else (state,))], partitions, reverse=reverse)
        place, score, last_id = _position(cursor, places)
        jobs: list[JobRecord] = []
        size = 0
        for current in places[places.index(place) :]:
            in_state, partition = topic_of(current), partitions[number_of(current)]
            more = True
            while more:
                if len(jobs) == limit or size >= _PAGE_BYTES:
                    return jobs, write_cursor(current, score, last_id)
                most = limit - len(jobs)
                page = await self._list(partition, in_state, (score, last_id), most, reverse=reverse)
                more = page.has_more
                score, last_id = page.end
                jobs += _records(topic, page)
                size += page.record_bytes
            score, last_id = "", ""
        return jobs, None

    async def _list(self, partition: str, state: str, after: Position, most: int, *, reverse: bool) -> JobPage:
        """The next jobs in a state behind a position."""

        async def in_store() -> tuple[JobPage, int]:
            more, score, last_id, shelved, *rows = await self._run("list", partition, state, *after, most, int(reverse))
            jobs = [(rows[at].decode(), (state.encode(), *rows[at + 1 : at + 5])) for at in range(0, len(rows), 5)]
            return JobPage(jobs, len(jobs), (_text(score), _text(last_id)), more == 1), shelved

        return await self._with_shelved(
            partition, in_store, after, wanted=Wanted(), most=most, look_at=most, reverse=reverse
        )

    async def _with_shelved(
        self,
        partition: str,
        read: Callable[[], Awaitable[tuple[JobPage, int]]],
        after: Position,
        *,
        wanted: Wanted,
        most: int,
        look_at: int,
        reverse: bool,
    ) -> JobPage:
        """The jobs that `read` returns, with how many are on the shelf, and those of the shelf in their places."""
        in_store, shelved = await read()
        calls = self._shelf.calls
        if not shelved or calls is None:
            return in_store
        position = (int(after[0]), after[1]) if after[0] else None
        async with calls.still(partition):
            in_store, _ = await read()
            on_shelf = await calls.page(partition, wanted, look_at, position, reverse=reverse)
        return merged(in_store, on_shelf, most, reverse=reverse)

    async def search(
        self,
        topic: str,
        wanted: JobFilter,
        state: JobState | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        reverse: bool = False,
    ) -> tuple[list[JobRecord], str | None, int]:
        """As `jobs`, only those that match; and how many jobs were looked at.

        `state` is `only_state` of the filter, if it has one.

        Looks at about 10,000 jobs at most: a page may have no job and yet not be the last. With ids it looks only at
        those, partition by partition in their order. With a tag and no ids it reads the tag index in the same order,
        and looks only at jobs that have the tag.

        Raises as `jobs`.
        """
        partitions = await partitions_of(self._scripts, self._keys, self._partitions, topic)
        by_state = wanted.ids is None and wanted.tag is None
        kinds = [one.value for one in (STATES if state is None else (state,))] if by_state else ["id"]
        places = _places(kinds, partitions, reverse=reverse)
        place, score, last_id = _position(cursor, places)
        found = _Found(limit, wanted.error_group)
        for current in places[places.index(place) :]:
            partition = partitions[number_of(current)]
            if by_state:
                in_state = topic_of(current)
                ended_at = await self._search_state(
                    partition, in_state, wanted, (score, last_id), found, reverse=reverse
                )
            else:
                options = wanted.options() | ({} if state is None else {"state": state.value})
                pages = self._ids_after(partition, wanted, last_id, reverse=reverse)
                ended_at = await self._search_ids(partition, options, pages, last_id, found)
            if ended_at is not None:
                return found.jobs, write_cursor(current, *ended_at), found.looked_at
            score, last_id = "", ""
        return found.jobs, None, found.looked_at

    async def matching(self, topic: str, wanted: JobFilter, state: JobState | None = None) -> int | None:
        """How many jobs match, where that is known without looking at each of them: for delayed jobs by their due times
        alone. Else None.

        Raises TopicNotFound.
        """
        after_ms, before_ms = wanted.due_after_ms or 0, wanted.due_before_ms or _LATEST_MS
        by_times = JobFilter(due_after_ms=wanted.due_after_ms, due_before_ms=wanted.due_before_ms)
        if state is not JobState.DELAYED or wanted != by_times:
            return None
        count, calls = 0, self._shelf.calls
        for partition in await partitions_of(self._scripts, self._keys, self._partitions, topic):
            delay = self._keys.named(partition, "delay")
            async with nullcontext() if calls is None else calls.still(partition):
                count += await self._scripts.command("ZCOUNT", delay, after_ms, f"({before_ms}")
                if calls is not None:
                    times = [after_ms, max(after_ms, before_ms)]
                    before_first, before_last = await calls.counts_before(partition, times)
                    count += before_last - before_first
        return count

    async def _ids_after(
        self, partition: str, wanted: JobFilter, last_id: str, *, reverse: bool
    ) -> AsyncIterator[list[str]]:
        """The ids that a filter names, or else those with its tag, that follow `last_id` in their order."""
        if wanted.ids is not None:
            ids = sorted({*wanted.ids}, reverse=reverse)
            yield [one for one in ids if not last_id or (one < last_id if reverse else one > last_id)]
            return
        shelf, place = self._shelf.calls, (self._scripts, self._keys, partition)
        async for page in ids_with_tag(*place, wanted.tag or "", last_id, reverse=reverse, shelf=shelf):
            yield page

    async def _search_state(
        self, partition: str, state: str, wanted: JobFilter, after: Position, found: _Found, *, reverse: bool
    ) -> Position | None:
        """Search jobs in one state behind a position; returns the one at which the page is full."""
        options = wanted.options() | {"state": state} | ({"reverse": True} if reverse else {})
        more = True
        while more:
            if found.is_full():
                return after
            position = {"score": after[0], "id": after[1]} if after[0] else {}
            argument = found.page({**options, **position})

            async def in_store(argument: bytes = argument) -> tuple[JobPage, int]:
                looked_at, more, score, last_id, shelved, *rows = await self._run("search", partition, argument)
                return JobPage(_rows(rows), looked_at, (_text(score), _text(last_id)), more == 1), shelved

            page = await self._with_shelved(
                partition,
                in_store,
                after,
                wanted=wanted.on_shelf(),
                most=found.left,
                look_at=_SEARCHED,
                reverse=reverse,
            )
            found.add(partition, page)
            more = page.has_more
            after = page.end if page.end[0] else after
        return None

    async def _search_ids(
        self, partition: str, options: dict[str, Any], pages: AsyncIterator[list[str]], last_id: str, found: _Found
    ) -> tuple[str, str] | None:
        """Search jobs of these ids, which come after `last_id`; returns the position at which the page is full."""
        async for ids in pages:
            at = 0
            while at < len(ids):
                if found.is_full():
                    return "", last_id
                some = ids[at : at + _SEARCHED]
                async with self._shelf.loaded(partition, some):
                    reply = await self._run("search", partition, found.page(options), *some)
                looked_at, more, _, last, _, *rows = reply
                last_id = _text(last)
                found.add(partition, JobPage(_rows(rows), looked_at, ("", last_id), more == 1))
                at += looked_at
        return None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The conditions on a listed job. `error` must be a part of its last error, `id_prefix` the beginning of its id.

    `reason` is why it is dead, and `error_group` its normalized error, '' for none. `retrying`: it is delayed, and had
    an attempt. `ids`: it has one of these.
    """

    ids: tuple[str, ...] | None = None
    tag: str | None = None
    group: str | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    id_prefix: str | None = None
    error: str | None = None
    reason: str | None = None
    error_group: str | None = None
    retrying: bool = False

    @property
    def only_state(self) -> JobState | None:
        """The state of all jobs that can match; None: any."""
        if self.reason is not None or self.error_group is not None:
            return JobState.DEAD
        return JobState.DELAYED if self.retrying else None

    @property
    def is_empty(self) -> bool:
        """Whether it has no condition."""
        return self == JobFilter()

    def on_shelf(self) -> Wanted:
        """The same for the shelf."""
        return Wanted(
            self.due_after_ms,
            self.due_before_ms,
            self.tag,
            self.id_prefix,
            self.error,
            is_retried=self.retrying,
            group=self.group,
        )

    def options(self) -> dict[str, Any]:
        """As lua/search.lua reads it: of `error_group` a part, the rest is for the reader of the reply."""
        named = {
            "tag": self.tag,
            "group": self.group,
            "from": self.due_after_ms,
            "before": self.due_before_ms,
            "prefix": self.id_prefix,
            "error": self.error or part_of_each(self.error_group or "") or None,
            "reason": self.reason,
            "retrying": self.retrying or None,
        }
        return {name: value for name, value in named.items() if value is not None}


class _Found:
    """The jobs of one page of a search."""

    def __init__(self, limit: int, error_group: str | None = None) -> None:
        self.jobs: list[JobRecord] = []
        self.looked_at = 0
        self._error_group = error_group
        self._limit = limit
        self._bytes = 0

    def is_full(self) -> bool:
        return len(self.jobs) == self._limit or self._bytes >= _PAGE_BYTES or self.looked_at >= _MOST_LOOKED_AT

    @property
    def left(self) -> int:
        """How many more jobs it may have."""
        return self._limit - len(self.jobs)

    def page(self, options: dict[str, Any]) -> bytes:
        """The argument of lua/search.lua for what is left of the page."""
        return json_bytes({**options, "limit": self.left, "most": _SEARCHED})

    def add(self, topic: str, page: JobPage) -> None:
        """Add what was found."""
        jobs = _records(topic, page)
        self.jobs += jobs if self._error_group is None else filter(self._is_of_group, jobs)
        self._bytes += page.record_bytes
        self.looked_at += page.looked_at

    def _is_of_group(self, job: JobRecord) -> bool:
        return normalized(job.last_error or "") == self._error_group


def _rows(rows: Sequence[Any]) -> list[tuple[str, Sequence[Any]]]:
    """The jobs that lua/search.lua returns."""
    return [(rows[at].decode(), rows[at + 1 : at + 6]) for at in range(0, len(rows), 6)]


def _records(topic: str, page: JobPage) -> list[JobRecord]:
    return [read_reply(topic, job_id, fields) for job_id, fields in page.jobs]


def _places(kinds: Sequence[str], partitions: Sequence[str], *, reverse: bool) -> list[str]:
    """The parts of a list: each of `kinds` in each partition, named as partitions are: dead, dead#1, dead#2."""
    numbers = names_of("", len(partitions))
    return [kind + number for kind in kinds for number in (reversed(numbers) if reverse else numbers)]


def _position(cursor: str | None, places: Sequence[str]) -> tuple[str, str, str]:
    """The place, score and id at which a page begins. Raises InvalidInput."""
    place, score, last_id = read_cursor(cursor, (places[0], "", ""), (str, str, str))
    if place not in places or not _SCORE.fullmatch(score):
        raise bad_cursor(cursor)
    return place, score, last_id


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


STATES = (JobState.DELAYED, JobState.READY, JobState.RESERVED, JobState.DEAD, JobState.FINISHED)
"""The order in which scripts return counts by state."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as it is now: how many jobs in each state, ages in ms, settings.

    The partitions of a topic are read at about the same time, not at the same instant.

    `collections` are the jobs, and follow-ups, whose items are being collected. `shelved` of the delayed jobs are on
    the shelf. `target` is the state of a pushed topic's target.
    """

    topic: str
    counts: dict[JobState, int]
    oldest_ready_age_ms: int | None
    next_due_at_ms: int | None
    paused: bool
    settings: TopicSettings
    follow_ups: int = 0
    collections: int = 0
    shelved: int = 0
    pause: Pause | None = None
    oldest_ready_due_at_ms: int | None = None
    target: TargetState | None = None


async def get_topic(scripts: Scripts, keys: Keys, topic: str, shelf: Shelf) -> TopicView:
    """Read one topic: the sums over its partitions, the oldest and the next job of all, the settings of the first.

    Raises:
        TopicNotFound.
        StoreUnavailable: also when one of its partitions cannot be reached.
        One of UNREADABLE_SETTINGS.
    """
    known = keys.partitions.of(topic)
    if len(known) == 1:
        replies = [await _read(scripts, keys, topic)]
    else:
        replies = list(await asyncio.gather(*(_read(scripts, keys, partition) for partition in known)))
    first = replies[0]
    if first is None:
        raise TopicNotFound(topic)
    view = _view(topic, first)
    count = view.settings.partitions or 1
    if count > len(known):  # this process has not been told yet
        more = names_of(topic, count)[len(known) :]
        replies += await asyncio.gather(*(_read(scripts, keys, partition) for partition in more))
    # A partition to which the settings are still to be copied is not known yet.
    others = [_view(topic, reply) for reply in replies[1:] if reply is not None]
    view = _sum_of([view, *others]) if others else view
    return await _with_first_on_shelf(view, names_of(topic, count), shelf) if view.shelved else view


async def _with_first_on_shelf(view: TopicView, partitions: Sequence[str], shelf: Shelf) -> TopicView:
    """The view with when its next job is due, if that is on the shelf. Not if that cannot be reached: see the docs."""
    if shelf.calls is None:
        return view
    try:
        on_shelf = await asyncio.gather(*(shelf.for_page(partial(shelf.calls.first_due, one)) for one in partitions))
    except StoreUnavailable:
        return view
    dues = [due_ms for due_ms in (view.next_due_at_ms, *on_shelf) if due_ms is not None]
    return replace(view, next_due_at_ms=min(dues, default=None))


async def partitions_of(scripts: Scripts, keys: Keys, partitions: PartitionStore, topic: str) -> tuple[str, ...]:
    """The partitions of a topic, also when this process has not been told yet that it has more. Raises as get_topic.

    One call of the store, unless there are more.
    """
    reply = await _read(scripts, keys, topic)
    if reply is None:
        raise TopicNotFound(topic)
    if (_view(topic, reply).settings.partitions or 1) != partitions.known.count(topic):
        await partitions.refresh(topic)
    return partitions.known.of(topic)


async def _read(scripts: Scripts, keys: Keys, partition: str) -> list[Any] | None:
    reply: list[Any] | None = await scripts.run("topic_get", keys.of_topic(partition), (partition,))
    return reply


def _view(topic: str, reply: list[Any]) -> TopicView:
    """What was read of one partition."""
    raw_settings, *counts, oldest_due_ms, next_due_ms, now_ms, follow_ups, collections, shelved, of_target = reply
    settings = orjson.loads(raw_settings) if raw_settings else {}
    return TopicView(
        topic=topic,
        counts=dict(zip(STATES, counts, strict=True)),
        oldest_ready_age_ms=None if oldest_due_ms < 0 else max(now_ms - oldest_due_ms, 0),
        next_due_at_ms=None if next_due_ms < 0 else next_due_ms,
        paused=settings.get("p") == 1,
        settings=read_settings(settings),
        follow_ups=follow_ups,
        collections=collections,
        shelved=shelved,
        pause=pause_of(settings),
        oldest_ready_due_at_ms=None if oldest_due_ms < 0 else oldest_due_ms,
        target=TargetState.read_reply(of_target, now_ms) if "pu" in settings else None,
    )


def _sum_of(views: Sequence[TopicView]) -> TopicView:
    """The view of a topic, from the views of its partitions."""
    ages = [view.oldest_ready_age_ms for view in views if view.oldest_ready_age_ms is not None]
    oldest = [view.oldest_ready_due_at_ms for view in views if view.oldest_ready_due_at_ms is not None]
    next_due = [view.next_due_at_ms for view in views if view.next_due_at_ms is not None]
    return replace(
        views[0],
        counts={state: sum(view.counts[state] for view in views) for state in STATES},
        oldest_ready_age_ms=max(ages, default=None),
        next_due_at_ms=min(next_due, default=None),
        oldest_ready_due_at_ms=min(oldest, default=None),
        follow_ups=sum(view.follow_ups for view in views),
        collections=sum(view.collections for view in views),
        shelved=sum(view.shelved for view in views),
    )


UNREADABLE_SETTINGS = (ValueError, TypeError, AttributeError, LookupError, ValidationError)
"""What `read_settings` raises for settings that something other than deferd has written."""


def read_settings(stored: dict[str, Any]) -> TopicSettings:
    """Read stored settings, an object with the short keys of `lua/lib/topic.lua`. Raises one of UNREADABLE_SETTINGS."""
    policy = stored.get("po", {})
    if "pl" in stored:
        window, spread_ms = read_due_defaults(stored["pl"])
        policy = {**policy, "wi": window, "sp": spread_ms}
    fields = {field.name: from_store(field, policy[field.key]) for field in POLICY if field.key in policy}
    fields |= {field.name: from_store(field, stored[field.key]) for field in TOPIC if field.key in stored}
    return TopicSettings.model_validate(fields)


def settings_to_store(settings: TopicSettings) -> dict[str, Any]:
    """The object to store; empty for settings without a value."""
    stored: dict[str, Any] = {}
    policy = policy_extra(settings)
    window, spread_ms = policy.pop("wi", ""), policy.pop("sp", 0)
    if policy:
        stored["po"] = policy
    if window or spread_ms:
        stored["pl"] = json_bytes([window, spread_ms]).decode()
    for field in TOPIC:
        value = getattr(settings, field.name)
        if value is not None and value != field.default:
            stored[field.key] = to_store(field, value)
    return stored


IDS_PER_PAGE = 1000


async def ids_with_tag(
    scripts: Scripts,
    keys: Keys,
    topic: str,
    tag: str,
    after: str = "",
    *,
    reverse: bool = False,
    shelf: ShelfCalls | None = None,
) -> AsyncIterator[list[str]]:
    """The ids after `after`, page by page. A job may be gone, or without the tag, when its turn comes.

    `reverse`: the last id first; `after` is then followed by smaller ones. `shelf`: also those of jobs that are there.
    """
    while shelf is not None:
        async with shelf.still(topic):
            in_store = await anext(ids_with_tag(scripts, keys, topic, tag, after, reverse=reverse))
            on_shelf = await shelf.with_tag(topic, tag, IDS_PER_PAGE, after, reverse=reverse)
        ids = sorted({*in_store, *on_shelf}, reverse=reverse)[:IDS_PER_PAGE]
        yield ids
        if len(ids) < IDS_PER_PAGE:
            return
        after = ids[-1]
    key = keys.of_shard(keys.shard_of(topic), TAG_PREFIX + tag)
    start, end = f"({topic} {after}", f"({topic}!"  # the character after the space
    if reverse:
        start, end = f"({topic} {after}" if after else end, f"({topic} "
    async for page in scripts.pages_by_name(key, start, end, IDS_PER_PAGE, reverse=reverse):
        yield [member.partition(" ")[2] for member in page]


async def jobs_with_tag(scripts: Scripts, keys: Keys, shard: int, tag: str) -> AsyncIterator[dict[str, list[str]]]:
    """The ids of the jobs of a shard that have the tag, page by page: by partition, in order."""
    async for page in scripts.pages_by_name(keys.of_shard(shard, TAG_PREFIX + tag), "-", "+", IDS_PER_PAGE):
        by_topic: dict[str, list[str]] = {}
        for member in page:
            topic, _, job_id = member.partition(" ")
            by_topic.setdefault(topic, []).append(job_id)
        yield by_topic


async def topics_with_tag(
    scripts: Scripts, keys: Keys, shards: Sequence[int], tag: str, shelf: ShelfCalls
) -> dict[int, list[str]]:
    """By shard the partitions that have jobs with the tag, in the store or on the shelf.

    The store is asked twice: a job that it lacks at first, and the shelf then, has been loaded, and stays for HELD_S.
    Raises StoreUnavailable, also when all took longer than that.
    """

    async def in_store() -> set[str]:
        return set().union(
            *await asyncio.gather(*(_topics_with_tag_in_store(scripts, keys, shard, tag) for shard in shards))
        )

    began_at_s = monotonic()
    topics = {*await in_store(), *await shelf.topics_with_tag(tag), *await in_store()}
    if monotonic() - began_at_s > HELD_S:
        raise StoreUnavailable("the topics with a tag were found so slowly that jobs may have left the store")
    found: dict[int, list[str]] = {shard: [] for shard in shards}
    for topic in sorted(topics):
        found.get(keys.shard_of(topic), []).append(topic)
    return found


async def _topics_with_tag_in_store(scripts: Scripts, keys: Keys, shard: int, tag: str) -> set[str]:
    key, start, topics = keys.of_shard(shard, TAG_PREFIX + tag), "-", set[str]()
    while True:
        page: list[bytes] = await scripts.command("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, IDS_PER_PAGE)
        topics.update(member.decode().partition(" ")[0] for member in page)
        if len(page) < IDS_PER_PAGE:
            return topics
        start = f"({page[-1].decode().partition(' ')[0]}!"  # behind the topic: the character after the space

"""Pops by patterns: decides which of the topics that match are polled, and for which of the waiting pops.

Pops with the same patterns are a group. A waiting pop is in no wait queue of a topic that matches: a thousand of them
for each of a hundred consumers would cost more than their jobs. A group knows which of its topics may have something
ready: a search of the store says so when a pop comes and nothing is known to be ready, and the store's messages say it
while pops wait, also of topics that are new. Idle pops poll only those, in rounds: some topics each, for a share of the
jobs that they want. A topic stays among those that may have something until a poll finds nothing there.

The topics are polled in turn, in the order of their names. Each process remembers where the last patterns in use were.
Here each partition of a topic is a topic: one with several has as many turns. Patterns match the name of the topic.

Shards that cannot be reached are left out; when they are back, the topics are searched again. A pop fails when no shard
can be reached, and no topic that it names.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable, TopicPushed
from deferd.contract.limits import POP_MATCHES_MAX
from deferd.engine.queue import PopRequest
from deferd.engine.record import ENOUGH_BYTES, JobRecord, body_bytes
from deferd.engine.redis_keys import PATTERN_REQUEST
from deferd.engine.topic_search import FoundTopics, TopicSearch, TopicSelection
from deferd.engine.wait_queue import OnPopEnd, Outages, Waiter

_LOG = logging.getLogger(__name__)
_WAITERS_PER_TOPIC, _WAITERS_PER_FULL_TOPIC = 8, 128
"""How many pops poll one topic together, when there are fewer topics than pops: more if it is known to have jobs for
them."""
_TOPICS_PER_ROUND = 64
_FIRST_TOPICS = 4
"""How many topics a round polls at once until it knows how large their jobs are."""
_RETRY_S = 5.0
"""How long after the error of a single topic the topics are searched again, for those who wait."""
_TURNS_REMEMBERED = 1000
_TOPICS_REMEMBERED = 10_000


class _Report(msgspec.Struct):
    """A topic is said to have something ready: `jobs`, 0 if their number is unknown; `least` by an earlier report."""

    number: int
    jobs: int
    least: int


_NO_REPORT = _Report(0, 0, 0)


class PatternGroup:
    """The pops that wait for the same patterns, and what is known about the topics that match.

    `waiters` are in the order of their arrival. `newcomers` are those for which not all topics that match have been
    searched yet, each with the number of searches that had begun when it came: it needs a later one.

    `polls` counts the polls under way for each topic. `last` is the topic that had the last turn. `refusal` is the
    error of the last search if that found too many topics.
    """

    def __init__(self, selection: TopicSelection, last: str) -> None:
        self.selection = selection
        self.waiters: dict[Waiter, None] = {}
        self.newcomers: dict[Waiter, int] = {}
        self.polls: dict[str, int] = {}
        self.last = last
        self.refusal: InvalidInput | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.pump_is_due = False
        self.searching = False
        self.search_wanted = False
        self.searches_begun = 0
        self.searches_done = 0
        self._reports: dict[str, _Report] = {}
        self._names: list[str] = []
        self._reports_made = 0

    def report(self, topic: str, jobs: int = 0) -> None:
        """`topic` may have something ready: `jobs`, 0 if their number is unknown."""
        self._reports_made += 1
        found = self._reports.get(topic)
        if found is None:
            insort(self._names, topic)
            self._reports[topic] = _Report(self._reports_made, jobs, jobs)
        else:
            found.number, found.jobs, found.least = self._reports_made, jobs, jobs or found.least

    @property
    def has_reports(self) -> bool:
        """Whether a topic may have something ready."""
        return bool(self._names)

    def report_of(self, topic: str) -> _Report:
        """The last report of a topic; one without a number if it was dropped."""
        return self._reports.get(topic, _NO_REPORT)

    def took(self, topic: str, jobs: int) -> None:
        """Some jobs of a topic were handed out. It stays among those that may have more."""
        found = self._reports.get(topic)
        if found is not None:
            found.jobs, found.least = max(found.jobs - jobs, 0), max(found.least - jobs, 0)

    def drop(self, topic: str, number: int) -> None:
        """A poll got nothing from `topic`; if it was reported again since the report with this number, it stays."""
        if topic in self._reports and self._reports[topic].number == number:
            del self._reports[topic]
            del self._names[bisect_left(self._names, topic)]

    def topics_to_poll(self) -> Iterator[str]:
        """The topics that may have something ready and are not polled now, in turns: those after `last` first."""
        begin = bisect_right(self._names, self.last)
        for names in (self._names[begin:], self._names[:begin]):
            for name in names:
                if name not in self.polls:
                    yield name

    def idle(self) -> Iterator[Waiter]:
        """The waiters that a topic which matches may serve now, in the order of their arrival.

        Nobody is served before the first search: it knows more topics than the messages that came since.
        """
        if not self.searches_done:
            return
        for waiter in self.waiters:
            if not waiter.in_call and (waiter.stage == "waiting" or waiter in self.newcomers):
                yield waiter


class _Round(msgspec.Struct, eq=False):  # made for every pop
    """Some topics that are polled for one waiter: those still to come, each with its share of the jobs."""

    group: PatternGroup
    waiter: Waiter
    to_come: list[tuple[str, int]]
    at_once: int = _FIRST_TOPICS
    under_way: int = 0
    polled: int = 0
    store_error: StoreUnavailable | None = None


class PatternWaits:
    """The waiting pops by patterns of this process.

    `poll(topic, request, on_end)` polls a topic. `settle(waiter, error)` is called when topics that match were polled
    for a pop, or it turned out that all of them are empty: it has jobs now, or else an error, or waits from now on.
    `spawn` runs a coroutine in a task.
    """

    def __init__(
        self,
        search: TopicSearch,
        outages: Outages,
        *,
        poll: Callable[[str, PopRequest, OnPopEnd], None],
        settle: Callable[[Waiter, Exception | None], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._search = search
        self._outages = outages
        self._poll = poll
        self._settle = settle
        self._spawn = spawn
        self.groups: dict[Hashable, PatternGroup] = {}
        self._matching_groups: dict[str, tuple[PatternGroup, ...]] = {}
        self._turns: OrderedDict[Hashable, str] = OrderedDict()

    def join(self, waiter: Waiter) -> None:
        """Add a pop to those that wait, behind those with the same patterns that came before."""
        selection = waiter.selection
        assert selection is not None  # noqa: S101 (for the type checker: callers have checked it)
        group = self.groups.get(selection.key)
        if group is None:
            group = self.groups[selection.key] = PatternGroup(selection, self._turns.pop(selection.key, ""))
            self._matching_groups.clear()
        group.waiters[waiter] = None
        waiter.group = group

    def leave(self, waiter: Waiter) -> None:
        """Remove a pop. Rounds under way for it go on: what they take is returned."""
        group: PatternGroup = waiter.group
        key = group.selection.key
        group.waiters.pop(waiter, None)
        group.newcomers.pop(waiter, None)
        if not group.waiters and self.groups.get(key) is group:
            del self.groups[key]
            self._matching_groups.clear()
            if group.retry is not None:
                group.retry.cancel()
            self._turns[key] = group.last
            if len(self._turns) > _TURNS_REMEMBERED:
                self._turns.popitem(last=False)

    def seek(self, waiter: Waiter) -> None:
        """Find jobs for a pop that has just come; `settle` follows."""
        group: PatternGroup = waiter.group
        group.newcomers[waiter] = group.searches_begun
        self._pump_soon(group)

    def on_idle(self, waiter: Waiter) -> None:
        """A call for a pop that waits has ended: topics that were reported meanwhile may serve it."""
        group: PatternGroup = waiter.group
        if group.has_reports:
            self._pump_soon(group)

    def may_serve(self, waiter: Waiter) -> bool:
        """Whether the pop has patterns, and a topic that matches may be reached."""
        return waiter.selection is not None and bool(self._shards_up())

    def on_ready(self, topic: str) -> None:
        """`topic` may have something ready."""
        if not self.groups:
            return
        groups = self._matching_groups.get(topic)
        if groups is None:
            if len(self._matching_groups) >= _TOPICS_REMEMBERED:
                self._matching_groups.clear()
            groups = tuple(group for group in self.groups.values() if group.selection.match(topic))
            self._matching_groups[topic] = groups
        for group in groups:
            group.report(topic)
            self._pump_soon(group)

    def search_again(self) -> None:
        """Topics may have something ready of which no message came."""
        for group in self.groups.values():
            self._want_search(group)

    def on_outage_failure(self, error: Exception) -> None:
        """A part of the store can still not be reached."""
        if not self._shards_up():
            for group in list(self.groups.values()):
                self._fail_waiters(group, error)

    async def earlier_requests(self, selection: TopicSelection, request: PopRequest) -> dict[str, PopRequest]:
        """The request for each topic of which an earlier response to it may hold jobs, as far as they can be reached.

        Raises the error of one shard when none can be reached.
        """
        shards = self._shards_up() or self._search.shards
        topics, errors = await self._search.served(request.request_id or "", selection, shards)
        self._note_errors(errors)
        if len(errors) == len(shards):
            raise next(iter(errors.values()))
        return dict.fromkeys(topics, _of_patterns(request))

    def _shards_up(self) -> list[int]:
        search = self._search
        return [shard for shard in search.shards if not self._outages.is_down(search.failure_domain(shard))]

    def _other_shards_up(self) -> bool:
        """Whether there may be topics that can be reached, after the store was unavailable for one."""
        return self._search.by_shard and bool(self._shards_up())

    def _note_errors(self, errors: Mapping[int, Exception]) -> None:
        for shard, error in errors.items():
            self._outages.note(self._search.failure_domain(shard), error, partial(self._search.probe, shard))

    def _fail_waiters(self, group: PatternGroup, error: Exception) -> None:
        """No topic that matches can be reached: fail the pops none of whose named topics can be reached either."""
        for waiter in list(group.waiters):
            if not waiter.in_call and not _names_others(waiter):
                self._settle(waiter, error)

    # Rounds of polls

    def _pump_soon(self, group: PatternGroup) -> None:
        """Once for all pops that come, and all rounds that end, in a turn of the event loop: it looks at every pop."""
        if not group.pump_is_due:
            group.pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump, group)

    def _pump(self, group: PatternGroup) -> None:
        """Give topics that may have something ready to idle pops; settle newcomers when there are none."""
        group.pump_is_due = False
        is_down = self._outages.is_topic_down
        topics = list(islice((name for name in group.topics_to_poll() if not is_down(name)), _TOPICS_PER_ROUND))
        if topics:
            self._begin_rounds(group, topics)
        for waiter in self._searched_newcomers(group):
            if group.refusal is not None:
                self._settle(waiter, group.refusal)
            elif not group.polls:
                del group.newcomers[waiter]
                self._settle(waiter, None)

    def _searched_newcomers(self, group: PatternGroup) -> list[Waiter]:
        """The idle newcomers that came before the last search; for those that came later there will be another one."""
        searched = []
        for waiter, searches_begun in group.newcomers.items():
            if waiter.in_call:
                continue
            if group.searches_done <= searches_begun:
                self._want_search(group)
                break  # those behind it came later still
            searched.append(waiter)
        return searched

    def _begin_rounds(self, group: PatternGroup, topics: Sequence[str]) -> None:
        """Give idle pops some topics each or, if they are more than the topics, each topic to some of them."""
        idle = group.idle()
        first = list(islice(idle, len(topics) * _WAITERS_PER_TOPIC))
        for at, waiter in enumerate(first):
            self._begin_round(group, waiter, topics[at :: len(first)] or [topics[at % len(topics)]])
        for at, topic in enumerate(topics):
            jobs_left = group.report_of(topic).least - sum(waiter.missing for waiter in first[at :: len(topics)])
            while jobs_left > 0 and group.polls.get(topic, 0) < _WAITERS_PER_FULL_TOPIC:
                further = next(idle, None)
                if further is None:
                    return
                self._begin_round(group, further, [topic])
                jobs_left -= further.missing

    def _begin_round(self, group: PatternGroup, waiter: Waiter, topics: Sequence[str]) -> None:
        waiter.in_call = True
        topics = topics[: waiter.missing]
        shares = _shares(waiter.missing, [group.report_of(topic).jobs for topic in topics])
        for topic in topics:
            group.polls[topic] = group.polls.get(topic, 0) + 1
        self._poll_next(_Round(group, waiter, list(zip(topics, shares, strict=True))))

    def _poll_next(self, polls: _Round) -> None:
        group, waiter = polls.group, polls.waiter
        now, polls.to_come = polls.to_come[: polls.at_once], polls.to_come[polls.at_once :]
        polls.under_way = len(now)
        polls.polled += len(now)
        request = waiter.request if waiter.request.request_id is None else _of_patterns(waiter.request)
        for topic, share in now:
            on_end = partial(self._on_polled, polls, topic, group.report_of(topic).number)
            self._poll(topic, request if share == request.count else replace(request, count=share), on_end)
        group.last = now[-1][0]

    def _on_polled(
        self, polls: _Round, topic: str, report: int, jobs: list[JobRecord], error: Exception | None
    ) -> None:
        group, waiter = polls.group, polls.waiter
        polls.under_way -= 1
        _release(group, topic)
        if not jobs:
            group.drop(topic, report)
        if error is not None:
            if isinstance(error, StoreUnavailable):
                polls.store_error = error
            elif not isinstance(error, TopicPushed):  # patterns leave out pushed topics
                self._search_later(group)
        elif jobs:
            waiter.jobs += jobs
            group.took(topic, len(jobs))
        if not polls.under_way:
            self._go_on(polls)
        elif group.report_of(topic).number:  # other pops need not wait for the end of this round
            self._pump_soon(group)

    def _go_on(self, polls: _Round) -> None:
        """Poll the next topics of a round, or end it."""
        group, waiter = polls.group, polls.waiter
        room = ENOUGH_BYTES - body_bytes(waiter.jobs)
        if polls.to_come and waiter.missing > 0 and room > 0 and waiter.stage != "cancelled":
            bytes_each = body_bytes(waiter.jobs) / polls.polled
            polls.at_once = max(int(min(room / max(bytes_each, 1), 4 * polls.at_once)), 1)
            self._poll_next(polls)
            return
        for topic, _ in polls.to_come:
            _release(group, topic)
        waiter.in_call = False
        error = None if waiter.stage == "cancelled" or waiter.jobs or _names_others(waiter) else polls.store_error
        if error is not None and not self._other_shards_up():
            self._settle(waiter, error)
        elif waiter.jobs or waiter not in group.newcomers:  # else further topics are polled for it, or searched
            self._settle(waiter, None)
        self._pump_soon(group)

    # Searches

    def _want_search(self, group: PatternGroup) -> None:
        group.search_wanted = True
        if not group.searching:
            group.searching = True
            self._spawn(self._search_while_wanted(group))

    def _search_later(self, group: PatternGroup) -> None:
        if group.retry is None and group.waiters:
            group.retry = asyncio.get_running_loop().call_later(_RETRY_S, self._on_retry, group)

    def _on_retry(self, group: PatternGroup) -> None:
        group.retry = None
        self._want_search(group)

    async def _search_while_wanted(self, group: PatternGroup) -> None:
        try:
            while group.search_wanted and group.waiters:
                group.search_wanted = False
                shards = self._shards_up()
                if not shards:  # the outage's next probe fails the pops, or its end brings a search
                    for shard in self._search.shards:
                        self._outages.probe_now(self._search.failure_domain(shard))
                    break
                group.searches_begun += 1
                found = await self._search.ready(group.selection, shards)
                self._note_errors(found.errors)
                self._on_found(group, found)
                if len(found.errors) == len(shards):
                    self._fail_waiters(group, next(iter(found.errors.values())))
                self._pump(group)
        except Exception as error:  # noqa: BLE001 (no error may leave anybody waiting)
            _LOG.exception("the search for topics that match patterns failed")
            for waiter in [one for one in group.newcomers if not one.in_call]:
                self._settle(waiter, error)
            self._search_later(group)  # for those who wait: messages may have been lost
        finally:
            group.searching = False

    def _on_found(self, group: PatternGroup, found: FoundTopics) -> None:
        group.searches_done = group.searches_begun
        group.refusal = _refusal(group.selection, found)
        for topic, jobs in found.ready.items():
            group.report(topic, jobs)
        if group.refusal is not None:
            for waiter in [one for one, begun in group.newcomers.items() if begun < group.searches_done]:
                if not waiter.in_call:
                    self._settle(waiter, group.refusal)
        if any(not isinstance(error, StoreUnavailable) for error in found.errors.values()):
            self._search_later(group)


def _names_others(waiter: Waiter) -> bool:
    """Whether the pop also names topics that may be reached."""
    return len(waiter.failed_topics) < len(waiter.topics)


def _of_patterns(request: PopRequest) -> PopRequest:
    """The request as it is sent to topics that match patterns; see lib/topic.lua."""
    return replace(request, request_id=f"{PATTERN_REQUEST}{request.request_id}")


def _release(group: PatternGroup, topic: str) -> None:
    polls = group.polls.pop(topic) - 1
    if polls:
        group.polls[topic] = polls


def _shares(wanted: int, ready: Sequence[int]) -> list[int]:
    """How many jobs to ask each topic for: equal shares, of which topics with few jobs leave what they cannot use.

    `ready` are their numbers of ready jobs, 0 if unknown; there are at most `wanted` topics.
    """
    if len(ready) == 1:
        return [min(ready[0] or wanted, wanted)]
    shares = [0] * len(ready)
    order = sorted(range(len(ready)), key=lambda at: ready[at] or wanted)
    for done, at in enumerate(order):
        equal = -(-wanted // (len(order) - done))
        shares[at] = min(ready[at] or equal, equal)
        wanted -= shares[at]
    return shares


def _refusal(selection: TopicSelection, found: FoundTopics) -> InvalidInput | None:
    matching = found.matching + len(selection.names)
    if matching <= POP_MATCHES_MAX:
        return None
    number = f"{matching} topics" if found.is_complete else f"at least {matching} topics"
    message = f"names or matches {number}, but a pop is of at most {POP_MATCHES_MAX}: use narrower patterns"
    return InvalidInput([FieldError(("path", "topic"), message, matching)])

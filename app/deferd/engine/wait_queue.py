"""The wait queue of one topic, with its waiting pops in the order of their arrival, and outages of the store.

For all topics together, it also says which pops wait and which queues are polled first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from deferd.contract.errors import StoreUnavailable
from deferd.engine import metrics
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.topic_search import TopicSelection
from deferd.store.task_cancellation import cancel_and_wait

_JOBS_PER_CALL = 500
"""A single waiter may request more."""
_NEWCOMERS_PER_CALL = 128
_WAITING_PER_CALL = 16
"""How many waiters that have already found the topic empty join one store call."""
_LOOKS_AT_ONCE = 32
_LATELY_READY_MAX = 1000
OnPopEnd = Callable[[list[JobRecord], Exception | None], None]
"""Called once, with the jobs or with an error and no jobs."""


Stage = Literal["topics", "patterns", "waiting", "ended", "cancelled"]
"""How far a pop is. Only the dispatcher moves it on.

`topics`: the topics that it names are polled one after the other, now `topics[at]`; no other may serve it.
`patterns`: PatternWaits polls the topics that match its patterns, for the first time.
`waiting`: each was polled, or cannot be reached; whichever has a job first serves it.
`ended`: it has left its queues, with a result. `cancelled`: jobs that are popped for it are returned.
"""


class Waiter(msgspec.Struct, eq=False):  # made for every pop, in a third of a dataclass's time
    """One pop that waits; it is in the queue of each topic that it names, and in the group of its patterns."""

    number: int
    topics: Sequence[str]
    request: PopRequest
    on_end: OnPopEnd
    waits_until_s: float | None
    """On the monotonic clock. None when it does not wait, or not any longer: it ends once it was polled for."""
    selection: TopicSelection | None = None
    """The topics that its patterns match; see PatternWaits."""
    group: Any = None
    """Set by PatternWaits while the pop waits there."""
    may_have_deliveries: bool = False
    """Its request id may still hold jobs of an earlier response; they have not been looked up yet."""
    stage: Stage = "topics"
    at: int = 0
    """The index of the topic that is polled in the stage `topics`."""
    in_call: bool = False
    """A store call for it is under way, made by the party that set this; nobody else makes one until then."""
    was_polled: bool = False
    """At least one of its topics could be reached: it may end without jobs."""
    timer: asyncio.TimerHandle | None = None
    """Set only once it has to wait, since most pops end before."""
    failed_topics: set[str] = set()
    """Topics that could not be polled since it came."""
    skipped_topics: set[str] = set()
    """Topics that are polled once no call for it is under way: they became ready while no waiter could be served by
    them, or they are pushed."""
    jobs: list[JobRecord] = []

    def may_be_served_by(self, topic: str) -> bool:
        """Whether a poll of `topic` may include it now."""
        if self.in_call:
            return False
        return self.topics[self.at] == topic if self.stage == "topics" else self.stage == "waiting"

    @property
    def missing(self) -> int:
        """How many jobs it still wants."""
        return self.request.count - len(self.jobs)

    @property
    def has_other_topics(self) -> bool:
        """Whether it waits for more than one topic."""
        return len(self.topics) > 1 or self.selection is not None

    def remaining_request(self) -> PopRequest:
        """Its request without the jobs that it has already."""
        return replace(self.request, count=self.missing) if self.jobs else self.request


class WaitQueue:
    """The waiters of a topic in the order of their arrival; `newcomers` are those not polled for yet.

    `dirty`: the topic must be polled again. `polling`: a task does so. `failing`: its last poll failed, and `retry`
    polls it again. `is_look`: see FirstLooks.
    """

    __slots__ = ("dirty", "failing", "failure_domain", "is_look", "newcomers", "polling", "retry", "topic", "waiters")

    def __init__(self, topic: str, failure_domain: int) -> None:
        self.topic = topic
        self.failure_domain = failure_domain
        self.waiters: dict[Waiter, None] = {}
        self.newcomers: dict[Waiter, None] = {}
        self.dirty = False
        self.polling = False
        self.failing = False
        self.retry: asyncio.TimerHandle | None = None
        self.is_look = False

    def join(self, waiter: Waiter) -> None:
        """Add a waiter, as a newcomer."""
        self.waiters[waiter] = self.newcomers[waiter] = None

    def note_polled(self, waiter: Waiter) -> None:
        """The waiter has been polled for: it is no newcomer any more."""
        self.newcomers.pop(waiter, None)

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter."""
        self.newcomers.pop(waiter, None)
        self.waiters.pop(waiter, None)

    def choose(self) -> dict[Waiter, PopRequest]:
        """The requests of the next store call, in the order of arrival, so that nobody overtakes.

        For newcomers that must wait for a later call, the call only looks up the jobs of earlier responses.

        Without any, those that are busy with other topics have the topic polled once they are not. Else the call finds
        out whether it has something left for them: with two calls under way, of two topics, each would cause the other.
        """
        chosen: dict[Waiter, PopRequest] = {}
        busy: list[Waiter] = []
        jobs = newcomers = waiting = 0
        for waiter in self.waiters:
            if not waiter.may_be_served_by(self.topic):
                if not chosen:
                    busy.append(waiter)
                continue
            is_new = waiter in self.newcomers
            newcomers, waiting = newcomers + is_new, waiting + (not is_new)
            jobs += waiter.missing
            if newcomers > _NEWCOMERS_PER_CALL or waiting > _WAITING_PER_CALL or (chosen and jobs > _JOBS_PER_CALL):
                break
            chosen[waiter] = waiter.remaining_request()
        if not chosen:
            for waiter in busy:
                waiter.skipped_topics.add(self.topic)
            return chosen
        most = len(chosen) + _NEWCOMERS_PER_CALL
        for waiter in self.newcomers:
            if len(chosen) == most:
                break
            if waiter.may_have_deliveries and waiter not in chosen and waiter.may_be_served_by(self.topic):
                chosen[waiter] = replace(waiter.request, count=0)
        return chosen


class WaitingPops:
    """The pops that have not ended, in the order of their arrival.

    The metric of their number follows once for each turn of the event loop: most pops end within two.
    """

    __slots__ = ("_is_changed", "_waiters")

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}
        self._is_changed = False

    @property
    def count(self) -> int:
        """The number of waiting pops."""
        return len(self._waiters)

    def all(self) -> list[Waiter]:
        """All waiting pops."""
        return list(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """The pop has come."""
        self._waiters[waiter] = None
        self._show_later()

    def remove(self, waiter: Waiter) -> None:
        """The pop has ended."""
        del self._waiters[waiter]
        self._show_later()

    def _show_later(self) -> None:
        if not self._is_changed:
            self._is_changed = True
            asyncio.get_running_loop().call_soon(self._show)

    def _show(self) -> None:
        self._is_changed = False
        metrics.WAITING_POPS.set(len(self._waiters))


class FirstLooks:
    """Which topics are polled now, when pops wait for very many topics that must be polled at once.

    A topic that had something ready lately is polled at once. Unknown topics are polled a few at a time, in order of
    arrival, so that calls for the known ones do not wait behind thousands of them. `begin` is called with a queue whose
    turn has come.
    """

    def __init__(self, begin: Callable[[WaitQueue], None]) -> None:
        self._begin = begin
        self._under_way = 0
        self._waiting: dict[WaitQueue, None] = {}
        self.lately_ready: dict[str, None] = {}

    def note_ready(self, topic: str) -> None:
        """The topic has something ready."""
        self.lately_ready.pop(topic, None)
        self.lately_ready[topic] = None
        if len(self.lately_ready) > _LATELY_READY_MAX:
            del self.lately_ready[next(iter(self.lately_ready))]

    def request(self, queue: WaitQueue) -> None:
        """Begin to poll for the queue now, or when its turn comes."""
        queue.is_look = queue.topic not in self.lately_ready
        if queue.is_look and self._under_way >= _LOOKS_AT_ONCE:
            self._waiting[queue] = None
            return
        self.forget(queue)
        self._under_way += queue.is_look
        self._begin(queue)

    def end(self, queue: WaitQueue) -> None:
        """The queue was polled once, or is not polled any more; if it was a first look, the next ones begin."""
        if not queue.is_look:
            return
        queue.is_look = False
        self._under_way -= 1
        while self._waiting and self._under_way < _LOOKS_AT_ONCE:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._under_way += 1
            following.is_look = True
            self._begin(following)

    def forget(self, queue: WaitQueue) -> None:
        """Nobody waits for the queue any more."""
        self._waiting.pop(queue, None)


RETRY_S = 0.5
"""The pause after a failed probe, unless `probe_now` cuts it short."""


class Outage:
    """The outage of a shard: calls `probe`, one at a time, until it no longer raises StoreUnavailable; then `on_end`.

    `on_failure` is called with the error of each failed probe.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        on_failure: Callable[[StoreUnavailable], None],
        on_end: Callable[[], None],
    ) -> None:
        self._probe = probe
        self._on_failure = on_failure
        self._on_end = on_end
        self._probe_requested = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="deferd-outage")

    def probe_now(self) -> None:
        """Send the next probe without waiting any longer."""
        self._probe_requested.set()

    async def end(self) -> None:
        """Stop probing; `on_end` is not called."""
        await cancel_and_wait({self._task})

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._probe_requested.wait()
            self._probe_requested.clear()
            try:
                await self._probe()
            except StoreUnavailable as error:
                self._on_failure(error)
            except Exception:  # noqa: BLE001 (the shard can be reached; the next call raises what is wrong)
                break
            else:
                break
        self._on_end()


class Outages:
    """The failure domains that cannot be reached now: shards of a cluster, or else the whole store.

    `domain_of` maps a topic to its domain. `on_failure` is called with the domain and the error of each failed probe,
    `on_end` with a domain that is back.
    """

    def __init__(
        self,
        domain_of: Callable[[str], int],
        *,
        on_failure: Callable[[int, StoreUnavailable], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.domain_of = domain_of
        self._on_failure = on_failure
        self._on_end = on_end
        self._outages: dict[int, Outage] = {}
        self._begin_no_more = False

    def is_down(self, domain: int) -> bool:
        """Whether the domain cannot be reached."""
        return domain in self._outages

    def is_topic_down(self, topic: str) -> bool:
        """Whether the topic's domain cannot be reached."""
        return bool(self._outages) and self.domain_of(topic) in self._outages

    def note(self, domain: int, error: Exception, probe: Callable[[], Awaitable[object]]) -> None:
        """A call failed: if the store is unavailable, so is this domain until a `probe` succeeds."""
        if isinstance(error, StoreUnavailable) and domain not in self._outages and not self._begin_no_more:
            self._outages[domain] = Outage(
                probe, on_failure=partial(self._on_failure, domain), on_end=partial(self._end, domain)
            )

    def probe_now(self, domain: int) -> None:
        """If the domain is down, test now whether it is back."""
        outage = self._outages.get(domain)
        if outage is not None:
            outage.probe_now()

    def probe_topic_now(self, topic: str) -> None:
        """As `probe_now`, for the topic's domain."""
        self.probe_now(self.domain_of(topic))

    def drain(self) -> None:
        """From now on errors begin no outage, so that nobody waits for its end."""
        self._begin_no_more = True

    async def close(self) -> None:
        """Stop all probing."""
        outages = list(self._outages.values())
        self._outages.clear()
        for outage in outages:
            await outage.end()

    def _end(self, domain: int) -> None:
        self._outages.pop(domain, None)
        self._on_end(domain)

"""Fetches jobs: pops as many as the worker has room for, one pop at a time, by the priority of their topics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from deferd.client import AsyncClient, Delivery
from deferd.client.job_requests import new_id
from deferd.client.sender import RetryPolicy
from deferd.contract.errors import DeferdError, InvalidInput, TopicPushed
from deferd.contract.limits import POP_COUNT_MAX, WAIT_DEFAULT_S
from deferd.contract.topic_patterns import is_pattern
from deferd.worker.log import LOG, FailureLog

_RETRY = RetryPolicy(heeds_proxies=False)
_LONG_POLL_S = 0.5
"""A pop without a response after this time found nothing ready and waits: it can be cancelled."""
_LAST_POP_S = 2.0
"""How long a stop waits for the repetition of a pop that has no response."""
_PUSHED_S = 30.0
"""How long a pushed topic is left out of the pops."""
Priority = Literal["strict"] | Sequence[str] | Mapping[str, float]
TopicOrder = Callable[[], Sequence[str]]


class _Pop(NamedTuple):
    """What a pop asks for. Repeated with its `request_id`, it returns the same jobs."""

    topics: Sequence[str]
    most: int
    request_id: str


class Fetcher:
    """Pops jobs while there is room.

    `room` returns for how many jobs there is room; after a 0 it is called again when `room_changed` is. `take` gets the
    jobs of a pop, and whether their leases may have begun some time ago.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        order: TopicOrder,
        consumer: str,
        room: Callable[[], int],
        take: Callable[[list[Delivery], bool], None],
    ) -> None:
        self._client = client
        self._order = order
        self._consumer = consumer
        self._room = room
        self._take = take
        self._room_changed = asyncio.Event()
        self._failures = FailureLog("fetching jobs")
        self._pushed: dict[str, float] = {}
        """The topics whose jobs are pushed, and when to pop them again."""
        self._stopping = False
        self._pop_began_s = float("-inf")
        self._unanswered: _Pop | None = None
        """The pop that may have taken jobs, while its response is missing."""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Start fetching. The task ends after `stop`, or with an error that no retry can fix."""
        self._task = asyncio.create_task(self._run())
        return self._task

    def room_changed(self) -> None:
        """There may be room now."""
        self._room_changed.set()

    async def stop(self, within_s: float) -> None:
        """Stop fetching. Jobs that a pop under way returns at once are still taken, so they can be returned.

        A pop that waits, or has no response within `within_s`, is cancelled. Jobs may be on the way in its response, so
        it is repeated without a wait, for 2 s at most, and its jobs are taken as well.
        """
        self._stopping = True
        if self._task is None:
            return
        if (left_s := self._pop_began_s + _LONG_POLL_S - self._loop.time()) > 0:
            await asyncio.wait({self._task}, timeout=min(left_s, within_s))
        self._task.cancel()
        await asyncio.wait({self._task})
        if self._unanswered is not None and (jobs := await self._last_jobs(self._unanswered)):
            self._take(jobs, True)

    async def _last_jobs(self, pop: _Pop) -> list[Delivery]:
        """The jobs of a pop that was cancelled. None if the service does not respond: they return with their leases."""
        try:
            async with asyncio.timeout(_LAST_POP_S):
                return await self._send(pop, wait_s=0)
        except (DeferdError, TimeoutError) as error:
            reason = str(error) or "no response in time"
            LOG.warning("jobs of the last pop may stay reserved until their leases end: %s", reason)
            return []

    async def _send(self, pop: _Pop, wait_s: float) -> list[Delivery]:
        return await self._client.pop(
            pop.topics, count=pop.most, wait=wait_s, consumer=self._consumer, request_id=pop.request_id
        )

    async def _run(self) -> None:
        quick_empty_pops = 0
        while not self._stopping:
            count = min(self._room(), POP_COUNT_MAX)
            if count <= 0:
                self._room_changed.clear()
                await self._room_changed.wait()
                continue
            began_s = self._loop.time()
            jobs, old = await self._pop(count)
            if jobs:
                self._take(jobs, old)
            elif self._loop.time() - began_s < _LONG_POLL_S:
                # The service is shutting down and lets no pop wait.
                await asyncio.sleep(_RETRY.pause_s(quick_empty_pops))
                quick_empty_pops += 1
                continue
            quick_empty_pops = 0

    async def _pop(self, count: int) -> tuple[list[Delivery], bool]:
        """The jobs of one pop, and whether an earlier response to it was lost."""
        pop, failures = _Pop(await self._topics(), count, new_id()), 0
        while True:
            self._pop_began_s, self._unanswered = self._loop.time(), pop
            try:
                jobs = await self._send(pop, self._wait_s())
            except InvalidInput:  # the same call will not succeed later
                self._unanswered = None
                raise
            except TopicPushed as error:
                self._unanswered = None
                self._leave_out(error.topic)
                pop = _Pop(await self._topics(), count, new_id())
            except DeferdError as error:
                self._failures.failed(error)
                if self._stopping:
                    return [], True
                self._pop_began_s = float("-inf")
                await asyncio.sleep(_RETRY.pause_s(failures, error))
                failures += 1
            else:
                self._unanswered = None
                self._failures.succeeded()
                self._are_not_pushed(pop.topics)
                return jobs, failures > 0

    async def _topics(self) -> Sequence[str]:
        """The topics of the next pop, without pushed ones; waits while all of them are pushed."""
        while True:
            order, now_s = self._order(), self._loop.time()
            if not self._pushed:
                return order
            if topics := [topic for topic in order if self._pushed.get(topic, now_s) <= now_s]:
                return topics
            self._pop_began_s = float("-inf")  # nothing to wait for at a stop
            await asyncio.sleep(min(self._pushed.values()) - now_s)

    def _wait_s(self) -> float:
        """How long a pop may wait: until a topic that is left out must be popped again."""
        again_s = min(self._pushed.values(), default=float("inf"))
        return min(max(again_s - self._loop.time(), _LONG_POLL_S), WAIT_DEFAULT_S)

    def _leave_out(self, topic: str) -> None:
        if topic not in self._pushed:
            text = "the jobs of topic %r are pushed, so this worker gets none; it asks again every %g s"
            LOG.warning(text, topic, _PUSHED_S, extra={"topic": topic})
        self._pushed[topic] = self._loop.time() + _PUSHED_S

    def _are_not_pushed(self, topics: Sequence[str]) -> None:
        for topic in self._pushed.keys() & set(topics) if self._pushed else ():
            del self._pushed[topic]
            LOG.info("the jobs of topic %r are not pushed any more", topic, extra={"topic": topic})


def topic_order(priority: Priority, topics: Sequence[str]) -> TopicOrder:
    """A function that returns the order of the topics for each pop: the first with a ready job is served first.

    `strict`: always that of `topics`. A sequence: the topics that it names first, in its order. A mapping of weights:
    drawn at random for each pop, so that a topic of weight 3 precedes one of weight 1 three times in four; the default
    weight is 1. Patterns come last: the service serves the topics that match after all that are named.

    Raises:
        ValueError: a named topic is not in `topics`, is a pattern or is named twice, or a weight is not above 0.
    """
    patterns = tuple(topic for topic in topics if is_pattern(topic))
    if patterns:
        order = topic_order(priority, [topic for topic in topics if not is_pattern(topic)])
        return lambda: (*order(), *patterns)
    if isinstance(priority, Mapping):
        _check_known(priority, topics)
        for topic, weight in priority.items():
            if not 0 < weight < float("inf"):
                raise ValueError(f"the weight of topic {topic!r} must be a number above 0, not {weight!r}")
        return _weighted([(topic, float(priority.get(topic, 1))) for topic in topics])
    if isinstance(priority, str):
        if priority != "strict":
            raise ValueError(f"the priority is 'strict', a list of topics or a mapping of weights, not {priority!r}")
        fixed = tuple(topics)
    else:
        _check_known(priority, topics)
        if len(set(priority)) < len(priority):
            raise ValueError(f"the priority names a topic twice: {', '.join(priority)}")
        fixed = (*priority, *(topic for topic in topics if topic not in priority))
    return lambda: fixed


def _check_known(named: Mapping[str, float] | Sequence[str], topics: Sequence[str]) -> None:
    patterns = [topic for topic in named if is_pattern(topic)]
    if patterns:
        text = "the priority names patterns, whose topics always take turns after all others: "
        raise ValueError(text + ", ".join(map(repr, patterns)))
    unknown = [topic for topic in named if topic not in topics]
    if unknown:
        raise ValueError(f"the priority names topics that have no handler: {', '.join(map(repr, unknown))}")


def _weighted(weights: Sequence[tuple[str, float]]) -> TopicOrder:
    def draw() -> Sequence[str]:
        # Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006: each topic draws an exponentially
        # distributed time with its weight as the rate, and the topics are sorted by it.
        arrivals = [(random.expovariate(weight), topic) for topic, weight in weights]
        return [topic for _, topic in sorted(arrivals)]

    return draw

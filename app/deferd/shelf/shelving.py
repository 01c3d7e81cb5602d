"""When jobs go to the shelf and come back; `Mover` moves them.

Jobs due later than `after_ms` from now go to the shelf, and those due within half of that come back. So a job that has
come back stays, and one that has just gone out has time to come back. All times are the store's.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import islice
from math import inf
from time import monotonic

from deferd.contract.errors import StoreUnavailable
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.store_clock import StoreClock
from deferd.shelf.moving import Mover
from deferd.shelf.rows import IN, OUT

_log = logging.getLogger("deferd.shelf")

PAUSE_S = 1.0
"""The longest time between two looks for jobs that are to come back, and between two scans for those to go out."""
RETRY_S = 0.25
"""The pause after jobs could not come back: by so much they are late when an error is over."""
PAUSE_PER_SCAN = 10
"""How much longer than a scan the pause after it is at least: a scan reads the names of all topics."""
LONGEST_REST_S = 60.0
"""The longest time for which a topic is left alone whose jobs stay."""
_TOPICS_PER_CALL = 250
_BATCHES_PER_TURN = 4
_LEAVING_TOGETHER = 500
"""Jobs of a batch out: the store takes some 2 ms to read them, and 2 ms to remove them."""
_GENTLE_S, _GENTLY_TOGETHER, _GENTLE_PAUSES = 2.0, 100, 2
"""When jobs begin to leave, batches are smaller for so long, with a pause after each of so many times what it took:
calls hardly wait for the store. In usual use all have left by then. If there are more, they leave as fast as they can.
"""
_FIRSTS_PER_LOOK = 1000
_OUTDATED_MAX = 1000
_REASONS_LOGGED = 20
_RATE_S = 10
_EVER_MS = 1 << 53
"""Later than any job is due."""


class Failures:
    """Logs why jobs cannot be moved: each reason once, until everything works again."""

    def __init__(self) -> None:
        self._failing: set[str] = set()
        self._logged: set[str] = set()

    def note(self, what: str, error: StoreUnavailable) -> None:
        """It fails."""
        self._failing.add(what)
        reason = str(error)
        if reason not in self._logged and len(self._logged) < _REASONS_LOGGED:
            self._logged.add(reason)
            _log.error("jobs cannot be moved to the shelf or back: %s; trying again", reason)

    def clear(self, what: str) -> None:
        """It works."""
        self._failing.discard(what)
        if self._logged and not self._failing:
            self._logged.clear()
            _log.info("jobs are moved to the shelf and back again")


@dataclass
class _Turn:
    """A topic that jobs leave. `stayed`: how many were looked at and did not leave."""

    topic: str
    left: int = 0
    stayed: int = 0


class _Leaving:
    """Moves jobs out. Topics take turns."""

    def __init__(self, shelving: Shelving, after_ms: int, wait_s: float) -> None:
        self._shelving = shelving
        self._after_ms = after_ms
        self._scan_at_s = monotonic() + wait_s
        self._turns: deque[_Turn] = deque()
        self._gentle_until_s = 0.0
        self._rests: dict[str, tuple[float, float]] = {}
        """By topic: until when it is left alone, and for how long."""

    async def run(self) -> None:
        while True:
            try:
                if monotonic() >= self._scan_at_s:
                    await self._scan()
                    self._shelving.failures.clear("scan")
            except StoreUnavailable as exc:
                self._shelving.failures.note("scan", exc)
                self._scan_at_s = monotonic() + PAUSE_S
            if not self._turns:
                await asyncio.sleep(max(self._scan_at_s - monotonic(), 0.0))
                continue
            turn = self._turns.popleft()
            try:
                may_go_on = await self._take(turn)
            except StoreUnavailable as exc:
                self._shelving.failures.note(f"{OUT} {turn.topic}", exc)
                self._rests[turn.topic] = monotonic() + PAUSE_S, PAUSE_S
                continue
            self._shelving.failures.clear(f"{OUT} {turn.topic}")
            if may_go_on:
                self._turns.append(turn)
            else:
                self._end(turn)

    async def _scan(self) -> None:
        began_s = monotonic()
        found: set[str] = set()
        keys = self._shelving.keys
        for shard in range(keys.shards):
            start = "-"
            while start:
                args = (start, _TOPICS_PER_CALL, self._after_ms)
                last, *names = await self._shelving.scripts.run("shelve_topics", [keys.of_shard(shard, "topics")], args)
                found.update(name.decode() for name in names)
                start = f"({last.decode()}" if last else ""
        now_s = monotonic()
        self._scan_at_s = now_s + max(PAUSE_S, (now_s - began_s) * PAUSE_PER_SCAN)
        for topic in self._rests.keys() - found:
            del self._rests[topic]
            self._shelving.failures.clear(f"{OUT} {topic}")
        taken = {turn.topic for turn in self._turns}
        resting = {topic for topic, (until_s, _) in self._rests.items() if until_s > now_s}
        if not taken and not self._rests:  # else jobs may have waited for long
            self._gentle_until_s = now_s + _GENTLE_S
        self._turns.extend(_Turn(topic) for topic in sorted(found - taken - resting))

    async def _take(self, turn: _Turn) -> bool:
        """Whether more jobs of the topic may leave."""
        if await self._shelving.mover.is_compaction_behind():
            raise StoreUnavailable("jobs stay in the store while the shelf's files are compacted")
        for _ in range(_BATCHES_PER_TURN):
            began_s = monotonic()
            is_gentle = began_s < self._gentle_until_s
            most = _GENTLY_TOGETHER if is_gentle else _LEAVING_TOGETHER
            from_ms = await self._shelving.now_ms(turn.topic) + self._after_ms
            try:
                looked_at, left = await self._shelving.mover.move_out(
                    turn.topic, from_ms, pass_over=turn.stayed, most=most
                )
            finally:
                self._shelving.returning.note(turn.topic)
            turn.left += left
            turn.stayed += looked_at - left
            if looked_at == 0:
                return False
            if is_gentle:
                ended_s = monotonic()
                pause_s = (ended_s - began_s) * _GENTLE_PAUSES
                await asyncio.sleep(max(min(pause_s, self._gentle_until_s - ended_s), 0.0))
        return True

    def _end(self, turn: _Turn) -> None:
        """Look less often at a topic whose jobs stay."""
        _, rest_s = self._rests.pop(turn.topic, (0.0, PAUSE_S / 2))
        if turn.left <= turn.stayed:
            rest_s = min(rest_s * 2, LONGEST_REST_S)
            self._rests[turn.topic] = monotonic() + rest_s, rest_s


class _Returning:
    """Moves jobs in when they are due within `ahead_ms`, the most urgent ones first."""

    def __init__(self, shelving: Shelving, ahead_ms: int) -> None:
        self._shelving = shelving
        self._ahead_ms = ahead_ms
        self.firsts: dict[str, int] = {}
        """By topic: no job of it that is on the shelf is due earlier."""
        self._order: list[tuple[int, str]] = []
        """A heap of when to look at which topic."""
        self._queued: dict[str, int] = {}
        """The same by topic; entries of the heap that differ are outdated."""
        self._unread = set(shelving.mover.topics)
        """Topics of which jobs may have gone out since their first due time was read."""
        self._aside: dict[str, float] = {}
        """By topic whose jobs could not be moved: when to try again."""
        self._noted = asyncio.Event()

    def note(self, topic: str) -> None:
        """Jobs of a topic have gone out."""
        self._unread.add(topic)
        if self._ahead_ms < PAUSE_S * 1000:  # they may be due before the next look
            self._noted.set()

    async def run(self) -> None:
        while True:
            try:
                pause_s = await self._look()
                self._shelving.failures.clear("look")
            except StoreUnavailable as exc:
                self._shelving.failures.note("look", exc)
                pause_s = RETRY_S
            if pause_s > 0 and not self._noted.is_set():
                try:
                    async with asyncio.timeout(pause_s):
                        await self._noted.wait()
                except TimeoutError:
                    pass
            self._noted.clear()

    async def _look(self) -> float:
        """Move in what is to come back; returns for how long nothing more is."""
        now_s = monotonic()
        again = [topic for topic, at_s in self._aside.items() if at_s <= now_s]
        for topic in again:
            del self._aside[topic]
        self._unread.update(again)
        for topic in list(islice(self._unread, _FIRSTS_PER_LOOK)):
            self._unread.discard(topic)
            if topic not in self._aside:
                await self._attempt(topic, self._read_first(topic))
        while self._order:
            first_ms, topic = self._order[0]
            if self._queued.get(topic) != first_ms:
                heapq.heappop(self._order)
                continue
            until_ms = min(await self._shelving.now_ms(topic) + self._ahead_ms, _EVER_MS)
            if first_ms > until_ms:
                return self._pause_s((first_ms - until_ms) / 1000)
            heapq.heappop(self._order)
            del self._queued[topic]
            await self._attempt(topic, self._move_in(topic, until_ms))
        return self._pause_s(PAUSE_S)

    def _pause_s(self, longest_s: float) -> float:
        if self._unread:
            return 0.0
        return min(longest_s, RETRY_S if self._aside else PAUSE_S)

    async def _attempt(self, topic: str, work: Coroutine[None, None, None]) -> None:
        """Do it, or leave the topic aside for some time: its files may be damaged, and those of others not."""
        try:
            await work
            self._shelving.failures.clear(f"{IN} {topic}")
        except StoreUnavailable as exc:
            self._shelving.failures.note(f"{IN} {topic}", exc)
            self._aside[topic] = monotonic() + RETRY_S
            self._queued.pop(topic, None)

    async def _move_in(self, topic: str, until_ms: int) -> None:
        ids = await self._shelving.mover.due(topic, until_ms)
        if ids:
            moved = await self._shelving.mover.move_in(topic, ids)
            if not moved and ids[0] in await self._shelving.mover.due(topic, until_ms):  # no call has loaded them
                raise StoreUnavailable(f"jobs of topic {topic!r} are not moved from the shelf, such as {ids[0]!r}")
        await self._read_first(topic)

    async def _read_first(self, topic: str) -> None:
        first_ms = await self._shelving.mover.first_due(topic)
        if first_ms is None:
            self.firsts.pop(topic, None)
            self._queued.pop(topic, None)
            return
        self.firsts[topic] = first_ms
        if self._queued.get(topic) != first_ms:
            self._queued[topic] = first_ms
            heapq.heappush(self._order, (first_ms, topic))
            if len(self._order) > 2 * len(self._queued) + _OUTDATED_MAX:
                self._order = [(due_ms, name) for name, due_ms in self._queued.items()]
                heapq.heapify(self._order)


class Shelving:
    """Keeps jobs where they belong. `after_ms` None: all come back, and none leave.

    No job leaves for the first `wait_s`.
    """

    def __init__(self, mover: Mover, scripts: Scripts, keys: Keys, *, after_ms: int | None, wait_s: float) -> None:
        self.mover = mover
        self.scripts = scripts
        self.keys = keys
        self.failures = Failures()
        self._clock = StoreClock(scripts, keys, is_movable=True)  # it may jump
        self._ahead_ms = None if after_ms is None else after_ms // 2
        self.returning = _Returning(self, _EVER_MS if self._ahead_ms is None else self._ahead_ms)
        self._leaving = None if after_ms is None else _Leaving(self, after_ms, wait_s)
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=_RATE_S + 1)

    async def run(self) -> None:
        """Move jobs until cancelled. It goes on after errors of the store and of the files."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.returning.run(), name="shelf-in")
            tasks.create_task(self._sample(), name="shelf-rates")
            if self._leaving is not None:
                tasks.create_task(self._leaving.run(), name="shelf-out")

    async def now_ms(self, topic: str) -> int:
        """The time of the store that has a topic. Raises StoreUnavailable."""
        return await self._clock.now_ms(self.keys.shard_of(topic))

    @property
    def ahead_s(self) -> float:
        """How long before they are due jobs come back; 0 if they come back at once."""
        return (self._ahead_ms or 0) / 1000

    def rates(self) -> tuple[float, float]:
        """How many jobs a second have gone out, and come back, in the last 10 s."""
        moved = self.mover.moved
        if not self._samples:
            return 0.0, 0.0
        at_s, out, back = self._samples[0]
        took_s = max(monotonic() - at_s, 0.001)
        return (moved[OUT] - out) / took_s, (moved[IN] - back) / took_s

    async def behind(self) -> tuple[int, float]:
        """How many jobs should have been loaded for half of the time ahead, and for how many seconds the first has.

        Raises StoreUnavailable.
        """
        allowed_ms = (self._ahead_ms or 0) // 2
        jobs, first_late_ms = 0, -inf
        nows: dict[int, int] = {}
        for topic, first_ms in list(self.returning.firsts.items()):
            shard = self.keys.shard_of(topic)
            if shard not in nows:
                nows[shard] = await self._clock.now_ms(shard)
            late_ms = nows[shard] + allowed_ms - first_ms
            if late_ms > 0:
                (count,) = await self.mover.counts_before(topic, [nows[shard] + allowed_ms])
                jobs += count
                if count:
                    first_late_ms = max(first_late_ms, late_ms)
        return jobs, max(first_late_ms, 0.0) / 1000

    async def _sample(self) -> None:
        while True:
            self._samples.append((monotonic(), self.mover.moved[OUT], self.mover.moved[IN]))
            await asyncio.sleep(1.0)

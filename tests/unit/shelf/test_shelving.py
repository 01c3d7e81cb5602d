"""Which jobs come back when, and what is read for that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.engine.redis_keys import Keys
from deferd.shelf import shelving
from deferd.shelf.shelving import Failures, _Leaving, _Returning

AHEAD_MS = 1000


class Shelf:
    """Due times by topic, in place of mover, store and files."""

    def __init__(self, **dues: list[int]) -> None:
        self.dues = dues
        self.clock_ms = 0
        self.moved: list[tuple[str, list[int]]] = []
        self.reads: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.topics = frozenset(dues)
        self.failures = Failures()
        self.mover = self

    async def now_ms(self, _: str) -> int:
        return self.clock_ms

    async def first_due(self, topic: str) -> int | None:
        self.reads[topic] += 1
        return min(self.dues[topic], default=None)

    async def due(self, topic: str, until_ms: int) -> list[int]:
        if topic in self.broken:
            raise StoreUnavailable("damaged")
        return sorted(due for due in self.dues[topic] if due <= until_ms)[:2]

    async def move_in(self, topic: str, ids: Sequence[int]) -> list[int]:
        self.moved.append((topic, list(ids)))
        self.dues[topic] = [due for due in self.dues[topic] if due not in ids]
        return list(ids)


def returning(shelf: Shelf) -> _Returning:
    found: Any = SimpleNamespace(mover=shelf, now_ms=shelf.now_ms, failures=shelf.failures)
    return _Returning(found, AHEAD_MS)


async def test_the_most_urgent_jobs_come_back_first() -> None:
    shelf = Shelf(a=[100, 101, 102, 5000], b=[50, 101])
    look = returning(shelf)
    assert await look._look() == 1.0
    assert shelf.moved == [("b", [50, 101]), ("a", [100, 101]), ("a", [102])]
    shelf.clock_ms = 3400
    assert await look._look() == pytest.approx(0.6)


async def test_a_topic_is_not_read_before_its_jobs_are_due() -> None:
    shelf = Shelf(a=[5000], b=[10_000])
    look = returning(shelf)
    for shelf.clock_ms in range(0, 4000, 100):
        await look._look()
    assert shelf.reads == {"a": 1, "b": 1}
    shelf.clock_ms = 4000
    await look._look()
    assert shelf.moved == [("a", [5000])]
    assert shelf.reads == {"a": 2, "b": 1}


async def test_what_is_known_of_a_topic_does_not_grow() -> None:
    shelf = Shelf(a=[10**9])
    look = returning(shelf)
    for number in range(5000):
        if number % 2:
            shelf.dues["a"].append(10**9 - number)
        look.note("a")
        await look._look()
    assert len(look._order) < 1100
    shelf.dues["a"].append(1)
    look.note("a")
    await look._look()
    assert shelf.moved == [("a", [1])]


async def test_a_topic_that_cannot_be_read_is_tried_again_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(a=[1, 2], b=[3])
    look = returning(shelf)
    shelf.broken.add("a")
    assert await look._look() == shelving.RETRY_S
    assert shelf.moved == [("b", [3])]
    await look._look()
    assert shelf.reads["a"] == 1
    shelf.broken.clear()
    monkeypatch.setattr(shelving, "monotonic", lambda: float("inf"))
    await look._look()
    assert shelf.moved[1:] == [("a", [1, 2])]


async def test_jobs_that_do_not_come_back_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an entry of the order by due time whose job cannot be found."""
    shelf = Shelf(a=[1])
    look = returning(shelf)

    async def none_moves(*_: object) -> list[int]:
        return []

    monkeypatch.setattr(shelf, "move_in", none_moves)
    assert await look._look() == shelving.RETRY_S
    assert look._aside.keys() == {"a"}


async def test_jobs_leave_in_small_batches_with_pauses_and_then_as_fast_as_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shelving, "_GENTLE_S", 0.05)
    batches: list[tuple[int, float, float]] = []
    has_sped_up = asyncio.Event()

    class Endless(Shelf):
        async def is_compaction_behind(self) -> bool:
            return False

        async def run(self, *_: object) -> list[bytes]:
            return [b"", b"a"]

        async def move_out(self, _: str, __: int, *, pass_over: int, most: int) -> tuple[int, int]:
            assert pass_over == 0
            began_s = monotonic()
            await asyncio.sleep(0.002)
            batches.append((most, began_s, monotonic()))
            if most == 500:
                has_sped_up.set()
            return most, most

    shelf: Any = Endless()
    shelf.keys, shelf.scripts = Keys(1), shelf
    shelf.returning = SimpleNamespace(note=lambda topic: None)
    leaving = asyncio.create_task(_Leaving(shelf, AHEAD_MS, wait_s=0.01).run())
    async with asyncio.timeout(30):
        await has_sped_up.wait()
    leaving.cancel()

    sizes = [most for most, _, _ in batches]
    assert sizes[0] == 100
    assert sizes == sorted(sizes)
    for (most, began_s, ended_s), (_, next_s, _) in pairwise(batches):
        assert next_s - ended_s >= 2 * (ended_s - began_s) - 0.001, most


def test_a_reason_is_logged_once_until_everything_works_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    failures = Failures()
    for _ in range(3):
        failures.note("in a", StoreUnavailable("damaged"))
        failures.clear("in b")
    failures.note("in b", StoreUnavailable("damaged"))
    failures.clear("in a")
    assert len(caplog.records) == 1
    failures.clear("in b")
    failures.note("in a", StoreUnavailable("damaged"))
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "ERROR"]

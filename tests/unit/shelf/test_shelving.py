"""Which jobs come back when, and what is read for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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


class Emptied(Exception):
    """All jobs have left, also those that were put later."""


class Leavers(Shelf):
    """A topic of which `jobs` leave; `later` are put when all have.

    A move takes MOVE_S of a clock that only moves and pauses advance.
    """

    MOVE_S = 0.01

    def __init__(self, jobs: int, later: int) -> None:
        super().__init__()
        self.clock_s = 1000.0
        self.jobs, self.later = jobs, [later]
        self.steps: list[tuple[str, float]] = []
        self.keys, self.scripts = Keys(1), self
        self.returning = SimpleNamespace(note=lambda _topic: None)

    async def is_compaction_behind(self) -> bool:
        return False

    async def run(self, *_: object) -> list[bytes]:
        return [b"", b"a"] if self.jobs else [b""]

    async def move_out(self, _: str, __: int, *, pass_over: int, most: int) -> tuple[int, int]:
        assert pass_over == 0
        moved = min(most, self.jobs)
        self.jobs -= moved
        self.clock_s += self.MOVE_S
        self.steps.append(("batch", moved))
        return moved, moved

    async def sleep(self, seconds: float) -> None:
        self.clock_s += seconds
        self.steps.append(("pause", round(seconds, 3)))
        if self.jobs == 0:
            if not self.later:
                raise Emptied
            self.jobs = self.later.pop()


async def test_jobs_leave_in_small_batches_at_first_and_then_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf: Any = Leavers(30_000, later=300)
    monkeypatch.setattr(shelving, "monotonic", lambda: shelf.clock_s)
    monkeypatch.setattr(shelving, "asyncio", SimpleNamespace(sleep=shelf.sleep))
    with pytest.raises(Emptied):
        await _Leaving(shelf, AHEAD_MS, wait_s=0.0).run()

    small = shelf.steps.index(("batch", 500)) // 2
    pause_s = 2 * Leavers.MOVE_S
    assert shelf.steps[: 2 * small - 1] == [("batch", 100), ("pause", pause_s)] * (small - 1) + [("batch", 100)]
    assert small * (Leavers.MOVE_S + pause_s) == pytest.approx(2.0, abs=0.03)
    large = (30_000 - small * 100) // 500
    assert shelf.steps[2 * small : 2 * small + large] == [("batch", 500)] * large
    batches = [moved for step, moved in shelf.steps if step == "batch" and moved]
    assert batches[-3:] == [100, 100, 100]


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

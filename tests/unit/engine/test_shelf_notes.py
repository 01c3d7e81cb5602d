"""What a process remembers of the puts that have asked the shelf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.engine.shelf import NOT_ASKED, Asked, Shelf, ShelfCalls


class Calls:
    """Notes what may leave the store."""

    def __init__(self) -> None:
        self.let_go: list[Sequence[Asked]] = []
        self.is_dead = False

    async def load(self, _: str, __: Sequence[str], let_go: Sequence[Asked] = (), at_least: int = 0) -> int:
        if self.is_dead:
            raise StoreUnavailable("the shelf cannot be reached")
        self.let_go.append(let_go)
        return 7


async def put(shelf: Shelf, topic: str, ids: list[str]) -> None:
    shelf.note_shelved(topic, 1)
    shelf.note_done(topic, Asked(await shelf.ask(topic, ids), ids))


async def test_the_next_put_into_a_topic_lets_go_what_the_last_ones_asked_for() -> None:
    calls: Any = Calls()
    shelf = Shelf(cast("ShelfCalls", calls))
    for _ in range(3):
        await put(shelf, "t", ["a", "b"])
    assert calls.let_go == [(), [Asked(7, ["a", "b"])], [Asked(7, ["a", "b"])]]
    assert shelf._ids_done == 2


async def test_only_one_put_fails_into_a_topic_whose_jobs_have_left_a_shelf_that_died() -> None:
    calls: Any = Calls()
    shelf = Shelf(cast("ShelfCalls", calls))
    await put(shelf, "t", ["a"])
    calls.is_dead = True
    with pytest.raises(StoreUnavailable):
        await shelf.ask("t", ["b"])
    assert await shelf.ask("t", ["b"]) == NOT_ASKED


async def test_what_was_put_into_topics_that_are_not_used_again_is_forgotten() -> None:
    calls: Any = Calls()
    shelf = Shelf(cast("ShelfCalls", calls))
    ids = [str(at) for at in range(500)]
    for number in range(5000):
        await put(shelf, f"t{number}", ids)
    kept = sum(len(asked.ids) for done in shelf._done.values() for asked in done)
    assert kept == shelf._ids_done <= 100_000

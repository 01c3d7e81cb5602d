"""What the console can undo, in the store."""

from __future__ import annotations

import pytest

from deferd.engine.console_store import UNDO_BYTES_MAX, ConsoleUndo
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.store.connection import Store


@pytest.fixture
def undo(store: Store) -> ConsoleUndo:
    return ConsoleUndo(Scripts(store), Keys(1))


async def test_one_at_a_time_carries_it_out_and_only_once(undo: ConsoleUndo) -> None:
    token = await undo.keep(b"jobs", 60_000)
    assert await undo.get(token) == b"jobs"
    assert await undo.claim(token) == b"jobs"
    assert await undo.claim(token) is None
    await undo.done(token)
    assert (await undo.get(token), await undo.claim(token)) == (None, None)
    assert await undo.get("another") is None


async def test_nobody_else_carries_it_out_while_that_takes_long(undo: ConsoleUndo, store: Store) -> None:
    """A put that waits for the store may store its jobs at the end of what is kept; none may be put once more then."""
    token = await undo.keep(b"jobs", 20_000)
    assert await undo.claim(token) == b"jobs"
    scripts = Scripts(store)
    [claim] = await scripts.command("KEYS", "deferd:{0}:console/undo/*/claim")
    key = claim.removesuffix(b"/claim")
    claim_ms = await scripts.command("PEXPIRETIME", claim)
    assert claim_ms > await scripts.command("PEXPIRETIME", key)
    await scripts.command("UNLINK", key)  # its time is over
    assert await undo.claim(token) is None


async def test_what_fails_can_be_tried_again(undo: ConsoleUndo) -> None:
    token = await undo.keep(b"jobs", 60_000)
    assert await undo.claim(token) == b"jobs"
    await undo.release(token)
    assert await undo.claim(token) == b"jobs"


async def test_what_is_left_is_kept_for_the_time_that_is_left(undo: ConsoleUndo, store: Store) -> None:
    token = await undo.keep(b"jobs", 20_000)
    assert await undo.claim(token) == b"jobs"
    await undo.done(token, b"rest")
    [key] = await Scripts(store).command("KEYS", "deferd:{0}:console/undo/*")
    assert 10_000 < await Scripts(store).command("PTTL", key) <= 20_000
    assert await undo.claim(token) == b"rest"


async def test_it_is_kept_for_its_time(undo: ConsoleUndo, store: Store) -> None:
    await undo.keep(b"jobs", 60_000)
    scripts = Scripts(store)
    [key] = await scripts.command("KEYS", "deferd:{0}:console/undo/*")
    assert 50_000 < await scripts.command("PTTL", key) <= 60_000


async def test_it_has_a_limit(undo: ConsoleUndo) -> None:
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        await undo.keep(b"x" * (UNDO_BYTES_MAX + 1), 1000)

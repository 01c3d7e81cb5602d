"""Sessions of the console in the store."""

from __future__ import annotations

import time

import pytest

from deferd.engine import console_store
from deferd.engine.console_store import SESSION_S, ConsoleSessions
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.store.connection import Store

KEY = b"k" * 32


@pytest.fixture
def sessions(store: Store) -> ConsoleSessions:
    return ConsoleSessions(Scripts(store), Keys(1))


def cookie(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def test_a_session_lasts_until_it_is_closed(sessions: ConsoleSessions) -> None:
    await sessions.open(cookie(1), KEY)
    assert await sessions.key_of(cookie(1)) == KEY
    assert await sessions.key_of(cookie(2)) is None
    await sessions.close(cookie(1))

    assert await sessions.key_of(cookie(1)) is None


async def test_use_renews_a_session_and_without_it_ends(
    sessions: ConsoleSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    await sessions.open(cookie(1), KEY)
    now_s += SESSION_S - 60
    assert await sessions.key_of(cookie(1)) == KEY
    now_s += SESSION_S - 60
    assert await sessions.key_of(cookie(1)) == KEY
    now_s += SESSION_S + 1

    assert await sessions.key_of(cookie(1)) is None


async def test_the_number_is_bounded_and_the_first_to_end_goes(
    sessions: ConsoleSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    monkeypatch.setattr(console_store, "SESSIONS_MAX", 3)
    monkeypatch.setattr(console_store, "SESSIONS_PER_KEY", 2)
    keys = [bytes([number]) * 32 for number in range(5)]
    for number in range(5):
        await sessions.open(cookie(number), keys[number])
        now_s += 1

    assert [await sessions.key_of(cookie(number)) for number in range(5)] == [None, None, *keys[2:]]


async def test_the_sessions_of_a_key_end_no_others(sessions: ConsoleSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    monkeypatch.setattr(console_store, "SESSIONS_PER_KEY", 5)
    other = b"o" * 32
    await sessions.open(cookie(0), other)
    for number in range(1, 10):
        now_s += 1
        await sessions.open(cookie(number), KEY)

    assert await sessions.key_of(cookie(0)) == other
    lasting = [number for number in range(1, 10) if await sessions.key_of(cookie(number)) is not None]
    assert lasting == [5, 6, 7, 8, 9]


async def test_however_much_it_is_used_a_session_ends_after_seven_days(
    sessions: ConsoleSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = began_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    await sessions.open(cookie(1), KEY)
    for _ in range(27):
        now_s += 6 * 3600
        assert await sessions.key_of(cookie(1)) == KEY
    now_s = began_s + 7 * 86_400 - 60
    assert await sessions.key_of(cookie(1)) == KEY
    now_s = began_s + 7 * 86_400 + 1

    assert await sessions.key_of(cookie(1)) is None


async def test_a_use_under_way_does_not_bring_back_a_session_that_was_closed(
    sessions: ConsoleSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    await sessions.open(cookie(1), KEY)
    now_s += 3600
    command = sessions._scripts.command

    async def close_after_the_read(name: str, *args: str | bytes | int) -> object:
        reply = await command(name, *args)
        if name == "HGET":
            await sessions.close(cookie(1))
        return reply

    monkeypatch.setattr(sessions._scripts, "command", close_after_the_read)
    assert await sessions.key_of(cookie(1)) is None
    monkeypatch.setattr(sessions._scripts, "command", command)

    assert await sessions.key_of(cookie(1)) is None

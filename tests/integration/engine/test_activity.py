"""The list of changes in the store: order, bounds, joined entries, and a store that fails."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from deferd.contract.errors import InvalidInput, StoreUnavailable
from deferd.engine import activity_list
from deferd.engine.activity_list import ActivityList, Change, RecordedChange
from tests.integration.engine.engine_driver import EngineDriver

KEY = "deferd:{0}:activity"


def change(operation: str = "pause_topic", **fields: Any) -> Change:
    return Change(**{"operation": operation, "by": "ops", "via": "api", "outcome": "done", **fields})


async def listed(activity: ActivityList) -> list[RecordedChange]:
    found, cursor = await activity.page(lambda _: True, None, 1000)
    assert cursor is None
    return found


async def test_changes_are_listed_newest_first_with_all_that_is_known(driver: EngineDriver) -> None:
    activity = driver.engine.activity
    full = change(
        topic="t", subject="j", filter='{"tag":"a\\u0000é"}', count=3, via="cli", outcome="unknown", by="127.0.0.1"
    )
    activity.record(full)
    activity.record(change(by=None))
    newest, oldest = await listed(activity)
    assert (oldest.change, newest.change) == (full, change(by=None))
    assert (newest.times, newest.last_at_ms) == (1, newest.at_ms)


async def test_pages(driver: EngineDriver) -> None:
    activity = driver.engine.activity
    for number in range(2500):
        activity.record(change(subject=str(number), topic=f"t{number % 3}"))
        if number % 500 == 499:
            await activity.page(lambda _: True, None, 1)
    expected = [str(number) for number in reversed(range(2500)) if number % 3 == 0]
    for limit in (1000, 100):
        cursor, pages = None, []
        while True:
            page, cursor = await activity.page(lambda one: one.topic == "t0", cursor, limit)
            pages.append([one.change.subject for one in page])
            if cursor is None:
                break
        assert [subject for page in pages for subject in page] == expected
        assert len(pages) == -(-len(expected) // limit)
    for bad in ("x", "WzFd" * 100):
        with pytest.raises(InvalidInput):
            await activity.page(lambda _: True, bad, 10)


async def test_the_list_is_bounded(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_list, "KEPT", 20)
    activity = driver.engine.activity
    for number in range(65):
        activity.record(change(subject=str(number)))
        if number % 7 == 0:
            await listed(activity)
    assert [one.change.subject for one in await listed(activity)] == [str(number) for number in range(64, 44, -1)]
    assert driver.server.command("ZCARD", KEY) == 20
    assert 29 * 86_400_000 < driver.server.command("PTTL", KEY) <= 30 * 86_400_000


async def test_no_other_changes_displace_those_of_administrators(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_list, "KEPT", 3)
    activity = driver.engine.activity
    for subject in ("first", "second", "third"):
        activity.record(change(subject=subject, by_admin=True))
    for number in range(5):
        await listed(activity)
        activity.record(change(subject=str(number), by="other"))
    assert [one.change.subject for one in await listed(activity)] == ["4", "3", "2", "third", "second", "first"]
    activity.record(change(subject="last", by_admin=True))
    page, cursor = await activity.page(lambda _: True, None, 2)
    rest, end = await activity.page(lambda _: True, cursor, 4)
    assert [one.change.subject for one in page + rest] == ["last", "4", "3", "2", "third", "second"]
    assert end is None


async def test_entries_end_after_30_days(driver: EngineDriver) -> None:
    activity = driver.engine.activity
    for number in range(15):
        activity.record(change(subject=str(number)))
    await listed(activity)
    driver.move_clock(29 * 86_400)
    activity.record(change(subject="later"))
    assert len(await listed(activity)) == 16
    driver.move_clock(2 * 86_400)
    assert [one.change.subject for one in await listed(activity)] == ["later"]
    for _ in range(2):
        activity.record(change(subject="last"))
        await listed(activity)
    assert driver.server.command("ZCARD", KEY) == 3


async def test_calls_of_a_program_join_for_ten_minutes(driver: EngineDriver) -> None:
    activity = driver.engine.activity
    for number in range(3):
        activity.record(change("cancel_selected_jobs", joins=True, count=2, filter=str(number)))
    activity.record(change("cancel_selected_jobs", joins=True, count=1, by="other"))
    activity.record(change("cancel_selected_jobs", joins=True, count=4, filter="3"))
    other, joined = await listed(activity)
    assert (other.times, other.change.count, other.change.by) == (1, 1, "other")
    assert (joined.times, joined.change.count, joined.change.filter) == (4, 10, "3")
    assert joined.last_at_ms >= joined.at_ms
    driver.move_clock(601)
    activity.record(change("cancel_selected_jobs", joins=True, count=1))
    activity.record(change("pause_topic"))
    activity.record(change("pause_topic"))
    assert [one.times for one in await listed(activity)] == [1, 1, 1, 1, 4]


async def test_an_entry_that_is_sent_again_is_there_once(driver: EngineDriver) -> None:
    activity = driver.engine.activity
    run, lost = activity._scripts.run, [0]

    async def run_and_lose_the_reply(verb: str, *args: Any) -> Any:
        reply = await run(verb, *args)
        lost[0] += 1
        if lost[0] < 3:
            raise StoreUnavailable("lost")
        return reply

    activity._retry_s = 0
    activity._scripts.run = run_and_lose_the_reply  # type: ignore[method-assign, assignment]
    activity.record(change(joins=True, count=1))
    activity.record(change(joins=True, count=1))
    activity.record(change())
    await asyncio.wait_for(activity._writing, 5)  # type: ignore[arg-type]
    activity._scripts.run = run  # type: ignore[method-assign]
    single, joined = await listed(activity)
    assert (single.times, joined.times, joined.change.count) == (1, 2, 2)


async def test_what_cannot_be_recorded_is_logged(driver: EngineDriver, caplog: pytest.LogCaptureFixture) -> None:
    activity = driver.engine.activity
    driver.server.command("SET", KEY, "of another type")
    with caplog.at_level(logging.WARNING, "deferd.engine.activity_list"):
        activity.record(change(topic="lost.one"))
        await asyncio.wait_for(activity._writing, 5)  # type: ignore[arg-type]
    [record] = caplog.records
    assert "lost.one" in record.getMessage()
    driver.server.command("DEL", KEY)
    activity.record(change(topic="later"))
    assert [one.change.topic for one in await listed(activity)] == ["later"]


async def test_too_many_that_wait_are_logged(driver: EngineDriver, caplog: pytest.LogCaptureFixture) -> None:
    activity = driver.engine.activity
    with caplog.at_level(logging.WARNING, "deferd.engine.activity_list"):
        for number in range(1001):
            activity.record(change(topic=f"t{number}"))
    assert ["t1000" in record.getMessage() for record in caplog.records] == [True]


async def test_changes_are_recorded_without_memory(driver: EngineDriver) -> None:
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        driver.engine.activity.record(change())
        assert len(await listed(driver.engine.activity)) == 1
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")


async def test_what_something_else_wrote_is_left_out(driver: EngineDriver) -> None:
    driver.server.command("ZADD", KEY, 1, "[]", 2, '{"at": 1}', 3, "no JSON")
    assert await listed(driver.engine.activity) == []


async def test_an_audit_of_the_store_knows_the_list(driver: EngineDriver) -> None:
    driver.engine.activity.record(change())
    await listed(driver.engine.activity)
    found = await driver.engine.consistency.audit_store()
    assert (found.stray_keys, found.stray_count) == ([], 0)

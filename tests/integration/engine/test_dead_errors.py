"""Dead jobs by topic, reason and error."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from deferd.contract.model import PutJob
from deferd.engine.inspection.dead_errors import DeadErrors, equal_shares
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver


async def bury(driver: EngineDriver, topic: str, job_id: str, error: str | None = None, **fields: Any) -> None:
    await driver.puts.put(PutJob.model_validate({"topic": topic, "id": job_id, **fields}))
    [[job]] = (await driver.queue.pop(topic, [PopRequest(1)])).jobs
    assert job.id == job_id
    await driver.deliveries.bury(topic, job_id, ANY_RECEIPT, error=error)


async def dead(driver: EngineDriver, *topics: str, **options: Any) -> DeadErrors:
    driver.engine.dead_jobs._reads._values.clear()
    return await driver.engine.dead_jobs.by_error(topics or None, lambda _: True, **options)


def groups(found: DeadErrors) -> list[tuple[str, str, str | None, int]]:
    return [(group.topic, group.reason, group.error, group.count) for group in found.groups]


async def test_jobs_are_grouped_by_topic_reason_and_error(driver: EngineDriver) -> None:
    for number in range(5):
        await bury(driver, "mail", f"m{number}", f"SMTP 421: message {number} refused")
        driver.move_clock(10)
    await bury(driver, "mail", "other", "no such user")
    await bury(driver, "orders", "o", "SMTP 421: message 1 refused")
    await bury(driver, "orders", "silent")
    await driver.puts.put(PutJob(topic="orders", id="late", ttl=5))
    await driver.puts.put(PutJob(topic="alive", id="x"))
    await driver.pass_time(6)
    found = await dead(driver)
    assert groups(found) == [
        ("mail", "buried", "SMTP 421: message * refused", 5),
        ("mail", "buried", "no such user", 1),
        ("orders", "buried", None, 1),
        ("orders", "buried", "SMTP 421: message * refused", 1),
        ("orders", "expired", None, 1),
    ]
    assert (found.dead, found.looked_at, found.is_complete, found.unreadable) == (9, 9, True, [])
    first = found.groups[0]
    assert first.samples == ["m4", "m3", "m2"]
    assert first.first_ms is not None
    assert first.last_ms is not None
    assert first.last_ms - first.first_ms == pytest.approx(40_000, abs=1000)
    assert (await driver.queue.get("mail", "m0")).dead_at_ms == first.first_ms


async def test_a_group_names_its_most_frequent_errors_as_they_are(driver: EngineDriver) -> None:
    for at, number in enumerate((1, 2, 2, 3, 4, 4, 4)):
        await bury(driver, "mail", f"m{at}", f"message {number} refused\nby 10.0.0.1")
    await bury(driver, "mail", "silent")
    named, silent = (await dead(driver)).groups
    assert named.error == "message * refused"
    assert named.originals[:2] == [("message 4 refused", 3), ("message 2 refused", 2)]
    assert len(named.originals) == 3
    assert silent.originals == []


async def test_topics_since_and_visibility(driver: EngineDriver) -> None:
    await bury(driver, "mail.a", "old", "x")
    driver.move_clock(100)
    await bury(driver, "mail.a", "new", "x")
    await bury(driver, "mail.b", "b", "x")
    await bury(driver, "orders", "o", "x")
    since_ms = ((await driver.queue.get("mail.a", "new")).dead_at_ms or 0) - 1000
    assert [one[0] for one in groups(await dead(driver, "mail.*"))] == ["mail.a", "mail.b"]
    assert [one[0] for one in groups(await dead(driver, "orders", "nothing", "*.b"))] == ["mail.b", "orders"]
    assert groups(await dead(driver, "mail.a", since_ms=since_ms)) == [("mail.a", "buried", "x", 1)]
    driver.engine.dead_jobs._reads._values.clear()
    for _ in range(2):  # the second time from what was kept for somebody who sees less
        found = await driver.engine.dead_jobs.by_error(None, lambda topic: topic == "orders")
        assert (groups(found), found.dead, found.looked_at) == ([("orders", "buried", "x", 1)], 1, 1)


async def test_a_look_is_kept_for_others(driver: EngineDriver) -> None:
    await bury(driver, "mail", "a", "x")
    await dead(driver)
    await bury(driver, "mail", "b", "x")
    kept = await driver.engine.dead_jobs.by_error(None, lambda _: True)
    assert (kept.dead, (await dead(driver)).dead) == (1, 2)


async def test_each_topic_gets_its_share_of_those_that_died_last(driver: EngineDriver) -> None:
    for number in range(30):
        await bury(driver, "many", f"m{number:02}", "x")
    await bury(driver, "few", "f", "y")
    found = await dead(driver, look_at=11)
    assert groups(found) == [("many", "buried", "x", 10), ("few", "buried", "y", 1)]
    assert (found.dead, found.looked_at, found.is_complete) == (31, 11, False)
    assert found.groups[0].samples == ["m29", "m28", "m27"]


async def page(driver: EngineDriver, score: bytes, last_id: bytes, *most: int) -> Any:
    """A page of the topic, or several times the same."""
    keys = (f"{KEY}:dead", f"{KEY}:pool") * max(len(most), 1)
    return await driver.engine._scripts.run("dead", keys, (score, last_id, *(most or (100,))))


async def test_many_topics_with_large_bodies_are_read_in_further_calls(driver: EngineDriver) -> None:
    for number in range(5):
        for at in range(2):
            await bury(driver, f"t{number}", f"j{at}", "x", body="x" * 700_000)
    found = await dead(driver)
    assert groups(found) == [(f"t{number}", "buried", "x", 2) for number in range(5)]
    assert found.is_complete


async def test_pages_cover_all_jobs_once(driver: EngineDriver) -> None:
    """Also where many have the same end of retention, and while some are removed."""
    jobs = [PutJob(topic=TOPIC, id=f"j{number:04}", ttl=5) for number in range(1200)]
    await driver.puts.put_many(jobs)
    await driver.pass_time(6)
    seen: Counter[str] = Counter()
    score, last_id, more = b"", b"", 1
    while more:
        [[more, looked, score, last_id, *rows]] = await page(driver, score, last_id)
        assert looked == len(rows) // 2
        seen.update(row.decode() for row in rows[::2])
        await driver.cancels.cancel(TOPIC, last_id.decode())  # the next page begins after a job that is gone
    assert len(seen) == 1200
    assert set(seen.values()) == {1}
    found = await dead(driver)
    assert (found.dead, found.looked_at, found.is_complete) == (1188, 1188, True)


async def test_large_bodies_end_a_page_early(driver: EngineDriver) -> None:
    for number in range(3):
        await bury(driver, TOPIC, f"j{number}", "x", body="x" * 700_000)
    assert [found[:2] for found in await page(driver, b"", b"")] == [[1, 2]]
    both = [(*one[:2], len(one)) for one in await page(driver, b"", b"", 100, 100)]
    assert both == [(1, 2, 8), (1, 0, 4)], "the second one comes with the next call"
    assert groups(await dead(driver)) == [(TOPIC, "buried", "x", 3)]


async def test_damaged_records_count_as_unknown(driver: EngineDriver) -> None:
    await bury(driver, TOPIC, "a", "x")
    raw = driver.server.command("HGET", f"{KEY}:pool", "a")
    driver.server.command("HSET", f"{KEY}:pool", "a", raw[:26] + b"?" * (len(raw) - 26))
    assert groups(await dead(driver)) == [(TOPIC, "unknown", None, 1)]


def test_shares_are_equal_and_leave_nothing_unused() -> None:
    assert equal_shares(11, Counter({"many": 30, "few": 1})) == {"few": 1, "many": 10}
    assert equal_shares(100, Counter({"a": 60, "b": 60, "c": 10})) == {"c": 10, "a": 45, "b": 45}
    assert equal_shares(2, Counter({"a": 5, "b": 5, "c": 5})) == {"a": 1, "b": 1, "c": 1}
    assert equal_shares(5, Counter()) == {}

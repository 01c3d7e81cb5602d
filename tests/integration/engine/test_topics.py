"""topic_get.lua, topic_set.lua, list.lua, purge.lua and forget.lua: what operators see and do."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from deferd.api.routes.topics import list_visible
from deferd.contract.errors import InvalidInput, JobCancelled, TopicNotFound
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import topic_list
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.topics import TopicView, get_topic
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_servers import StoreServer
from tests.programs import require_program, without


async def put_one_in_every_state(driver: EngineDriver) -> None:
    await driver.put("reserved")
    await driver.put("dead")
    await driver.put("finished", retain=60)
    await driver.pop(3, consumer="worker-1")
    await driver.deliveries.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.queue.finish(TOPIC, "finished", ANY_RECEIPT)
    await driver.put("delayed", delay=60)
    await driver.put("ready")


async def test_unreadable_settings_of_one_topic_hide_no_other_from_a_restricted_key(driver: EngineDriver) -> None:
    for topic in ("orders.close", "orders.open"):
        await driver.topics.set(topic, TopicSettings())
    driver.server.command("HSET", "deferd:{0}:settings", "orders.close", "{{")
    page = await list_visible(driver.engine.topic_list, TopicPatterns(["orders.*"]), None, 10)
    assert ["orders.open"] == [view.topic for view in page.views]


async def test_the_oldest_ready_age_is_that_of_the_next_job_to_be_handed_out(driver: EngineDriver) -> None:
    await driver.put("old")
    driver.move_clock(100)
    await driver.put("young")
    driver.move_clock(10)
    view = await driver.topics.get(TOPIC)
    assert view.oldest_ready_age_ms is not None
    assert 110_000 <= view.oldest_ready_age_ms < 115_000
    await driver.cancels.cancel(TOPIC, "old")
    view = await driver.topics.get(TOPIC)
    assert view.oldest_ready_age_ms is not None
    assert 10_000 <= view.oldest_ready_age_ms < 15_000


async def test_topics_are_read_together(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, each would wait for a turn of a busy event loop."""
    for number in range(60):
        await driver.put("a", topic=f"t{number}")
    under_way = [0]

    async def counted(*which: Any) -> TopicView:
        under_way.append(under_way[-1] + 1)
        try:
            return await get_topic(*which)
        finally:
            under_way.append(under_way[-1] - 1)

    monkeypatch.setattr(topic_list, "get_topic", counted)
    assert len((await driver.engine.topic_list.page()).views) == 60
    assert max(under_way) == 20  # and not more: they would hold the event loop


async def test_a_scan_lists_the_topics_of_all_shards(store: Store) -> None:
    """With more topics in a shard than the store returns at once."""
    engine = Engine(store, shards=3)
    assert await engine.topic_list.scan() == (1, [])
    names = {f"t{number:03}" for number in range(500)}
    await engine.puts.put_many([PutJob(topic=name) for name in sorted(names)])
    assert await engine.topic_list.count() == 500
    listed: list[str] = []
    cursor, pages = 0, 0
    while cursor or not pages:
        cursor, page = await engine.topic_list.scan(cursor, 10)
        listed += page
        pages += 1
    assert set(listed) == names
    assert pages > 10


async def test_pages_hold_every_job_once(driver: EngineDriver) -> None:
    await put_one_in_every_state(driver)
    await driver.puts.put_many([job(f"same{number}", delay=60) for number in range(5)])
    await driver.puts.put_many([job(f"ready{number}") for number in range(5)])
    await driver.cancels.cancel(TOPIC, "ready2")
    expected = {"delayed", "ready", "reserved", "dead", "finished"}
    expected |= {f"same{number}" for number in range(5)} | {f"ready{number}" for number in (0, 1, 3, 4)}
    for limit in (1, 2, 3, 100):
        listed: list[str] = []
        cursor = None
        for _ in range(50):
            jobs, cursor = await driver.topics.jobs(TOPIC, None, cursor, limit)
            assert len(jobs) <= limit
            listed += [found.id for found in jobs]
            if cursor is None:
                break
        assert sorted(listed) == sorted(expected)


async def test_a_page_ends_early_with_large_results_and_bodies(driver: EngineDriver) -> None:
    large = "x" * 600_000
    for number in range(3):
        await driver.puts.put(job(f"f{number}", retain=3600))
        [popped] = (await driver.queue.pop(TOPIC, [PopRequest(1)])).jobs[0]
        await driver.queue.finish(TOPIC, popped.id, popped.receipt, large)
    await driver.puts.put_many([job(f"r{number}", body=large) for number in range(2)])
    await driver.puts.put_many([job(f"d{number}", body=large, delay=60) for number in range(2)])
    pages: list[list[str]] = []
    cursor = None
    while cursor is not None or not pages:
        jobs, cursor = await driver.topics.jobs(TOPIC, None, cursor)
        pages.append([found.id for found in jobs])
    assert sorted(job_id for page in pages for job_id in page) == ["d0", "d1", "f0", "f1", "f2", "r0", "r1"]
    assert max(map(len, pages)) == 2, pages


async def test_a_page_goes_on_after_its_last_job_was_cancelled(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"j{number}", delay=60) for number in range(6)])
    first, cursor = await driver.topics.jobs(TOPIC, JobState.DELAYED, None, 3)
    await driver.cancels.cancel(TOPIC, first[-1].id)
    rest, _ = await driver.topics.jobs(TOPIC, JobState.DELAYED, cursor, 10)
    assert [listed.id for listed in rest] == ["j3", "j4", "j5"]


async def test_a_cursor_of_another_list_is_refused(driver: EngineDriver) -> None:
    await driver.put()
    for cursor in ("!", "bm9uZQ", "WyJyZWFkeSIsIngiLCJhIl0", "W10", "WzEsMl0", "e30", "Wzk5LCJ4Il0", "Wy0xLCIiXQ"):
        with pytest.raises(InvalidInput, match="cursor"):
            await driver.topics.jobs(TOPIC, None, cursor)
        with pytest.raises(InvalidInput, match="cursor"):
            await driver.engine.topic_list.page(cursor)


async def test_unreadable_settings_hide_no_other_topic(
    engine: Engine, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        await engine.topics.set(name, TopicSettings())
    for damage in ("{{", "[]", '{"po":{"t":-5}}', '{"du":99}'):
        await store.client.hset("deferd:{0}:settings", "b", damage)
        page = await engine.topic_list.page(None, 3)
        assert ([view.topic for view in page.views], page.next_cursor) == (["a", "c"], None)
        assert "topic b is not listed" in caplog.text
        caplog.clear()


async def test_purge_of_everything_forgets_a_topic_without_settings(driver: EngineDriver) -> None:
    await put_one_in_every_state(driver)
    assert await purge_jobs(driver.engine, TOPIC) == 5
    with pytest.raises(TopicNotFound):
        await driver.topics.get(TOPIC)
    with pytest.raises(JobCancelled):
        await driver.queue.finish(TOPIC, "reserved", ANY_RECEIPT)
    await driver.pass_time(200)
    assert driver.keys_left() == set()


@pytest.fixture
def locale_that_ignores_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs started here sort text like people do, `a` before `B`."""
    if not Path("/usr/share/i18n/locales/en_US").exists():
        without("/usr/share/i18n/locales/en_US")
    localedef = require_program("localedef")
    subprocess.run([localedef, "-i", "en_US", "-f", "UTF-8", str(tmp_path / "en_US.UTF-8")], check=True)
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")


@pytest.mark.slow
@pytest.mark.usefixtures("locale_that_ignores_case")
async def test_pages_are_complete_in_any_locale_of_the_store(tmp_path: Path) -> None:
    """Sorted sets compare bytes; Lua compares text by the locale."""
    with StoreServer(tmp_path / "store") as server:
        store = await connect(server.url, timeout_s=5)
        engine = Engine(store)
        ids = [f"{letter}{sign}{number}" for letter in "aBcD" for sign in "-_" for number in range(10)]
        await engine.puts.put_many([job(job_id, delay=60) for job_id in ids])
        listed, cursor = await engine.topics.jobs(TOPIC, JobState.DELAYED, limit=10)
        while cursor is not None:
            page, cursor = await engine.topics.jobs(TOPIC, JobState.DELAYED, cursor, limit=10)
            listed += page
        assert sorted(ids) == [record.id for record in listed]
        await engine.close()
        await store.close()

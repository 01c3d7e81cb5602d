"""Lists, searches, counts and forecasts are the same, wherever the delayed jobs are: in the store or on the shelf."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.model import JobState, PutJob
from deferd.engine.shelf import Wanted
from deferd.engine.topics import JobFilter
from deferd.store.connection import connect
from tests.drawn_input import drawn
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.store.store_servers import StoreServer
from tests.shelving import Shelved

FAR_MS = 100_000_000
SPAN_MS = 300_000


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@drawn(40)
@given(drawn_as=st.tuples(st.integers(0, 2**32), st.integers(1, 9), st.booleans()))
def test_lists_searches_and_counts_are_those_of_all_jobs(
    running_server: StoreServer, runner: asyncio.Runner, tmp_path: Path, drawn_as: tuple[int, int, bool]
) -> None:
    seed, limit, reverse = drawn_as
    chance = Random(seed)
    begin_ms = int(time.time() * 1000) + FAR_MS
    dues = [begin_ms + chance.choice((0, 1, 60_000, chance.randrange(SPAN_MS))) for _ in range(chance.randrange(1, 40))]
    tags = {f"{chance.choice('ab')}{number}": chance.choice(([], ["x"], ["x", "y"])) for number in range(len(dues))}
    jobs = sorted(zip(dues, tags, strict=True), reverse=reverse)
    low_ms, high_ms = begin_ms + chance.randrange(SPAN_MS), begin_ms + chance.randrange(SPAN_MS)

    async def check() -> None:
        running_server.command("FLUSHALL")
        store = await connect(running_server.url, timeout_s=5)
        shelved = Shelved(store, tmp_path / f"{Random().random()}")
        try:
            for due_ms, job_id in chance.sample(jobs, len(jobs)):
                await shelved.put(job_id, due_ms, tags[job_id], group=job_id[-1])
            await shelved.move_out(pass_over=chance.randrange(9), most=chance.randrange(1, 40))
            in_order = [job_id for _, job_id in jobs]
            assert await pages(shelved, None, limit, reverse=reverse) == in_order
            due = JobFilter(due_after_ms=low_ms, due_before_ms=high_ms)
            expected = [job_id for due_ms, job_id in jobs if low_ms <= due_ms < high_ms]
            assert await pages(shelved, due, limit, reverse=reverse) == expected
            named = JobFilter(id_prefix="a")
            expected = [job_id for job_id in in_order if job_id.startswith("a")]
            assert await pages(shelved, named, limit, reverse=reverse) == expected
            expected = [job_id for job_id in in_order if job_id.endswith("1")]
            assert await pages(shelved, JobFilter(group="1"), limit, reverse=reverse) == expected
            tagged = sorted((job_id for job_id in tags if "y" in tags[job_id]), reverse=reverse)
            assert await pages(shelved, JobFilter(tag="y"), limit, reverse=reverse) == tagged
            await check_counts(shelved, [due_ms for due_ms, _ in jobs], begin_ms, chance)
        finally:
            await shelved.close()
            await store.close()

    runner.run(check())


async def pages(shelved: Shelved, wanted: JobFilter | None, limit: int, *, reverse: bool) -> list[str]:
    """The ids of all delayed jobs, page by page. Between two pages jobs move."""
    ids: list[str] = []
    cursor = None
    while True:
        topics = shelved.engine.topics
        if wanted is None:
            jobs, cursor = await topics.jobs(TOPIC, JobState.DELAYED, cursor, limit, reverse=reverse)
        else:
            jobs, cursor, _ = await topics.search(TOPIC, wanted, JobState.DELAYED, cursor, limit, reverse=reverse)
        ids += [job.id for job in jobs]
        if cursor is None:
            return ids
        await shelved.move_out(pass_over=len(ids) % 3, most=5)
        await shelved.mover.load(TOPIC, [job.id for job in jobs[::2]])


async def check_counts(shelved: Shelved, dues: list[int], begin_ms: int, chance: Random) -> None:
    await shelved.move_out(pass_over=chance.randrange(5))
    view = await shelved.engine.topics.get(TOPIC)
    assert (view.counts[JobState.DELAYED], view.next_due_at_ms) == (len(dues), min(dues))
    end_ms = begin_ms + SPAN_MS // 2
    buckets = chance.randrange(1, 9)
    forecast = await shelved.engine.forecasts.forecast(
        None, lambda _: True, from_ms=begin_ms, to_ms=end_ms, buckets=buckets
    )
    found = forecast.topics[TOPIC]
    expected = [sum(low <= due_ms < high for due_ms in dues) for low, high in pairwise(forecast.period.ends)]
    assert (found.delayed, found.before, list(found.counts)) == (len(dues), 0, expected)


async def test_counts_read_the_shorter_part_of_a_minute(shelved: Shelved) -> None:
    minute_ms = (int(time.time() * 1000) + FAR_MS) // 60_000 * 60_000
    for second in range(60):
        await shelved.put(f"j{second}", minute_ms + second * 1000)
    await shelved.move_out()
    times = [minute_ms - 1, minute_ms, minute_ms + 1, minute_ms + 30_000, minute_ms + 45_500, minute_ms + 60_000]
    assert await shelved.mover.counts_before(TOPIC, times) == [0, 0, 1, 30, 46, 60]


async def test_a_page_ends_early_when_its_jobs_are_large(shelved: Shelved) -> None:
    for number in range(60):
        put = PutJob(topic=TOPIC, id=f"j{number:02}", delay=FAR_MS / 1000 + number, body="x" * 60_000)
        await shelved.engine.puts.put(put)
    for _ in range(5):  # a batch has at most a megabyte
        await shelved.move_out()
    page = await shelved.mover.page(TOPIC, Wanted(), 60)
    assert (page.looked_at, page.has_more, page.end and page.end[1]) == (25, True, "j24")
    assert await pages(shelved, None, 60, reverse=True) == [f"j{number:02}" for number in reversed(range(60))]

"""Lists with filters, and redrives and purges by tag and reason."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.errors import InvalidInput, TopicNotFound
from deferd.contract.model import JobState, PutJob
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.topics import JobFilter
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs

DELAYED, READY, RESERVED, DEAD, FINISHED = JobState


async def put_some(driver: EngineDriver) -> None:
    """Jobs a-0 to a-4 are dead, a-0 to a-2 buried, the others expired; b-0 to b-4 are delayed by 10 s more each.
    Their groups are 0, 1, 2, 0 and 1.
    """
    for number in range(5):
        tags = ["even", "all"] if number % 2 == 0 else ["all"]
        fields: dict[str, Any] = {"ttl": 5} if number > 2 else {}
        await driver.put(f"a-{number}", tags=tags, **fields, group=str(number % 3))
        await driver.put(f"b-{number}", delay=1000 + 10 * number, tags=tags, group=str(number % 3))
    for popped in await driver.pop(3):
        await driver.deliveries.bury(TOPIC, popped.id, ANY_RECEIPT, error=f'could not "send" {popped.id}: 502')
    await driver.pass_time(6)


async def search(
    driver: EngineDriver, state: JobState | None = None, *, limit: int = 100, reverse: bool = False, **wanted: Any
) -> tuple[list[str], int]:
    """The ids of all pages, and how many jobs were looked at."""
    ids: list[str] = []
    cursor, looked_at, more = None, 0, True
    while more:
        jobs, cursor, looked = await driver.topics.search(
            TOPIC, JobFilter(**wanted), state, cursor, limit, reverse=reverse
        )
        assert len(jobs) <= limit
        ids += [job.id for job in jobs]
        looked_at += looked
        more = cursor is not None
    return ids, looked_at


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_each_filter_finds_its_jobs(driver: EngineDriver, limit: int) -> None:
    await put_some(driver)
    due = [(await driver.queue.get(TOPIC, f"b-{number}")).due_at_ms for number in range(5)]
    evens = ["a-0", "a-2", "a-4", "b-0", "b-2", "b-4"]
    assert await search(driver, tag="even", limit=limit) == (evens, 6)
    assert await search(driver, DEAD, tag="even", limit=limit) == (evens[:3], 6)
    assert (await search(driver, tag="even", id_prefix="b-", limit=limit))[0] == evens[3:]
    assert await search(driver, tag="none", limit=limit) == ([], 0)
    assert sorted((await search(driver, group="1", limit=limit))[0]) == ["a-1", "a-4", "b-1", "b-4"]
    assert (await search(driver, DEAD, group="1", tag="even", limit=limit))[0] == ["a-4"]
    ids, looked_at = await search(driver, DELAYED, due_after_ms=due[1], due_before_ms=due[4], limit=limit)
    assert (ids, looked_at) == (["b-1", "b-2", "b-3"], 3)
    assert sorted((await search(driver, due_before_ms=due[1], limit=limit))[0]) == [
        "a-0", "a-1", "a-2", "a-3", "a-4", "b-0"
    ]  # fmt: skip
    ids, looked_at = await search(driver, id_prefix="a-", limit=limit)
    assert (sorted(ids), looked_at) == ([f"a-{number}" for number in range(5)], 10)
    assert await search(driver, DEAD, error='"send" a-1', limit=limit) == (["a-1"], 5)
    assert (await search(driver, error="502", id_prefix="a-", tag="even", limit=limit))[0] == ["a-0", "a-2"]
    assert (await search(driver, error=".", limit=limit))[0] == [], "a text, not a pattern"
    some = ("b-1", "a-1", "none", "a-4", "a-1")
    assert await search(driver, ids=some, limit=limit) == (["a-1", "a-4", "b-1"], 4)
    assert (await search(driver, ids=some, limit=limit, reverse=True))[0] == ["b-1", "a-4", "a-1"]
    assert (await search(driver, DEAD, ids=some, tag="even", limit=limit))[0] == ["a-4"]
    assert (await search(driver, ids=some, due_before_ms=due[1], limit=limit))[0] == ["a-1", "a-4"]


@pytest.mark.parametrize("limit", [1, 100])
async def test_the_jobs_of_a_group_of_dead_jobs_are_listed_exactly(driver: EngineDriver, limit: int) -> None:
    errors = {
        "a": "order 1042 not found", "b": "order 7 not found", "c": "the order 7 not found", "d": "order * not found",
        "e": None, "f": "KeyError: 'email'", "g": "KeyError: 'total'", "h": "order  9\tnot found", "i": "'x 1' and 2",
    }  # fmt: skip
    for job_id, error in errors.items():
        await driver.put(job_id)
        [popped] = await driver.pop(1)
        await driver.deliveries.bury(TOPIC, popped.id, ANY_RECEIPT, error=error)
    await driver.put("late", ttl=5)
    await driver.pass_time(6)
    await driver.put("alive")

    async def found(**wanted: Any) -> list[str]:
        return sorted((await search(driver, DEAD, limit=limit, **wanted))[0])

    assert await found(error_group="order * not found") == ["a", "b", "d", "h"]
    assert await found(error_group="KeyError: 'email'") == ["f"]
    assert await found(error_group="'*' and *") == ["i"]
    assert await found(error_group="*") == []
    assert await found(error_group="") == ["e", "late"]
    assert await found(error_group="", reason="expired") == ["late"]
    assert await found(reason="buried") == sorted(errors)


@pytest.mark.parametrize("limit", [1, 100])
async def test_jobs_that_wait_for_another_attempt_are_listed(driver: EngineDriver, limit: int) -> None:
    for job_id in ("a", "b", "c", "d"):
        await driver.put(job_id, tags=["t"])
        [popped] = await driver.pop(1)
        counts = job_id != "c"
        await driver.deliveries.release(TOPIC, popped.id, ANY_RECEIPT, delay_ms=600_000, error=job_id, counts=counts)
    await driver.put("later", delay=500)
    assert (await search(driver, DELAYED, retrying=True, limit=limit))[0] == ["a", "b", "d"]
    assert (await search(driver, DELAYED, retrying=True, tag="t", error="b", limit=limit))[0] == ["b"]
    assert JobFilter(retrying=True).only_state is DELAYED


_ERRORS = ["GET https://a/b: 502", 'no "x/y" (a=1)', "100%", "//", '"', "Müller\n/tmp", "z", "%a-", None]


@pytest.mark.parametrize("size", [0, 10, 5000])
async def test_an_error_is_found_by_any_part_of_it_and_not_by_the_body(driver: EngineDriver, size: int) -> None:
    """The script looks for the longest part that needs no escapes first, in the record as it is or in its extra."""
    for number, error in enumerate(_ERRORS):
        body = "".join(other or "" for other in _ERRORS)[:size] + "x" * size
        await driver.put(f"j{number}", body=body, tags=["GET", "z-tag"])
        [popped] = await driver.pop(1)
        await driver.deliveries.bury(TOPIC, popped.id, ANY_RECEIPT, error=error)
    for part in (*filter(None, _ERRORS), "https:", "/b: 50", "b", "(a", ".", "GET", "/", "a", "üller", "\n/", "GET /"):
        expected = [f"j{number}" for number, error in enumerate(_ERRORS) if error and part in error]
        assert await search(driver, DEAD, error=part) == (expected, len(_ERRORS)), part


async def test_pages_of_records_of_all_sizes_have_each_job_once(driver: EngineDriver) -> None:
    """Several portions of a megabyte, which end anywhere between jobs that are found and others."""
    for number in range(60):
        size = (0, 300_000, 20, 40_000)[number % 4]
        await driver.put(f"{'ab'[number % 3 % 2]}-{number:03}", delay=60 + number, body="x" * size)
    every = [f"{'ab'[number % 3 % 2]}-{number:03}" for number in range(60)]
    for prefix in ("", "a-", "b-"):
        expected = [one for one in every if one.startswith(prefix)]
        for limit in (7, 100):
            assert await search(driver, DELAYED, id_prefix=prefix, limit=limit) == (expected, 60)
            reverse = await search(driver, DELAYED, id_prefix=prefix, limit=limit, reverse=True)
            assert reverse == (expected[::-1], 60)


async def test_found_jobs_are_complete(driver: EngineDriver) -> None:
    await put_some(driver)
    await driver.put("c", tags=["c"])
    [popped] = await driver.pop(1, consumer="worker-1")
    [found], _, _ = await driver.topics.search(TOPIC, JobFilter(tag="c"))
    assert found == await driver.queue.get(TOPIC, popped.id)
    assert found.reserved_by == "worker-1"


async def test_a_page_looks_at_ten_thousand_jobs_at_most(driver: EngineDriver) -> None:
    for at in range(0, 12_000, 1000):
        await driver.puts.put_many([PutJob(topic=TOPIC, id=f"j{n}", delay=60) for n in range(at, at + 1000)])
    await driver.put("last", delay=100)
    jobs, cursor, looked_at = await driver.topics.search(TOPIC, JobFilter(id_prefix="last"))
    assert (jobs, looked_at, cursor is None) == ([], 10_000, False)
    jobs, cursor, looked_at = await driver.topics.search(TOPIC, JobFilter(id_prefix="last"), cursor=cursor)
    assert ([job.id for job in jobs], looked_at, cursor) == (["last"], 2001, None)


async def test_large_records_end_a_page(driver: EngineDriver) -> None:
    for number in range(4):
        await driver.put(f"j{number}", delay=60 + number, body="x" * 700_000, tags=["x"])
    jobs, cursor, _ = await driver.topics.search(TOPIC, JobFilter(id_prefix="j"))
    assert (len(jobs), cursor is None) == (2, False)
    assert (await search(driver, id_prefix="j"))[0] == ["j0", "j1", "j2", "j3"]
    assert (await search(driver, tag="x"))[0] == ["j0", "j1", "j2", "j3"]


async def test_cursors_of_other_lists_are_refused(driver: EngineDriver) -> None:
    await put_some(driver)
    _, by_tag, _ = await driver.topics.search(TOPIC, JobFilter(tag="all"), limit=1)
    _, by_state, _ = await driver.topics.search(TOPIC, JobFilter(id_prefix="b"), DELAYED, limit=1)
    with pytest.raises(InvalidInput):
        await driver.topics.search(TOPIC, JobFilter(id_prefix="b"), cursor=by_tag)
    with pytest.raises(InvalidInput):
        await driver.topics.search(TOPIC, JobFilter(tag="all"), cursor=by_state)
    with pytest.raises(TopicNotFound):
        await driver.topics.search("nothing", JobFilter(tag="all"))


async def dead(driver: EngineDriver) -> list[str]:
    jobs, _ = await driver.topics.jobs(TOPIC, DEAD)
    return sorted(job.id for job in jobs)


async def test_dead_jobs_are_redriven_by_tag_and_reason(driver: EngineDriver) -> None:
    await put_some(driver)
    assert await redrive_jobs(driver.engine, TOPIC, tag="even", reason="expired") == 1
    assert await dead(driver) == ["a-0", "a-1", "a-2", "a-3"]
    assert await redrive_jobs(driver.engine, TOPIC, limit=1, tag="even") == 1
    assert await dead(driver) == ["a-1", "a-2", "a-3"]
    assert await redrive_jobs(driver.engine, TOPIC, ["a-1", "a-2", "a-3"], reason="expired") == 1
    assert await redrive_jobs(driver.engine, TOPIC, ["a-1", "a-2"], tag="even") == 1
    assert await redrive_jobs(driver.engine, TOPIC, tag="none") == 0
    assert await redrive_jobs(driver.engine, TOPIC, reason="buried") == 1
    assert await dead(driver) == []
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


async def test_a_limit_counts_only_jobs_of_the_reason(driver: EngineDriver) -> None:
    fields: dict[bool, dict[str, Any]] = {True: {"ttl": 5}, False: {"max_attempts": 1, "ttr": 5, "ttl": 600}}
    await driver.puts.put_many([job(f"j{number:04}", **fields[number % 3 > 0]) for number in range(1200)])
    popped = await driver.pop(1200)
    await driver.held_jobs.return_popped([one for one in popped if int(one.id[1:]) % 3])
    await driver.pass_time(6)
    assert await driver.counts() == {"dead": 1200}
    assert await redrive_jobs(driver.engine, TOPIC, limit=500, reason="expired") == 500
    assert await redrive_jobs(driver.engine, TOPIC, limit=500, reason="expired") == 300
    assert await driver.counts() == {"ready": 800, "dead": 400}
    assert await purge_jobs(driver.engine, TOPIC, reason="expired") == 0
    assert await purge_jobs(driver.engine, TOPIC, reason="attempts_exhausted") == 400
    assert await driver.counts() == {"ready": 800}


async def test_jobs_are_purged_by_tag_and_reason(driver: EngineDriver) -> None:
    await put_some(driver)
    assert await purge_jobs(driver.engine, TOPIC, DELAYED, tag="even") == 3
    assert await purge_jobs(driver.engine, TOPIC, tag="even", reason="buried") == 2
    assert await purge_jobs(driver.engine, TOPIC, reason="expired") == 2
    assert await purge_jobs(driver.engine, TOPIC, tag="all") == 3
    assert await driver.counts() == {}
    assert driver.server.command("KEYS", "deferd:{0}:tag/*") == []
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_the_opposite_order_has_the_same_jobs(driver: EngineDriver, limit: int) -> None:
    await put_some(driver)
    for number in range(3):  # with one due time: ordered by id
        await driver.put(f"c-{number}", delay=2000)
    listed: list[str] = []
    cursor, more = None, True
    while more:
        jobs, cursor = await driver.topics.jobs(TOPIC, DELAYED, cursor, limit, reverse=True)
        listed += [job.id for job in jobs]
        more = cursor is not None
    assert listed == ["c-2", "c-1", "c-0", "b-4", "b-3", "b-2", "b-1", "b-0"]
    assert (await search(driver, DELAYED, limit=limit, reverse=True, id_prefix="b-"))[0] == listed[3:]
    assert (await search(driver, limit=limit, reverse=True, tag="even"))[0] == [
        "b-4", "b-2", "b-0", "a-4", "a-2", "a-0"
    ]  # fmt: skip
    due = [(await driver.queue.get(TOPIC, f"b-{number}")).due_at_ms for number in range(5)]
    some = await search(driver, DELAYED, limit=limit, reverse=True, due_after_ms=due[1], due_before_ms=due[4])
    assert some == (["b-3", "b-2", "b-1"], 3)


async def test_a_page_in_the_opposite_order_goes_on_where_a_job_was_cancelled(driver: EngineDriver) -> None:
    for number in range(6):
        await driver.put(f"b-{number}", delay=1000 + number)
    jobs, cursor = await driver.topics.jobs(TOPIC, DELAYED, None, 2, reverse=True)
    assert [job.id for job in jobs] == ["b-5", "b-4"]
    await driver.cancels.cancel(TOPIC, "b-4")
    jobs, cursor = await driver.topics.jobs(TOPIC, DELAYED, cursor, 3, reverse=True)
    assert [job.id for job in jobs] == ["b-3", "b-2", "b-1"]

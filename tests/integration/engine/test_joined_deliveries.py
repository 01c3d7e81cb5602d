"""release.lua, touch.lua and bury.lua with many jobs in one call: each has the result that it would have alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import DeadReason, FinishItem, TopicSettings
from deferd.engine import metrics
from deferd.engine.deliveries import lease_end_ms, released
from deferd.engine.group_commit import settle
from deferd.engine.record import ANY_RECEIPT, IMPOSSIBLE_RECEIPT, JobRecord, Receipt
from deferd.engine.script_arguments import encode_bury, encode_touch
from deferd.engine.script_arguments import encode_release as encode_any_release
from deferd.engine.scripts import Scripts, request_ending_at, request_ends_at_s
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.engine.window_times import NIGHT, OFFICE, TUESDAY_OPENING, instant, move_to, ms, now_ms
from tests.integration.store.store_servers import StoreServer

KINDS = ("release", "touch", "bury")
encode_release = partial(encode_any_release, delay_ms=None, error=None, counts=True)


async def together(add: Callable[..., None], calls: Sequence[Any]) -> list[Any]:
    """The results, or errors, of calls that are made in one turn of the event loop."""
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in calls]
    for call, future in zip(calls, futures, strict=True):
        add(TOPIC, call, partial(settle, future))
    return await asyncio.gather(*futures, return_exceptions=True)


async def results_of(driver: EngineDriver, kind: str, jobs: Sequence[tuple[str, Receipt]]) -> list[Any]:
    """The results of calls of one kind, made together."""
    if kind == "release":
        return await together(driver.deliveries.add_release, [encode_release(*one) for one in jobs])
    if kind == "touch":
        return await together(driver.deliveries.add_touch, [encode_touch(*one, None) for one in jobs])
    return await together(driver.deliveries.add_bury, [encode_bury(*one, "no") for one in jobs])


async def end(driver: EngineDriver, kind: str, jobs: Sequence[tuple[str, Receipt]]) -> list[int]:
    """The codes of calls of one kind, made together; 0 for a touch that was done."""
    codes = [one[0] if isinstance(one, list) else one for one in await results_of(driver, kind, jobs)]
    return [0 if code > 7 else code for code in codes]


async def hold(driver: EngineDriver, *job_ids: str, **fields: Any) -> dict[str, JobRecord]:
    for job_id in job_ids:
        await driver.put(job_id, **fields)
    return {one.id: one for one in await driver.pop(len(job_ids), consumer="one")}


def script_calls(server: StoreServer) -> int:
    count: int = server.command("INFO", "commandstats").get("cmdstat_fcall", {"calls": 0})["calls"]
    return count


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_that_are_made_together_are_one_call_of_the_store(driver: EngineDriver, kind: str) -> None:
    ids = [f"job-{number}" for number in range(100)]
    held = await hold(driver, *ids)
    await end(driver, kind, [("unknown", ANY_RECEIPT)])  # the store must know the script
    before = script_calls(driver.server)
    assert await end(driver, kind, [(one.id, one.receipt) for one in held.values()]) == [0] * 100
    assert script_calls(driver.server) == before + 1
    assert await driver.counts() == {{"release": "delayed", "touch": "reserved", "bury": "dead"}[kind]: 100}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.parametrize("kind", KINDS)
async def test_each_job_has_its_own_code(driver: EngineDriver, kind: str) -> None:
    held = await hold(driver, "dead", "finished", "cancelled", "other", "any", "live", retain=60)
    await driver.deliveries.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.queue.finish(TOPIC, "finished", ANY_RECEIPT)
    await driver.cancels.cancel(TOPIC, "cancelled")
    await driver.put("delayed", delay=60)
    await driver.put("ready")
    jobs = [
        ("live", held["live"].receipt),
        ("unknown", ANY_RECEIPT),
        ("other", held["live"].receipt),
        ("other", IMPOSSIBLE_RECEIPT),
        ("cancelled", held["cancelled"].receipt),
        ("cancelled", IMPOSSIBLE_RECEIPT),
        *((state, ANY_RECEIPT) for state in ("delayed", "ready", "dead", "finished", "any")),
    ]
    assert await end(driver, kind, jobs) == [0, 1, 2, 2, 3, 1, 4, 5, 6, 7, 0]
    assert (await driver.queue.get(TOPIC, "other")).reserved_by == "one"


@pytest.mark.parametrize(("kind", "code"), [("release", 4), ("touch", 0), ("bury", 6)])
async def test_the_same_job_twice_is_as_two_calls_one_after_the_other(
    driver: EngineDriver, kind: str, code: int
) -> None:
    held = await hold(driver, "a", "b", "c")
    jobs = [("a", held["a"].receipt), ("b", IMPOSSIBLE_RECEIPT), ("a", ANY_RECEIPT), ("b", held["b"].receipt)]
    jobs += [("a", held["a"].receipt), ("c", ANY_RECEIPT), ("c", held["c"].receipt)]
    assert await end(driver, kind, jobs) == [0, 2, code, 0, code, 0, code]
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.attempts, len(stored.endings.attempts_log)) == (1, kind != "touch")
    facts: Any = await driver.topics.why(TOPIC, "a")
    assert facts.touches == (3 if kind == "touch" else 0)


async def test_of_two_touches_of_a_job_the_last_one_counts(driver: EngineDriver) -> None:
    held = await hold(driver, "a")
    touches = [encode_touch("a", held["a"].receipt, ttr_ms, ttr_ms) for ttr_ms in (600_000, 5000)]
    first, last = await together(driver.deliveries.add_touch, touches)
    assert first - last == 595_000
    job = await driver.queue.get(TOPIC, "a")
    assert (job.reserved_until_ms, job.progress) == (last, "5000")
    await driver.pass_time(5)
    assert await driver.counts() == {"ready": 1}


async def test_releases_that_share_a_call_each_do_their_own(driver: EngineDriver) -> None:
    held = await hold(driver, "plain", "waits", "snoozed", "follow-up")
    held |= await hold(driver, "last", max_attempts=1)
    held |= await hold(driver, "schedule", backoff={"kind": "schedule", "seconds": [0]}, dead_retain=0)
    await driver.deliveries.release(TOPIC, "schedule", ANY_RECEIPT)
    await driver.run_timer()
    held |= {one.id: one for one in await driver.pop(1)}
    held |= await hold(driver, "late", deadline=60, tags=["x"], ttr=3600)
    held |= await hold(driver, "in-time", deadline=600, time_limit=300)
    await driver.put("follow-up", body="next", on_conflict="replace", if_reserved="after")
    driver.move_clock(60)
    now = await now_ms(driver)
    calls = [
        encode_release("plain", held["plain"].receipt),
        encode_release("waits", ANY_RECEIPT, delay_ms=5000, error="502 é\nTraceback"),
        encode_release("snoozed", held["snoozed"].receipt, delay_ms=7000, error="", counts=False),
        encode_release("last", held["last"].receipt, delay_ms=0, error="no"),
        encode_release("schedule", held["schedule"].receipt),
        encode_release("late", held["late"].receipt, delay_ms=7000, counts=False),
        encode_release("in-time", held["in-time"].receipt),
        encode_release("follow-up", held["follow-up"].receipt, delay_ms=1000),
    ]
    before = counted()
    replies = [released(reply, TOPIC, "") for reply in await together(driver.deliveries.add_release, calls)]
    waits = [None if one.due_at_ms is None else round((one.due_at_ms - now) / 1000) for one in replies]
    assert waits == [2, 5, 7, None, None, None, 2, 1]
    assert [one.attempts for one in replies] == [1, 1, 0, 1, 2, 0, 1, 1]
    reasons = [DeadReason.ATTEMPTS, DeadReason.SCHEDULE, DeadReason.DEADLINE]
    assert [after - one for after, one in zip(counted(), before, strict=True)] == [6, 2, 1, 1, 1]
    assert await driver.counts() == {"delayed": 5, "dead": 2}
    stored = {one.id: await driver.queue.get(TOPIC, one.id) for one in held.values() if one.id != "schedule"}
    assert [stored[job_id].reason for job_id in ("last", "late")] == [reasons[0], reasons[2]]
    errors = {job_id: one.last_error for job_id, one in stored.items()}
    assert (errors["plain"], errors["waits"], errors["snoozed"]) == (None, "502 é\nTraceback", "")
    assert [tuple(entry[2:]) for entry in stored["waits"].endings.attempts_log] == [
        ("released", "one", "502 é\nTraceback")
    ]
    assert (stored["snoozed"].endings.snoozes, stored["snoozed"].endings.attempts_log) == (1, ())
    assert stored["in-time"].deadline_at_ms == held["in-time"].due_at_ms + 600_000
    assert {one.reserved_by for one in stored.values()} == {None}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


def counted() -> list[float]:
    """Releases, snoozes and deaths of the topic so far."""
    reasons = (DeadReason.ATTEMPTS, DeadReason.SCHEDULE, DeadReason.DEADLINE)
    counters = [metrics.RELEASES.labels(TOPIC), metrics.SNOOZES.labels(TOPIC)]
    return [one._value.get() for one in counters + [metrics.DEATHS.labels(TOPIC, reason.value) for reason in reasons]]


async def test_burials_are_counted(driver: EngineDriver) -> None:
    held = await hold(driver, "a", "b", "c")
    buried = metrics.DEATHS.labels(TOPIC, "buried")
    before = buried._value.get()
    assert await end(driver, "bury", [(one.id, one.receipt) for one in held.values()] * 2) == [0, 0, 0, 6, 6, 6]
    assert buried._value.get() == before + 3


async def test_leases_end_at_the_time_limit_or_deadline_of_each_job(driver: EngineDriver) -> None:
    held = await hold(driver, "plain") | await hold(driver, "ttr", ttr=30) | await hold(driver, "limit", time_limit=90)
    held |= await hold(driver, "deadline", deadline=120, ttr=600)
    driver.move_clock(20)
    now = await now_ms(driver)
    for ttr_ms, expected in ((None, [60, 30, 60, 100]), (3_600_000, [3600, 3600, 70, 100])):
        touches = [
            encode_touch(job_id, held[job_id].receipt, ttr_ms) for job_id in ("plain", "ttr", "limit", "deadline")
        ]
        ends = await together(driver.deliveries.add_touch, touches)
        assert [round((lease_end_ms(one, TOPIC, "") - now) / 1000) for one in ends] == expected
    assert round(await driver.run_timer()) == 1  # it looks again at least once a second
    await driver.pass_time(71)
    assert await driver.counts() == {"reserved": 3, "ready": 1}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_reads_a_megabyte_of_records_and_others_follow(driver: EngineDriver, kind: str) -> None:
    await end(driver, kind, [("unknown", ANY_RECEIPT)])
    ids = [f"job-{number}" for number in range(6)]
    for job_id in ids:
        await driver.put(job_id, body="x" * 400_000)
    held = [one for _ in range(3) for one in await driver.pop(2)]
    before = script_calls(driver.server)
    assert await end(driver, kind, [(one.id, one.receipt) for one in held]) == [0] * 6
    assert script_calls(driver.server) == before + 2
    stored = [await driver.queue.get(TOPIC, job_id) for job_id in ids]
    assert [(len(one.body), one.attempts) for one in stored] == [(400_002, 1)] * 6


@pytest.mark.parametrize("kind", KINDS)
async def test_when_the_store_fails_in_between_only_the_jobs_that_are_left_have_the_error(
    driver: EngineDriver, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id, body="x" * 1_100_000)
    held = [one for _ in range(3) for one in await driver.pop(1)]
    run, calls = Scripts.run, 0

    async def fail_later(self: Scripts, verb: str, *args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += verb == kind
        if calls > 1:
            raise StoreUnavailable("it is away")
        return await run(self, verb, *args, **more)

    monkeypatch.setattr(Scripts, "run", fail_later)
    before = metrics.DEATHS.labels(TOPIC, "buried")._value.get()
    first, *left = await results_of(driver, kind, [(one.id, one.receipt) for one in held])
    monkeypatch.undo()
    assert not isinstance(first, Exception)
    assert [type(one) for one in left] == [StoreUnavailable] * 2
    assert metrics.DEATHS.labels(TOPIC, "buried")._value.get() == before + (kind == "bury")
    assert (await driver.counts())["reserved"] == (3 if kind == "touch" else 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_damaged_records_keep_no_other_job_from_being_served(driver: EngineDriver, kind: str) -> None:
    held = await hold(driver, "short", "unreadable", "well")
    driver.server.command("HSET", f"{KEY}:pool", "short", "short")
    raw = driver.server.command("HGET", f"{KEY}:pool", "unreadable")
    driver.server.command("HSET", f"{KEY}:pool", "unreadable", raw[:22] + b'\x03\0\0\0{"p' + b"null")
    jobs = [(job_id, held[job_id].receipt) for job_id in ("short", "unreadable", "well")]
    assert await end(driver, kind, jobs) == [2, 2, 0]


async def test_a_touch_that_names_its_ttr_reads_no_more_of_the_record(driver: EngineDriver) -> None:
    held = await hold(driver, "unreadable")
    raw = driver.server.command("HGET", f"{KEY}:pool", "unreadable")
    driver.server.command("HSET", f"{KEY}:pool", "unreadable", raw[:22] + b'\x03\0\0\0{"p' + b"null")
    touches = [encode_touch("unreadable", held["unreadable"].receipt, 9000, progress) for progress in (None, 0.5)]
    lease_ends = await together(driver.deliveries.add_touch, touches)
    assert min(lease_ends) > 7


@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_that_is_out_of_memory_takes_them(driver: EngineDriver, kind: str) -> None:
    """Their first command deletes."""
    held = await hold(driver, "a", "b")
    await end(driver, kind, [("unknown", ANY_RECEIPT)])
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        codes = await end(driver, kind, [(one.id, one.receipt) for one in held.values()])
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    assert codes == [0, 0]


async def test_events_tell_of_each_job(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(events=100))
    held = await hold(driver, "a", "b") | await hold(driver, "c", max_attempts=1)
    calls = [
        encode_release("a", held["a"].receipt, error="502\nTraceback"),
        encode_release("b", held["b"].receipt, delay_ms=5000, counts=False),
        encode_release("c", held["c"].receipt, error="no"),
    ]
    await together(driver.deliveries.add_release, calls)
    log = driver.server.command("LRANGE", f"{KEY}:events/log", -3, -1)
    told = [entry.decode().split(" ") for entry in log]
    assert [(words[0][0], *words[1:2]) for words in told] == [("L", "a"), ("S", "b"), ("D", "c")]
    assert [words[-1] for words in told[::2]] == ["502", "no"]
    assert driver.server.command("HGET", f"{KEY}:events/seq", "seq") == str(3 + 3 + 3).encode()


# Opening hours


async def test_only_releases_outside_opening_hours_are_sent_again(driver: EngineDriver) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    held = await hold(driver, "office", "stale", window=OFFICE) | await hold(driver, "plain")
    held |= await hold(driver, "last", window=OFFICE, max_attempts=1)
    await driver.put("night", window=NIGHT, delay=1)
    await driver.deliveries.release(TOPIC, "plain", ANY_RECEIPT, delay_ms=0)
    await driver.run_timer()
    held |= {one.id: one for one in await driver.pop(1)}
    receipts = {job_id: one.receipt for job_id, one in held.items()} | {"stale": IMPOSSIBLE_RECEIPT}
    calls = [
        encode_release(job_id, receipts[job_id], delay_ms=120_000) for job_id in ("office", "stale", "plain", "last")
    ]
    before = metrics.RELEASES.labels(TOPIC)._value.get()
    office, stale, plain, last = await together(driver.deliveries.add_release, calls)
    assert instant(released(office, TOPIC, "").due_at_ms) == TUESDAY_OPENING
    assert (stale, last[1]) == ([2], b"dead")
    assert instant(released(plain, TOPIC, "").due_at_ms)[:16] == "2030-01-14T16:01"
    stored = await driver.queue.get(TOPIC, "office")
    assert (stored.due_at_ms, stored.attempts) == (ms(TUESDAY_OPENING), 1)
    assert metrics.RELEASES.labels(TOPIC)._value.get() == before + 3


async def test_a_release_is_placed_for_as_long_as_its_request_lasts(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    held = await hold(driver, "a", window=OFFICE)
    ends_s: list[float] = []
    run = Scripts.run

    async def note(self: Scripts, *args: Any, **more: Any) -> Any:
        ends_s.append(request_ends_at_s())
        return await run(self, *args, **more)

    monkeypatch.setattr(Scripts, "run", note)
    end_s = asyncio.get_running_loop().time() + 50
    with request_ending_at(end_s):
        placing = together(driver.deliveries.add_release, [encode_release("a", held["a"].receipt, delay_ms=120_000)])
        task = asyncio.get_running_loop().create_task(placing)
        await asyncio.sleep(0)
    await task
    assert ends_s == [end_s, end_s]


async def test_a_release_that_cannot_be_placed_is_an_error_and_changes_nothing(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    held = await hold(driver, "a", window=OFFICE)

    async def fails(*_args: Any) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(driver.engine.placer, "place_retry", fails)
    [error] = await together(driver.deliveries.add_release, [encode_release("a", held["a"].receipt, delay_ms=120_000)])
    assert isinstance(error, StoreUnavailable)
    assert await driver.counts() == {"reserved": 1}
    [result] = await driver.queue.finish_many(TOPIC, [FinishItem(id="a", receipt=str(held["a"].receipt))])
    assert result.status == 200

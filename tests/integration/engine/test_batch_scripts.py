"""Batches on the fast path against the real store: they end as on the general path, and pops keep their bound."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import orjson
import pytest
from redis.exceptions import ResponseError

from deferd.api.auth.api_keys import NO_BOUNDS as NO_KEY_BOUNDS
from deferd.api.body_decoding import decode_batch, decode_finishes, decode_put
from deferd.contract.errors import JobNotFound
from deferd.contract.fields import POLICY
from deferd.contract.model import FinishBatch, FinishItem, JobState, PutBatch, PutJob, TopicSettings
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, Receipt
from deferd.engine.script_arguments import NO_BOUNDS, EncodedFinish, EncodedPut, PutBounds, encode_finish
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver

MIB = 1024 * 1024


def puts(*jobs: dict[str, object]) -> bytes:
    return orjson.dumps({"jobs": [{"topic": TOPIC, **fields} for fields in jobs]})


async def test_an_encoded_batch_is_stored_as_its_models(driver: EngineDriver) -> None:
    jobs: list[dict[str, object]] = [
        {"id": "a", "body": {"n": 1.50}},
        {"id": "a"},
        {"id": "b", "delay": 5, "ttr": 7, "max_attempts": 3, "ttl": None, "retain": 1.5, "durability": "memory"},
        {"id": "b", "on_conflict": "keep"},
        {"id": "c", "run_at": "2020-01-01T00:00:00Z", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"},
        {"id": "c", "on_conflict": "replace", "body": [None]},
    ]
    encoded = decode_batch(puts(*jobs), NO_BOUNDS, NO_KEY_BOUNDS)
    assert encoded is not None
    fast = await driver.puts.put_many(encoded.jobs)
    of_fast = [await driver.queue.get(TOPIC, job_id) for job_id in "abc"]
    for job_id in "abc":
        await driver.cancels.cancel(TOPIC, job_id)
    general = await driver.puts.put_many(PutBatch.model_validate_json(puts(*jobs)).jobs)
    assert [(result.id, result.status, result.code) for result in general] == [
        (result.id, result.status, result.code) for result in fast
    ]
    assert [result.status for result in fast] == [201, 409, 201, 200, 201, 200]
    for job_id, stored in zip("abc", of_fast, strict=True):
        again = await driver.queue.get(TOPIC, job_id)
        for name in ("body", "ttr_ms", "max_attempts", "ttl_ms", "retain_ms", "traceparent", "state", "durability"):
            assert getattr(again, name, None) == getattr(stored, name, None), name


async def test_an_encoded_put_is_one_put(driver: EngineDriver) -> None:
    raw = orjson.dumps({"topic": TOPIC, "body": {"a": 1}})
    encoded = decode_put(raw, NO_BOUNDS, NO_KEY_BOUNDS, f"00-{'1' * 32}-{'2' * 16}-01")
    assert isinstance(encoded, EncodedPut)
    put = await driver.puts.put(encoded)
    assert (put.outcome, put.record.id, put.record.body) == ("created", encoded.id, b'{"a":1}')
    assert (await driver.queue.get(TOPIC, encoded.id)).traceparent == f"00-{'1' * 32}-{'2' * 16}-01"


async def test_an_encoded_batch_of_finishes_ends_as_its_models(driver: EngineDriver) -> None:
    codes = []
    for decode in (partial(decode_finishes, _bounds=NO_BOUNDS, key=NO_KEY_BOUNDS), FinishBatch.model_validate_json):
        for job_id in ("gone", "kept", "other", "any", "twice", "cancelled"):
            await driver.put(job_id, retain=0 if job_id != "kept" else 60)
        receipts = {popped.id: str(popped.receipt) for popped in await driver.pop(10)}
        await driver.cancels.cancel(TOPIC, "cancelled")
        await driver.put("waits", delay=10)
        jobs: list[dict[str, object]] = [
            {"id": "gone", "receipt": receipts["gone"]},
            {"id": "kept", "receipt": receipts["kept"], "result": {"ok": 1.0}},
            {"id": "kept", "receipt": receipts["kept"]},
            {"id": "kept", "receipt": receipts["other"]},
            {"id": "other", "receipt": receipts["gone"]},
            {"id": "other", "receipt": "f" * 40 + ".1"},
            {"id": "other", "receipt": ""},
            {"id": "any"},
            {"id": "twice", "receipt": receipts["twice"]},
            {"id": "twice", "receipt": receipts["twice"]},
            {"id": "cancelled", "receipt": receipts["cancelled"]},
            {"id": "waits"},
            {"id": "unknown"},
        ]
        batch = decode(orjson.dumps({"jobs": jobs}))
        assert batch is not None
        codes.append([result.status for result in await driver.queue.finish_many(TOPIC, batch.jobs)])
        assert (await driver.queue.get(TOPIC, "kept")).result == b'{"ok":1.0}'
        for job_id in ("kept", "other", "waits"):
            await driver.cancels.cancel(TOPIC, job_id)
        driver.move_clock(200)  # past the tombstones
        await driver.run_timer()
    assert codes[0] == codes[1] == [200, 200, 200, 409, 409, 409, 409, 200, 200, 404, 410, 409, 404]


async def test_an_encoded_finish_has_a_receipt_of_ten_bytes() -> None:
    finishes = decode_finishes(
        b'{"jobs":[{"id":"a","receipt":"0123456789ab.2","result":[]}]}', NO_BOUNDS, NO_KEY_BOUNDS
    )
    assert finishes is not None
    assert finishes.jobs == [EncodedFinish("a", bytes.fromhex("ab896745230102000000") + b"[]")]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10] * 40, [40]),
        ([10] * 20 + [600_000, 600_000, 10], [21, 2]),
        ([10] * 5 + [MIB], [5, 1]),
        ([MIB, 10, 10], [1, 2]),
        ([1_000_000] + [10] * 20, [21]),
        ([2 * MIB, 10], [1, 1]),
        ([500_000, 500_000, 500_000], [2, 1]),
        ([400_000, 10, 10, 400_000, 10, 400_000], [5, 1]),
        ([1] * 17 + [MIB // 2] * 4, [18, 1, 1, 1]),
    ],
)
async def test_a_pop_returns_1_mib_or_one_job_whatever_the_sizes(
    driver: EngineDriver, sizes: list[int], expected: list[int]
) -> None:
    for number, size in enumerate(sizes):
        await driver.put(f"j{number}", body="x" * size)
    replies = []
    while popped := await driver.pop(100):
        replies.append(popped)
    assert [len(reply) for reply in replies] == expected
    order = [popped.id for reply in replies for popped in reply]
    assert order == [f"j{number}" for number in range(len(sizes))]
    assert [len(popped.body) for reply in replies for popped in reply] == [size + 2 for size in sizes]
    assert await driver.counts() == {"reserved": len(sizes)}


async def test_a_pop_fills_its_reply_as_if_it_measured_each_record(driver: EngineDriver) -> None:
    chance = random.Random(5)
    sizes = [chance.choice([10, 1000, 50_000, 300_000, 700_000]) for _ in range(60)]
    for number, size in enumerate(sizes):
        await driver.put(f"j{number}", body="x" * size)
    records = [size + 2 + 26 for size in sizes]
    at = 0
    while at < len(sizes):
        fitting, room = 0, MIB
        while at + fitting < len(sizes) and records[at + fitting] <= room:
            room -= records[at + fitting]
            fitting += 1
        popped = await driver.pop(100)
        assert len(popped) == max(fitting, 1)
        at += len(popped)


async def test_ids_without_a_readable_record_are_skipped_between_others(driver: EngineDriver) -> None:
    for number in range(40):
        await driver.put(f"j{number:02}")
    for number in (0, 1, 5, 20, 39):
        driver.server.command("HDEL", f"{KEY}:pool", f"j{number:02}")
    for number in (2, 21):
        driver.server.command("HSET", f"{KEY}:pool", f"j{number:02}", "short")
    popped = [job.id for job in await driver.pop(100)]
    assert popped == [f"j{number:02}" for number in range(40) if number not in (0, 1, 2, 5, 20, 21, 39)]
    assert await driver.pop(100) == []


async def test_records_that_are_too_short_do_not_keep_other_jobs_from_being_finished(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    held = {popped.id: popped.receipt for popped in await driver.pop(3)}
    driver.server.command("HSET", f"{KEY}:pool", "a", "short")
    driver.server.command("HSET", f"{KEY}:pool", "waits", b"\0" * 22)
    finishes = [encode_finish(job_id, held.get(job_id, Receipt(0, 1)), None) for job_id in ("a", "b", "waits", "c")]
    results = await driver.queue.finish_many(TOPIC, finishes)
    assert [result.status for result in results] == [409, 200, 409, 200]


# They end as the same calls one by one

OTHER = "orders.single"
TOGETHER = 100
"""As in lua/put.lua."""
COUNTS = (2, TOGETHER, TOGETHER + 1, 2 * TOGETHER + 7)


def put_of(topic: str, fields: dict[str, Any]) -> PutJob:
    return PutJob.model_validate({"topic": topic, **fields})


def drawn_put(draw: random.Random, job_id: str, rare_share: float) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": job_id, "body": draw.choice([None, job_id, {"n": [1.5, "ä"]}, "x" * 300])}
    if draw.random() < 0.7:
        fields["delay"] = draw.choice([0, 500, 6000])
    policy: dict[str, Any] = {"ttl": 3000, "ttr": 700, "max_attempts": 3, "retain": 60}
    policy |= {"deadline": draw.choice([2000, 9000]), "time_limit": 500, "dead_retain": 0, "unique_for": 1000}
    fields |= {name: value for name, value in policy.items() if draw.random() < 0.1}
    rare = {"tags": draw.sample(["x", "y", "z"], 2), "headers": {"tenant": "ä"}, "conflict_with": "live"}
    fields |= {name: value for name, value in rare.items() if draw.random() < rare_share}
    if draw.random() < 0.3:
        fields["on_conflict"] = draw.choice(["reject", "keep", "replace", *(["append"] if rare_share else [])])
    if rare_share and fields.get("on_conflict") == "append" and draw.random() < 0.5:
        fields |= {"max_items": draw.choice([1, 2, 3]), "max_wait": 6000}
    return fields


async def stored_in(driver: EngineDriver, topic: str, ids: list[str]) -> list[Any]:
    """The jobs, without their instants, which differ between calls; how long an appended job waits differs by less."""
    jobs = [await driver.queue.get(topic, job_id) for job_id in ids]
    waits = [round((job.due_at_ms - job.created_at_ms) / 100_000) for job in jobs]
    names = ["id", "state", "body", "attempts", "tags", "headers", "endings", "unique_for_ms", "items"]
    return [
        (*(getattr(job, name) for name in names), [job.stored(field.name) for field in POLICY], wait)
        for job, wait in zip(jobs, waits, strict=True)
    ]


async def in_each_set(driver: EngineDriver, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("delay", "ready", "expiry"):
        ids = driver.server.command("ZRANGE", f"deferd:{{0}}:{topic}:{name}", 0, -1)
        found[name] = ids if name == "ready" else sorted(ids)
    found["index"] = {
        tag: [
            member.removeprefix(f"{topic} ".encode())
            for member in driver.server.command("ZRANGE", f"deferd:{{0}}:tag/{tag}", 0, -1)
            if member.startswith(f"{topic} ".encode())
        ]
        for tag in ("x", "y", "z")
    }
    for name in ("tagged", "tally", "items"):
        found[name] = driver.server.command("HGETALL", f"deferd:{{0}}:{topic}:{name}")
    return found


@pytest.mark.parametrize("rare_share", [0, 0.01, 0.2])
@pytest.mark.parametrize("seed", range(len(COUNTS)))
async def test_a_batch_ends_as_its_puts_one_by_one(driver: EngineDriver, seed: int, rare_share: float) -> None:
    draw = random.Random(seed)
    for topic in (TOPIC, OTHER):
        if seed == 3:
            await driver.topics.set(topic, TopicSettings(ttr=900, ttl=4000))
    count = COUNTS[seed]
    ids = [f"job-{draw.randrange(2 * count if seed % 2 else 10**9)}" for _ in range(count)]
    puts = [drawn_put(draw, job_id, rare_share) for job_id in ids]
    before = [drawn_put(draw, draw.choice(ids), rare_share) for _ in range(seed)]
    singly = []
    for fields in before:
        for topic in (TOPIC, OTHER):
            await driver.puts.put_many([put_of(topic, fields)])
    for fields in puts:
        singly += await driver.puts.put_many([put_of(OTHER, fields)])
    together = await driver.puts.put_many([put_of(TOPIC, fields) for fields in puts])
    assert [(one.id, one.status, one.code) for one in together] == [(one.id, one.status, one.code) for one in singly]
    distinct = sorted(set(ids))
    assert await stored_in(driver, TOPIC, distinct) == await stored_in(driver, OTHER, distinct)
    assert await in_each_set(driver, TOPIC) == await in_each_set(driver, OTHER)


async def test_an_existing_job_in_a_later_step_is_kept(driver: EngineDriver) -> None:
    ids = [f"job-{number}" for number in range(3 * TOGETHER)]
    existing = ids[TOGETHER + 50]
    await driver.put(existing, body="first")
    results = await driver.puts.put_many([put_of(TOPIC, {"id": job_id, "body": "second"}) for job_id in ids])
    assert [one.id for one in results if one.status != 201] == [existing]
    assert (await driver.queue.get(TOPIC, existing)).body == b'"first"'
    assert (await driver.counts()) == {"ready": len(ids)}


async def test_a_batch_forgets_that_earlier_jobs_with_its_ids_were_cancelled(driver: EngineDriver) -> None:
    ids = ["a", "b", "c"]
    await driver.puts.put_many([put_of(TOPIC, {"id": job_id}) for job_id in ids])
    held = await driver.pop(3)
    for job_id in ids:
        await driver.cancels.cancel(TOPIC, job_id)
    await driver.puts.put_many([put_of(TOPIC, {"id": job_id}) for job_id in ids])
    await driver.pop(3)
    for job in held:
        await driver.queue.finish(TOPIC, job.id, ANY_RECEIPT)
        with pytest.raises(JobNotFound):  # not JobCancelled, as of the earlier job
            await driver.queue.finish(TOPIC, job.id, ANY_RECEIPT)
    assert await driver.counts() == {}


@pytest.mark.parametrize("size", [3, TOGETHER, 250])
async def test_an_id_may_occur_twice_among_new_jobs(driver: EngineDriver, size: int) -> None:
    puts: list[dict[str, Any]] = [{"id": f"job-{number}"} for number in range(size - 3)]
    puts += [{"id": "a", "body": 1}, {"id": "b", "body": 2}, {"id": "a", "body": 3}]
    results = await driver.puts.put_many([put_of(TOPIC, fields) for fields in puts])
    assert [one.status for one in results] == [201] * (size - 1) + [409]
    assert (await driver.queue.get(TOPIC, "a")).body == b"1"
    assert await driver.counts() == {"ready": size - 1}


@pytest.mark.parametrize("size", [1, 3])
async def test_instants_in_the_past_are_due_now(driver: EngineDriver, size: int) -> None:
    """So the ttl has not passed already."""
    puts = [{"id": f"job-{number}", "run_at": "2020-01-31T09:30:00Z", "ttl": 60} for number in range(size)]
    await driver.puts.put_many([put_of(TOPIC, fields) for fields in puts])
    jobs = await driver.pop(size)
    assert [job.due_at_ms for job in jobs] == [job.created_at_ms for job in jobs]
    assert len(jobs) == size


async def test_a_batch_within_a_limit_stores_no_more_than_that(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=150))
    results = await driver.puts.put_many([put_of(TOPIC, {"id": f"job-{number}"}) for number in range(300)])
    assert [one.status for one in results] == [201] * 150 + [429] * 150
    assert await driver.counts() == {"ready": 150}


async def test_a_batch_within_the_limit_of_its_caller_stores_no_more_than_that(driver: EngineDriver) -> None:
    jobs = [put_of(TOPIC, {"id": f"job-{number}"}) for number in range(300)]
    results = await driver.puts.put_many(jobs, PutBounds(max_jobs=150))
    assert [one.status for one in results] == [201] * 150 + [429] * 150


@pytest.mark.parametrize("count", [64, 65, 300])
async def test_many_deliveries_of_a_request_are_repeated_and_forgotten(driver: EngineDriver, count: int) -> None:
    ids = [f"job-{number}" for number in range(count)]
    await driver.puts.put_many([put_of(TOPIC, {"id": job_id}) for job_id in ids])
    held = await driver.pop(count, request_id="r1", consumer="c1")
    request = f"{KEY}:request/r1"
    expected = {job.id: b"%d %d 1 0" % (2 * at + 1, job.nonce) for at, job in enumerate(held)}
    assert [job.id for job in held] == ids
    assert driver.server.command("HGETALL", request) == {key.encode(): value for key, value in expected.items()}
    assert set(driver.server.command("HVALS", f"{KEY}:requests")) == {b"r1"}
    assert set(driver.server.command("HVALS", f"{KEY}:holders")) == {b"c1"}
    if count > 64:  # not one list, which each access would scan
        for key in (request, f"{KEY}:requests", f"{KEY}:holders"):
            assert driver.server.command("OBJECT", "ENCODING", key) == b"hashtable"
    again = await driver.pop(count, request_id="r1", consumer="c1")
    assert [(job.id, job.receipt) for job in again] == [(job.id, job.receipt) for job in held]
    for job in again:
        await driver.queue.finish(TOPIC, job.id, job.receipt)
    assert driver.keys_left().isdisjoint({"request/r1", "requests", "holders", "pool"})


async def test_requests_of_one_call_are_remembered_apart(driver: EngineDriver) -> None:
    await driver.puts.put_many([put_of(TOPIC, {"id": f"job-{number}"}) for number in range(9)])
    requests = [PopRequest(3, consumer=f"c{at}", request_id=f"r{at}") for at in range(3)]
    first = await driver.queue.pop(TOPIC, requests)
    again = await driver.queue.pop(TOPIC, requests)
    assert [[job.id for job in jobs] for jobs in first.jobs] == [[job.id for job in jobs] for jobs in again.jobs]
    for at, jobs in enumerate(first.jobs):
        assert {(await driver.queue.get(TOPIC, job.id)).reserved_by for job in jobs} == {f"c{at}"}
    items = [FinishItem(id=job.id, receipt=str(job.receipt)) for jobs in first.jobs for job in jobs]
    assert [one.status for one in await driver.queue.finish_many(TOPIC, items)] == [200] * 9
    assert driver.keys_left() == set()


async def test_later_work_does_not_write_the_timers_schedule(driver: EngineDriver) -> None:
    await driver.put("soon", delay=5)
    due = driver.server.command("ZSCORE", "deferd:{0}:due", TOPIC)
    await driver.put("later", delay=50)
    assert driver.server.command("ZSCORE", "deferd:{0}:due", TOPIC) == due
    await driver.put("sooner", delay=1)
    assert driver.server.command("ZSCORE", "deferd:{0}:due", TOPIC) < due
    assert await driver.state("later") is JobState.DELAYED


async def test_many_topics_are_not_one_list_either(driver: EngineDriver) -> None:
    settings, encodings = "deferd:{0}:settings", set()
    for number in range(66):
        encodings.add((number < 64, driver.server.command("OBJECT", "ENCODING", settings) if number else b"listpack"))
        await driver.puts.put_many([put_of(f"topic-{number}", {"id": "a"})])
    assert encodings == {(True, b"listpack"), (False, b"listpack"), (False, b"hashtable")}
    assert set(driver.server.command("HVALS", settings)) == {b""}


async def test_a_damaged_set_of_cancelled_jobs_fails_a_batch_before_a_job_is_stored(driver: EngineDriver) -> None:
    await driver.put("known")
    driver.server.command("SET", f"{KEY}:cancelled", "damaged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await driver.puts.put_many([put_of(TOPIC, {"id": f"job-{number}"}) for number in range(TOGETHER)])
    assert driver.server.command("HKEYS", f"{KEY}:pool") == [b"known"]

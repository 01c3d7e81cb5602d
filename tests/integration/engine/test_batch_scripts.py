"""Batches on the fast path against the real store: they end as on the general path, and pops keep their bound."""

from __future__ import annotations

import random
from functools import partial

import orjson
import pytest

from deferd.api.auth.api_keys import NO_BOUNDS as NO_KEY_BOUNDS
from deferd.api.body_decoding import decode_batch, decode_finishes, decode_put
from deferd.contract.model import FinishBatch, PutBatch
from deferd.engine.record import Receipt
from deferd.engine.script_arguments import NO_BOUNDS, EncodedFinish, EncodedPut, encode_finish
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

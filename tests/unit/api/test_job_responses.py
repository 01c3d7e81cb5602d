"""The responses to pops and puts: templates give what the structs are written as, byte for byte."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from deferd.api import job_responses
from deferd.api.job_responses import written_deliveries, written_job, written_put
from deferd.api.responses import encode
from deferd.contract.model import JobState
from deferd.contract.operations.jobs import Deliveries
from deferd.engine.puts import PutOutcome
from deferd.engine.record import JobRecord, read_deliveries, read_extra, read_record

BODIES = [b"null", b'{"order":1042}', '"é😀%s%%\\u0000"'.encode(), b'"%(a)s"', b'"\\\\0b"', b'"' + b"x" * 20_000 + b'"']
EXTRAS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"t": 1500},
    {"m": 3, "x": 1, "r": 5_000},
    {"x": 0},
    {"b": {"kind": "fixed", "seconds": 5.0, "jitter": 0}},
    {"e": "100 % \0b é"},
    {"c": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    {"e": "", "k": 5, "t": 2_000},
    {"k": 5},
    {"d": "expired"},
    {"f": 1_700_000_000_000, "n": 2},
    {"g": ["order-1042", "customer:7"]},
    {"h": {"tenant": "100 % \0b é"}},
    {"i": 500, "l": 3_600_000, "q": 0},
    {"l": 1500, "v": 1_700_000_000_000, "s": 3},
    {"i": 0, "l": 0},
    {"wi": '{"from":"09:00","zone":"Europe/Berlin"}', "sp": 500, "sh": 60_000, "t": 1000},
    {"sp": 0, "wi": '"office"'},
    {"wi": '"100 %"', "sh": 1},
    {"u": 60_000, "w": 1_700_000_000_500, "y": 17, "g": ["x"], "c": "00-x-y-01", "l": 500, "h": {"%b": "%%"}},
    {"g": [], "h": {}},
    {"g": ["100%"], "b": {"kind": "fixed", "seconds": 5.0, "jitter": 0}},
    {"sh": 5, "wi": '"office"', "g": ["a"], "e": "error"},
    {"y": 10_000},
    {"gr": "customer-7", "h": {"a": "b"}, "y": 2},
    {"pr": 9, "t": 500},
    {"gr": "a", "pr": 1, "l": 500, "e": "error"},
    {"a": [[1, 1_700_000_000_000, "released", "worker-1", "100 %"], [2, 1_700_000_000_001, "lease_ended", "", ""]]},
]


def raw_record(chance: random.Random) -> bytes:
    """A record as the scripts write it."""
    extra = chance.choice(EXTRAS)
    extra_json = orjson.dumps(extra) if extra else b""
    body = chance.choice(BODIES) if "n" not in extra else b"[]" + chance.choice(BODIES)
    created_ms = chance.choice([0, 999, 1_700_000_000_000, chance.randrange(2**47)])
    return b"".join(
        (
            created_ms.to_bytes(6, "little"),
            chance.choice([created_ms, chance.randrange(2**47)]).to_bytes(6, "little"),
            chance.choice([0, 1, 2**48 - 1, chance.randrange(2**48)]).to_bytes(6, "little"),
            chance.choice([0, 0, 0, 1, 999_999, 2**32 - 2]).to_bytes(4, "little"),
            len(extra_json).to_bytes(4, "little"),
            extra_json,
            body,
        )
    )


def reply(chance: random.Random, jobs: int) -> list[Any]:
    """What pop.lua returns for some jobs."""
    values: list[Any] = []
    for _ in range(jobs):
        lease_end_ms = chance.choice([1_700_000_060_000, chance.randrange(2**47)])
        values += [b"job-%d" % chance.randrange(10**6), raw_record(chance), lease_end_ms]
    return values


def general(records: list[JobRecord]) -> bytes:
    """The response, without templates."""
    return encode(Deliveries(jobs=[job_responses.delivery(record) for record in records]))


def test_any_jobs_are_read_and_written_as_on_the_general_path() -> None:
    chance = random.Random(0)
    for _ in range(1000):
        values = reply(chance, chance.randrange(30))
        consumer, request_id = chance.choice([None, "worker-1"]), chance.choice([None, "request-1"])
        records = read_deliveries("orders.close", values, consumer, request_id)
        assert records == [
            read_record("orders.close", job_id.decode(), JobState.RESERVED, raw, lease_end_ms, consumer, request_id)
            for job_id, raw, lease_end_ms in zip(values[::3], values[1::3], values[2::3], strict=True)
        ]
        assert written_deliveries(records) == general(records)


@pytest.mark.parametrize("state", JobState)
def test_any_stored_job_is_written_as_on_the_general_path(state: JobState) -> None:
    chance = random.Random(0)
    for _ in range(1000):
        lease_end_ms = 1_700_000_060_000 if state is JobState.RESERVED else None
        topic, durability = chance.choice(["orders.close", "b"]), chance.choice(["memory", "fsync", "replicated:2"])
        record = read_record(topic, f"job-{chance.randrange(10**6)}", state, raw_record(chance), lease_end_ms)
        record.is_follow_up = chance.random() < 0.1
        if chance.random() < 0.1:
            record.followed_by = read_record(topic, record.id, JobState.DELAYED, raw_record(chance))
        put = PutOutcome(record, "created", durability)
        assert written_put(put) == encode(job_responses.stored_job(put))
        assert encode([written_job(record)]) == encode([job_responses.job(record)])


def test_a_long_window_is_not_kept_in_a_template() -> None:
    window = orjson.dumps({"except": ["2026-12-24"] * 400}).decode()
    record = JobRecord("orders.close", "a", JobState.READY, 0, 0, 0, 0, b"1")
    read_extra(record, {"wi": window})
    put = PutOutcome(record, "created", "memory")
    kept = job_responses._put_template.cache_info().currsize
    assert written_put(put) == encode(job_responses.stored_job(put))
    assert job_responses._put_template.cache_info().currsize == kept


def test_jobs_of_several_topics_are_in_one_response() -> None:
    chance = random.Random(1)
    records = [
        record for topic in ("a", "b.urgent", "a") for record in read_deliveries(topic, reply(chance, 20), None, None)
    ]
    assert written_deliveries(records) == general(records)


@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_a_response_is_json_whatever_the_job_has(extra: dict[str, Any]) -> None:
    extra_json = orjson.dumps(extra) if extra else b""
    raw = bytes(22) + len(extra_json).to_bytes(4, "little") + extra_json + (b"[]null" if "n" in extra else b"[]")
    records = read_deliveries("a", [b"id-1", raw, 1_700_000_060_000] * 2, None, None)
    for job in orjson.loads(written_deliveries(records))["jobs"]:
        assert job.get("tags") == extra.get("g")
        assert job.get("headers") == extra.get("h")
        assert (job.get("group"), job.get("priority", 0)) == (extra.get("gr"), extra.get("pr", 0))
        assert job.get("time_limit", 0) == extra.get("i", 0) / 1000
        assert job.get("deadline", 0) == extra.get("l", 0) / 1000
        assert job.get("snoozes", 0) == extra.get("s", 0)
        assert len(job.get("attempts_log", ())) == len(extra.get("a", ()))


def test_no_job_is_an_empty_list() -> None:
    assert written_deliveries([]) == general([]) == b'{"jobs":[]}'


def test_a_response_is_json_with_the_fields_of_each_job() -> None:
    [record] = read_deliveries("a", [b"id-1", raw_record(random.Random(3)), 1_700_000_060_000], "worker-1", None)
    [job] = orjson.loads(written_deliveries([record]))["jobs"]
    assert (job["topic"], job["id"], job["state"]) == ("a", "id-1", "reserved")
    assert job["receipt"] == f"{record.nonce:012x}.{record.attempts}"
    assert (job["attempt"], job["attempts"]) == (record.attempts, record.attempts)
    assert (job["reserved_until"], job["reserved_by"]) == ("2023-11-14T22:14:20.000Z", "worker-1")

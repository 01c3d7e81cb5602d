"""The full life of a job through the Redis protocol: the DEFERD commands."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
import redis
from redis.exceptions import ResponseError

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.resp_calls import fields, redis_client
from tests.acceptance.service_process import ServiceProcess


def call(client: redis.Redis, *words: Any) -> dict[str, Any]:
    return fields(client.execute_command(*words))


def pop(client: redis.Redis, topic: str, *options: Any) -> list[dict[str, Any]]:
    return [fields(job) for job in client.execute_command("DEFERD.POP", topic, *options)]


def http_job(service: ServiceProcess, topic: str, job_id: str) -> dict[str, Any]:
    with httpx.Client(base_url=service.url, verify=NO_TLS) as http:
        job: dict[str, Any] = http.get(f"/jobs/{topic}/{job_id}").raise_for_status().json()
    return job


def test_options_are_the_fields_of_http_in_milliseconds(
    client: redis.Redis, resp_service: ServiceProcess, topic: str
) -> None:
    client.execute_command(
        *("DEFERD.PUT", topic, "a", '{"n": 123456789012345678901234567890}', "json", "delay", 90_500, "TTR", 1500),
        *("MAXATTEMPTS", 3, "RETAIN", 60_000, "TTL", 5000, "TAG", "x", "TAG", "y", "HEADER", "h", "v"),
        *("GROUP", "customer-7", "PRIORITY", 9),
        *("BACKOFF", '{"kind": "fixed", "seconds": 5}', "DEADLINE", 700_000, "ONCONFLICT", "replace"),
    )
    job = http_job(resp_service, topic, "a")
    assert job["body"] == {"n": 123456789012345678901234567890}
    assert (job["state"], job["ttr"], job["max_attempts"], job["retain"], job["ttl"]) == ("delayed", 1.5, 3, 60, 5)
    assert (job["tags"], job["headers"], job["backoff"]["seconds"]) == (["x", "y"], {"h": "v"}, 5)
    assert (job["group"], job["priority"]) == ("customer-7", 9)
    client.execute_command("DEFERD.PUT", topic, "at", "b", "AT", 1_893_456_000_123)
    assert http_job(resp_service, topic, "at")["due_at"] == "2030-01-01T00:00:00.123Z"


def test_bodies_are_exact_both_ways(client: redis.Redis, resp_service: ServiceProcess, topic: str) -> None:
    client.execute_command("DEFERD.PUT", topic, "text", '{"a":1}')
    client.execute_command("DEFERD.PUT", topic, "json", '{"a":1}', "JSON")
    assert http_job(resp_service, topic, "text")["body"] == '{"a":1}'
    assert http_job(resp_service, topic, "json")["body"] == {"a": 1}
    assert call(client, "DEFERD.GET", topic, "text")["body"] == b'{"a":1}'
    assert call(client, "DEFERD.GET", topic, "json")["body"] == b'{"a":1}'
    assert call(client, "DEFERD.GET", topic, "text", "JSON")["body"] == b'"{\\"a\\":1}"'
    assert [job["body"] for job in pop(client, topic, "COUNT", 2, "JSON")] == [b'"{\\"a\\":1}"', b'{"a":1}']


def test_a_header_may_have_the_name_of_a_field(client: redis.Redis, topic: str) -> None:
    job = call(client, "DEFERD.PUT", topic, "a", "1", "JSON", "HEADER", "body", "b", "HEADER", "result", "r")
    assert (fields(job["headers"]), job["body"]) == ({"body": b"b", "result": b"r"}, b"1")


def test_large_json_is_stored_as_it_is(client: redis.Redis, topic: str) -> None:
    body = b"[%b]" % b",".join([b"12345678901234567890"] * 10_000)
    client.execute_command("DEFERD.PUT", topic, "a", body, "JSON")
    assert pop(client, topic, "JSON")[0]["body"] == body
    with pytest.raises(ResponseError, match=r"^VALIDATION body: .*is a number beyond 1\.8e308"):
        client.execute_command("DEFERD.PUT", topic, "b", body.replace(b"12345678901234567890", b"1e999"), "JSON")


def test_a_waiting_pop_delays_no_other_connection(
    client: redis.Redis, resp_service: ServiceProcess, topic: str
) -> None:
    popped: list[Any] = []
    with redis_client(resp_service) as waiting:
        thread = threading.Thread(target=lambda: popped.extend(pop(waiting, topic, "WAIT", 20_000)))
        thread.start()
        resp_service.wait_for_waiting_pops(1)
        began = time.monotonic()
        assert client.ping()
        client.sadd(topic, "a", 0)
        thread.join(20)
        assert time.monotonic() - began < 10
    assert [job["body"] for job in popped] == [b"a"]


def test_a_later_command_waits_for_the_pop_before_it(client: redis.Redis, topic: str) -> None:
    began = time.monotonic()
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command("DEFERD.POP", topic, "WAIT", 300)
    pipeline.execute_command("PING")
    assert pipeline.execute() == [[], True]
    assert time.monotonic() - began >= 0.3


def test_a_client_that_disconnects_strands_no_job(resp_service: ServiceProcess, topic: str) -> None:
    with redis_client(resp_service) as waiting:
        connection = waiting.connection_pool.get_connection()
        connection.send_command("DEFERD.POP", topic, "WAIT", 30_000)
        resp_service.wait_for_waiting_pops(1)
        connection.disconnect()
        resp_service.wait_for_waiting_pops(0)
    with redis_client(resp_service) as client:
        client.sadd(topic, "a", 0)
        assert client.spop(topic) == b"a"


INVALID: dict[str, tuple[tuple[Any, ...], str]] = {
    "too few words": (("DEFERD.PUT", "TOPIC", "a"), "wrong number of arguments for 'deferd.put' command"),
    "an unknown option": (("DEFERD.PUT", "TOPIC", "a", "x", "SOON"), "VALIDATION 'SOON': is not an option"),
    "an option without its value": (("DEFERD.PUT", "TOPIC", "a", "x", "DELAY"), "VALIDATION DELAY: lacks its value"),
    "an option twice": (("DEFERD.PUT", "TOPIC", "a", "x", "TTR", 500, "TTR", 500), "VALIDATION TTR: is given twice"),
    "delay and instant": (("DEFERD.PUT", "TOPIC", "a", "x", "DELAY", 5, "AT", 5), "VALIDATION .*exclude each other"),
    "a negative delay": (("DEFERD.PUT", "TOPIC", "a", "x", "DELAY", -1), "VALIDATION DELAY: .*'-1'"),
    "a fractional delay": (("DEFERD.PUT", "TOPIC", "a", "x", "DELAY", "0.5"), "VALIDATION DELAY: .*'0.5'"),
    "a short lease": (("DEFERD.PUT", "TOPIC", "a", "x", "TTR", 1), "VALIDATION ttr: must be at least 0.1 seconds"),
    "a late instant": (("DEFERD.PUT", "TOPIC", "a", "x", "AT", 10**15), "VALIDATION AT: is too far in the future"),
    "an instant in 100 years": (("DEFERD.PUT", "TOPIC", "a", "x", "AT", 5 * 10**12), "VALIDATION run_at: .*10 years"),
    "no JSON": (("DEFERD.PUT", "TOPIC", "a", "{", "JSON"), "VALIDATION body: must be JSON"),
    "two JSON values": (("DEFERD.PUT", "TOPIC", "a", '1,"b":2', "JSON"), "VALIDATION body: must be JSON"),
    "what ends the object around it": (
        ("DEFERD.PUT", "TOPIC", "a", '1},"topic":{', "JSON"),
        "VALIDATION body: must be JSON",
    ),
    "a repeated name": (("DEFERD.PUT", "TOPIC", "a", '1,"value":2', "JSON"), "VALIDATION body: must be JSON"),
    "NaN": (("DEFERD.PUT", "TOPIC", "a", "NaN", "JSON"), "VALIDATION body: must be JSON"),
    "a number beyond a float": (("DEFERD.PUT", "TOPIC", "a", "1e999", "JSON"), "VALIDATION body: is a number beyond"),
    "JSON that is nested too deep": (
        ("DEFERD.PUT", "TOPIC", "a", "[" * 300 + "]" * 300, "JSON"),
        "VALIDATION body: is nested deeper than 200 levels",
    ),
    "JSON that is nested deeper than any parser goes": (
        ("DEFERD.PUT", "TOPIC", "a", "[" * 100_000 + "]" * 100_000, "JSON"),
        "VALIDATION body: is nested deeper than 200 levels",
    ),
    "a body that is too large as JSON": (("DEFERD.PUT", "TOPIC", "a", "\1" * 200_000), "PAYLOAD_TOO_LARGE as JSON"),
    "a result that is too large as JSON": (
        ("DEFERD.FINISH", "TOPIC", "a", "*", "RESULT", "\1" * 200_000),
        "PAYLOAD_TOO_LARGE as JSON",
    ),
    "a body that is not UTF-8": (("DEFERD.PUT", "TOPIC", "a", b"\xff"), "VALIDATION body: must be UTF-8"),
    "an invalid id": (("DEFERD.PUT", "TOPIC", "a b", "x"), "VALIDATION id: must match"),
    "an unknown conflict": (("DEFERD.PUT", "TOPIC", "a", "x", "ONCONFLICT", "?"), "VALIDATION on_conflict: must be"),
    "a durability of another store": (
        ("DEFERD.PUT", "TOPIC", "a", "x", "DURABILITY", "replicated:2"),
        "DURABILITY_UNAVAILABLE ",
    ),
    "a pop of too many": (("DEFERD.POP", "TOPIC", "COUNT", 1001), "VALIDATION count: must be at most 1000"),
    "a long wait": (("DEFERD.POP", "TOPIC", "WAIT", 61_000), "VALIDATION wait: must be at most 60"),
    "an invalid topic to pop": (("DEFERD.POP", "no spaces"), "VALIDATION topic: must match"),
    "no receipt": (("DEFERD.FINISH", "TOPIC", "a"), "wrong number of arguments for 'deferd.finish' command"),
    "a long receipt": (("DEFERD.FINISH", "TOPIC", "a", "x" * 65), "VALIDATION receipt: must have at most 64"),
    "no such job": (("DEFERD.FINISH", "TOPIC", "a", "*"), "JOB_NOT_FOUND topic .* has no job 'a'"),
    "a path as an id": (("DEFERD.GET", "TOPIC", "../../x"), "VALIDATION id: must match"),
    "a snooze without a delay": (("DEFERD.RELEASE", "TOPIC", "a", "*", "SNOOZE"), "VALIDATION delay: .*0.1 seconds"),
}


def test_bad_input_is_named_and_stores_nothing(client: redis.Redis, topic: str) -> None:
    for name, (words, text) in INVALID.items():
        command = [topic if word == "TOPIC" else word for word in words]
        with pytest.raises(ResponseError, match=f"^{text}"):
            client.execute_command(*command)
        assert client.scard(topic) == 0, name
        assert client.ping()

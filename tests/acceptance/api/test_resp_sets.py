"""Topics as sets of any client of Redis: SADD, SPOP, SCARD, KEYS, SCAN, DEL."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
import redis
from redis.exceptions import ResponseError

from deferd.contract import limits
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.resp_calls import redis_client
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

BODIES = [
    "",
    "a",
    "two words",
    '"quoted"',
    "\\",
    "a\r\nb",
    "\0",
    "\x7f",
    "é",
    "日本",
    "\U0001f600",
    "null",
    '{"a":1}',
    "\u2028",
]


def spop(client: redis.Redis, topic: str, count: int) -> Any:
    """Typed as a set by redis-py."""
    return client.spop(topic, count)


def keys(client: redis.Redis, pattern: str) -> list[Any]:
    return list(client.keys(pattern))


def scan(client: redis.Redis, cursor: int, seen: list[str]) -> int:
    """Add the names of a page to `seen`; the next cursor."""
    found: Any = client.scan(cursor, count=5)
    seen += [name.decode() for name in found[1]]
    return int(found[0])


def test_a_string_goes_in_and_comes_out(client: redis.Redis, topic: str) -> None:
    for body in BODIES:
        assert client.sadd(topic, body, 0) == 1
        assert client.spop(topic) == body.encode()
    assert client.spop(topic) is None


def test_many_jobs_in_one_command_keep_their_order(client: redis.Redis, topic: str) -> None:
    words: list[Any] = [word for body in BODIES for word in (body, 0)]
    assert client.sadd(topic, *words) == len(BODIES)
    assert spop(client, topic, 5) == [body.encode() for body in BODIES[:5]]
    assert spop(client, topic, 1000) == [body.encode() for body in BODIES[5:]]
    assert spop(client, topic, 5) == []


def test_the_same_body_twice_is_two_jobs(client: redis.Redis, topic: str) -> None:
    assert client.sadd(topic, "a", 0, "a", 0) == 2
    assert client.sadd(topic, "a", 0) == 1
    assert client.scard(topic) == 3
    assert spop(client, topic, 10) == [b"a"] * 3


def test_a_job_is_handed_out_when_it_is_due(client: redis.Redis, topic: str) -> None:
    began = time.monotonic()
    client.sadd(topic, "later", 300)
    assert client.spop(topic) is None
    assert client.scard(topic) == 1
    wait_until(lambda: client.spop(topic) == b"later", 10, "the job is due")
    assert time.monotonic() - began >= 0.3


def test_a_popped_job_is_finished(client: redis.Redis, resp_service: ServiceProcess, topic: str) -> None:
    client.sadd(topic, "a", 0)
    assert client.spop(topic) == b"a"
    assert client.scard(topic) == 0
    with httpx.Client(base_url=resp_service.url, verify=NO_TLS) as http:
        counts = http.get(f"/topics/{topic}").json()["counts"]
    assert set(counts.values()) == {0}


def test_jobs_of_http_come_out_as_strings_or_as_json(
    client: redis.Redis, resp_service: ServiceProcess, topic: str
) -> None:
    bodies = ["text", 5, None, {"a": [1, 2.5]}, [], "line\nbreak"]
    with httpx.Client(base_url=resp_service.url, verify=NO_TLS) as http:
        for body in bodies:
            http.post("/jobs", json={"topic": topic, "body": body}).raise_for_status()
        client.sadd(topic, "by redis\n", 0)
        job = http.get(f"/topics/{topic}/jobs").json()["jobs"][-1]
    assert job["body"] == "by redis\n"
    popped = spop(client, topic, 10)
    assert popped == [b"text", b"5", b"null", b'{"a":[1,2.5]}', b"[]", b"line\nbreak", b"by redis\n"]


def test_pipelines_have_a_reply_for_each_command(client: redis.Redis, topic: str) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(250):
        pipeline.sadd(topic, f"b{number}", 0)
        if number % 50 == 0:
            pipeline.execute_command("SADD", topic, "odd")
            pipeline.scard(topic)
    added = [reply for reply in pipeline.execute(raise_on_error=False) if not isinstance(reply, ResponseError)]
    assert added.count(1) >= 250
    assert len(added) == 255
    for _ in range(100):
        pipeline.spop(topic)
    pipeline.spop(topic, 100)
    for _ in range(60):
        pipeline.spop(topic)
    popped = pipeline.execute()
    flat = popped[:100] + popped[100] + popped[101:]
    assert flat == [f"b{number}".encode() for number in range(250)] + [None] * 10


def test_each_of_a_pipeline_of_pops_gets_a_large_job(client: redis.Redis, topic: str) -> None:
    """A pop of the store hands out at most 1 MiB."""
    bodies = [bytes([letter]) * 500_000 for letter in b"abcde"]
    for body in bodies:
        client.sadd(topic, body, 0)
    pipeline = client.pipeline(transaction=False)
    for _ in range(6):
        pipeline.spop(topic)
    assert pipeline.execute() == [*bodies, None]


def test_topics_are_listed_and_emptied(client: redis.Redis, topic: str) -> None:
    names = [f"{topic}.{number}" for number in range(30)]
    for name in names:
        client.sadd(name, "a", 60_000)
    assert sorted(keys(client, f"{topic}.*")) == sorted(name.encode() for name in names)
    assert keys(client, f"{topic}.1[0-2]") == [f"{topic}.{number}".encode() for number in (10, 11, 12)]
    assert keys(client, f"{topic}.?") == [f"{topic}.{number}".encode() for number in range(10)]
    assert set(names) <= {name.decode() for name in keys(client, "*")}
    assert sorted(client.scan_iter(match=f"{topic}.*", count=7)) == sorted(name.encode() for name in names)
    assert client.delete(*names[:3], f"{topic}.none", names[0]) == 3
    assert client.delete(names[0]) == 0
    assert client.scard(names[0]) == 0
    assert client.scard(names[3]) == 1


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("[^ab]1", ["c1"]),
        ("[ac]*", ["a1", "a2", "c1"]),
        ("[c-b]1", ["b1", "c1"]),
        (r"[\a]?", ["a1", "a2"]),
        (r"\b*", ["b1"]),
        (r"\*1", []),
        ("*2", ["a2"]),
        ("a?2", []),
    ],
)
def test_patterns_match_as_in_redis(client: redis.Redis, topic: str, pattern: str, names: list[str]) -> None:
    for name in ("a1", "a2", "b1", "c1"):
        client.sadd(f"{topic}.{name}", "a", 60_000)
    assert keys(client, f"{topic}.{pattern}") == [f"{topic}.{name}".encode() for name in names]


def test_a_scan_misses_no_topic_that_stays(client: redis.Redis, topic: str) -> None:
    stays = {f"{topic}.{number}" for number in range(40)}
    for name in stays:
        client.sadd(name, "a", 60_000)
    seen: list[str] = []
    cursor = scan(client, 0, seen)
    number = 40
    while cursor:
        client.sadd(f"{topic}.{number}", "a", 60_000)
        number += 1
        cursor = scan(client, cursor, seen)
    assert stays <= set(seen)


INVALID: dict[str, tuple[tuple[Any, ...], str]] = {
    "a body without a delay": (("SADD", "TOPIC", "a"), "wrong number of arguments for 'sadd' command"),
    "an odd number of arguments": (("SADD", "TOPIC", "a", 0, "b"), "wrong number of arguments for 'sadd' command"),
    "no body": (("SADD", "TOPIC"), "wrong number of arguments for 'sadd' command"),
    "a negative delay": (("SADD", "TOPIC", "a", -1), "VALIDATION delay: .*'-1'"),
    "a fractional delay": (("SADD", "TOPIC", "a", "1.5"), "VALIDATION delay: .*'1.5'"),
    "an endless delay": (("SADD", "TOPIC", "a", 10**17), "VALIDATION delay: must be a whole number of milliseconds"),
    "a delay of more than 10 years": (
        ("SADD", "TOPIC", "a", limits.DELAY_MAX_S * 1000 + 1),
        "VALIDATION delay: .* 0 to",
    ),
    "an empty delay": (("SADD", "TOPIC", "a", ""), "VALIDATION delay"),
    "one invalid delay of several": (("SADD", "TOPIC", "a", 0, "b", "x"), "VALIDATION delay: .*'x'"),
    "a body that is not UTF-8": (("SADD", "TOPIC", b"ab\xff", 0), "VALIDATION body: must be UTF-8, and byte 2 is not"),
    "half a surrogate pair": (("SADD", "TOPIC", b"\xed\xa0\x80", 0), "VALIDATION body: must be UTF-8"),
    "bodies that are too large as JSON": (("SADD", "TOPIC", "\1" * 90_000, 0, "\1" * 90_000, 0), "PAYLOAD_TOO_LARGE "),
    "too many jobs": (("SADD", "TOPIC", *(["a", 0] * 1001)), "VALIDATION body: .*1000 jobs"),
    "an invalid topic": (("SADD", "no spaces", "a", 0), "VALIDATION topic: must match"),
    "a topic that is not UTF-8": (("SADD", b"\xff", "a", 0), "VALIDATION topic: must match"),
    "a count of 0": (("SPOP", "TOPIC", 0), "VALIDATION count: .*1 to 1000.*'0'"),
    "a large count": (("SPOP", "TOPIC", 1001), "VALIDATION count"),
    "no count": (("SPOP", "TOPIC", "x"), "VALIDATION count"),
    "two topics to pop": (("SPOP", "a,b"), "VALIDATION topic: must be one topic"),
    "a pattern to pop": (("SPOP", "a*"), "VALIDATION topic: must be one topic"),
    "too many words to pop": (("SPOP", "TOPIC", 1, 2), "wrong number of arguments for 'spop' command"),
    "an invalid topic to count": (("SCARD", "a b"), "VALIDATION topic"),
    "a cursor of another kind": (("SCAN", "x"), "VALIDATION cursor"),
    "half an option": (("SCAN", 0, "MATCH"), "syntax error"),
    "a long pattern": (("KEYS", "x" * 600), "VALIDATION pattern: must have at most 512 bytes"),
}


def test_bad_input_is_named_and_stores_nothing(client: redis.Redis, topic: str) -> None:
    for name, (words, text) in INVALID.items():
        command = [topic if word == "TOPIC" else word for word in words]
        with pytest.raises(ResponseError, match=text):
            client.execute_command(*command)
        assert client.scard(topic) == 0, name
        assert client.ping()


def test_a_full_topic_says_how_many_were_put(resp_service: ServiceProcess, topic: str) -> None:
    with httpx.Client(base_url=resp_service.url, verify=NO_TLS) as http:
        http.put(f"/topics/{topic}", json={"max_jobs": 2}).raise_for_status()
    with redis_client(resp_service) as client:
        with pytest.raises(ResponseError, match="TOPIC_FULL 2 of 3 jobs were put: The topic is full"):
            client.sadd(topic, "a", 0, "b", 0, "c", 0)
        with pytest.raises(ResponseError, match="TOPIC_FULL The topic is full"):
            client.sadd(topic, "d", 0)
        assert spop(client, topic, 3) == [b"a", b"b"]


def test_calls_are_counted_as_those_of_http(client: redis.Redis, resp_service: ServiceProcess, topic: str) -> None:
    def count(route: str, status: str) -> float:
        text = httpx.get(f"{resp_service.url}/metrics", verify=NO_TLS).text
        label = f'deferd_http_request_seconds_count{{method="RESP",route="{route}",status="{status}"}}'
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(label))

    before = count("/jobs/batch", "2xx"), count("/topics/{topic}/pop", "2xx"), count("/topics/{topic}", "4xx")
    client.sadd(topic, "a", 0)
    pipeline = client.pipeline(transaction=False)
    for _ in range(3):
        pipeline.spop(topic)
    pipeline.execute()
    client.scard(f"{topic}.none")
    after = count("/jobs/batch", "2xx"), count("/topics/{topic}/pop", "2xx"), count("/topics/{topic}", "4xx")
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 3, 1]

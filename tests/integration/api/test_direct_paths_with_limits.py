"""Direct paths of keys with limits: the same responses as the general one, and the limits hold."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.api.auth.api_keys import hash_of, parse_keys
from deferd.api.auth.gate import KeyGate
from deferd.contract.model import PutJob
from tests.drawn_input import drawn
from tests.integration.api.direct_worlds import CountingDirectPath, Request, World, Worlds
from tests.integration.api.test_direct_paths import JOB, any_request
from tests.integration.store.store_servers import StoreServer

TOKEN = "the-token-of-the-holder".ljust(43, "x")
BEARER = b"Host: x\r\nAuthorization: Bearer %b" % TOKEN.encode()
HEAD = BEARER + b"\r\nContent-Length: %d"
ALL_LIMITS = """
requests_per_second = 0.001
burst = 1000000
max_jobs = 2
max_jobs_total = 100000
max_bytes_total = 1000000000
max_topics = 10000
max_retain = 60
max_ttl = 100
max_dead_retain = 50
max_waiting_pops = 5
max_body_bytes = 400
max_batch = 3
max_depth = 4
"""


def key_with(limits: str, topics: str = "*") -> str:
    scopes = ["put", "pop", "cancel", "read"]
    key = f'name = "holder"\nhash = "{hash_of(TOKEN)}"\nscopes = {json.dumps(scopes)}\ntopics = ["{topics}"]'
    return f"[[key]]\n{key}\n{limits}"


@pytest.fixture(scope="module")
def worlds(running_server: StoreServer) -> Iterator[Worlds]:
    running_server.command("FLUSHALL")
    both = Worlds(f"{running_server.url}/4", f"{running_server.url}/5", BEARER, keys=key_with(ALL_LIMITS))
    yield both
    both.close()


def set_limits(worlds: Worlds, limits: str) -> None:
    """What is in the store already is not counted for a new quota."""
    for world in (worlds.direct, worlds.general):
        gate = world.service.context.gate
        assert isinstance(gate, KeyGate)
        gate.replace_keys(parse_keys(key_with(limits)))
        for usage in gate._usages.values():
            if usage.quota is not None:
                usage.quota._count_at_s = time.monotonic() + 1000


def taken(worlds: Worlds) -> int:
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    return worlds.direct.direct_path.taken.total()


def of_holder(request: Request) -> Request:
    return request._replace(head=request.head + BEARER.removeprefix(b"Host: x"))


@drawn(40)
@given(requests=st.lists(any_request().map(of_holder), min_size=1, max_size=12))
def test_generated_requests_have_the_same_effects_and_responses(worlds: Worlds, requests: list[Request]) -> None:
    worlds.compare(requests)


LIFE = [
    Request(HEAD, b"POST /jobs", JOB),
    Request(HEAD, b"POST /jobs", JOB.replace(b'"a"', b'"b"').replace(b"}}", b'},"tags":["x"],"retain":60}')),
    Request(BEARER, b"GET /topics/{t}/pop?wait=0"),
    Request(HEAD, b"POST /jobs/{t}/a/finish", b'{"receipt":"{receipt}","result":[1]}'),
    Request(BEARER, b"DELETE /jobs/{t}/b"),
    Request(HEAD, b"POST /jobs", JOB),
    Request(BEARER, b"GET /topics/{t}/pop?wait=0"),
    Request(HEAD, b"POST /jobs/{t}/a/touch", b'{"receipt":"{receipt}","ttr":9}'),
    Request(HEAD, b"POST /jobs/{t}/a/release", b'{"receipt":"{receipt}","error":"502","count":false,"delay":0.1}'),
    Request(BEARER, b"GET /topics/{t}/pop?wait=5"),
    Request(HEAD, b"POST /jobs/{t}/a/bury", b'{"receipt":"{receipt}","error":"502"}'),
]


def test_usual_calls_of_a_key_with_all_limits_take_their_direct_paths(worlds: Worlds) -> None:
    set_limits(worlds, ALL_LIMITS)
    for _ in range(3):
        worlds.compare(LIFE)
    before = taken(worlds)
    responses = worlds.compare(LIFE)
    assert [response[9:12] for response in responses] == [b"201"] * 2 + [b"200"] * 3 + [b"201"] + [b"200"] * 5
    assert all(b'\r\nratelimit: "requests";r=' in response for response in responses)
    assert all(b'\r\nratelimit: "waiting-pops";r=5\r\n' in response for response in responses)
    assert taken(worlds) - before == len(LIFE)


@pytest.mark.parametrize(
    ("field", "status"),
    [
        (b'"retain":61', b"422"),
        (b'"ttl":null', b"422"),
        (b'"body":[[[[]]]]', b"422"),
        (b'"body":"%b"' % (b"x" * 400), b"413"),
    ],
)
def test_a_put_beyond_a_limit_of_its_key_is_refused(worlds: Worlds, field: bytes, status: bytes) -> None:
    set_limits(worlds, ALL_LIMITS)
    put = Request(HEAD, b"POST /jobs", b'{"topic":"{t}","id":"a",%b}' % field)
    assert [response[9:12] for response in worlds.compare([put] * 3)] == [status] * 3


@pytest.mark.parametrize("quota", ["max_jobs_total = 100", "max_topics = 100", "max_bytes_total = 20000"])
def test_a_quota_is_kept_between_two_counts(worlds: Worlds, quota: str) -> None:
    set_limits(worlds, "")
    set_limits(worlds, quota)
    puts = [Request(HEAD, b"POST /jobs", b'{"topic":"{t}.%d","tags":["x"]}' % number) for number in range(120)]
    for world in (worlds.direct, worlds.general):
        responses = worlds.runner.run(_send_all(world, puts, quota.split(maxsplit=1)[0].encode()))
        statuses = [response[9:12] for response in responses]
        refused_at = statuses.index(b"429")
        assert set(statuses[:refused_at]) == {b"201"}
        assert set(statuses[refused_at:]) == {b"429"}
        assert refused_at == 100 or ("bytes" in quota and 20 < refused_at < 100)


async def _send_all(world: World, requests: list[Request], topic: bytes) -> list[bytes]:
    return [await world.send(request, topic) for request in requests]


def test_a_key_has_no_more_waiting_pops_than_it_may(worlds: Worlds) -> None:
    set_limits(worlds, "max_waiting_pops = 1")
    statuses = worlds.runner.run(_wait_twice(worlds.direct))
    assert statuses == [b"200", b"429", b"429", b"200", b"200"]


async def _wait_twice(world: World) -> list[bytes]:
    """The statuses of a pop that waits, two that come meanwhile, a pop that does not wait, and one afterwards."""
    pop = Request(BEARER, b"GET /topics/waits/pop?wait=20")
    at_once = Request(BEARER, b"GET /topics/waits/pop?wait=0")
    for _ in range(3):
        await world.send(at_once)
    transport, protocol = world.transport, world.protocol
    before = taken_by(world)
    waiting = asyncio.create_task(world.send(pop))
    await asyncio.sleep(0)
    assert taken_by(world) == before + 1
    world.connect()
    briefly = Request(BEARER, b"GET /topics/waits/pop?wait=0.0001")
    meanwhile = [await world.send(one) for one in (pop, briefly, at_once)]
    await world.send(Request(HEAD, b"POST /jobs", b'{"topic":"waits"}'))
    first = await waiting
    world.transport, world.protocol = transport, protocol
    after = await world.send(pop._replace(line=b"GET /topics/waits/pop?wait=0.1"))
    return [response[9:12] for response in (first, *meanwhile, after)]


def taken_by(world: World) -> int:
    assert isinstance(world.direct_path, CountingDirectPath)
    return world.direct_path.taken.total()


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        (key_with(""), b"200"),
        (key_with("").replace(hash_of(TOKEN), hash_of("y" * 43)), b"401"),
        (key_with("").replace('"pop", ', ""), b"403"),
        (key_with("", topics="other"), b"403"),
    ],
)
def test_a_pop_whose_key_changes_while_it_waits_gets_no_job_that_it_may_not(
    worlds: Worlds, changed: str, status: bytes
) -> None:
    set_limits(worlds, "max_waiting_pops = 1")
    worlds.runner.run(_change_while_a_pop_waits(worlds.direct, changed, status))


async def _change_while_a_pop_waits(world: World, changed: str, status: bytes) -> None:
    topic = b"changes.%d" % (hash(changed) & 0xFFFF)
    for _ in range(3):
        await world.send(Request(BEARER, b"GET /topics/{t}/pop?wait=0"), topic)
    gate = world.service.context.gate
    assert isinstance(gate, KeyGate)
    before = taken_by(world)
    waiting = asyncio.create_task(world.send(Request(BEARER, b"GET /topics/{t}/pop?wait=20"), topic))
    await asyncio.sleep(0)
    assert taken_by(world) == before + 1
    world.connect()
    gate.replace_keys(parse_keys(changed))
    await world.service.context.engine.puts.put(PutJob(topic=topic.decode(), id="a"))
    assert (await waiting)[9:12] == status
    gate.replace_keys(parse_keys(key_with("")))
    again = await world.send(Request(BEARER, b"GET /topics/{t}/pop?wait=1"), topic)
    assert (b'"id":"a"' in again) is (status != b"200")

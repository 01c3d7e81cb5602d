"""The limits of a key's requests; a key at its limits does not slow down others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import Wire, WireResponse, connected, request
from tests.waiting import wait_until

MAX_JOBS, MAX_WAITING, MAX_BODY_BYTES, MAX_BATCH, MAX_DEPTH = 5, 3, 2000, 4, 6


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("free", "admin")
    keys.add(
        "small", "put", more=f"max_body_bytes = {MAX_BODY_BYTES}\nmax_batch = {MAX_BATCH}\nmax_depth = {MAX_DEPTH}"
    )
    keys.add("few", "put", "pop", "read", more=f"max_jobs = {MAX_JOBS}\nmax_batch = {MAX_BATCH}")
    keys.add("shallow", "put", more=f"max_depth = {MAX_DEPTH}")
    keys.add("all", "put", "pop", "read")
    keys.add("pop", "pop")
    keys.add("own", "put", "pop", topics=("own.*",))
    keys.add("own-admin", "admin", topics=("own.*",))
    keys.add("batch", "put", "pop", more="max_batch = 2")
    keys.add("times", "put", "pop", more="max_retain = 60\nmax_ttl = 30")
    keys.add("one", "put", "pop", more="max_jobs = 1")
    keys.add("quota", "put", "pop", topics=("quota.*",), more="max_jobs_total = 3")
    keys.add("waits", "pop", "read", more=f"max_waiting_pops = {MAX_WAITING}")
    keys.add(
        "limited",
        *("put", "pop"),
        more="max_jobs = 1\nmax_waiting_pops = 1\nmax_body_bytes = 500\nrequests_per_second = 0.01\nburst = 8",
    )
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service("--keys-file", str(keys.path), data_dir=tmp_path_factory.mktemp("bounds")) as service:
        yield service
        assert "Traceback" not in service.output()


class Caller:
    """Sends requests with one key after the other, on the fast path or through ASGI."""

    def __init__(self, service: ServiceProcess, keys: KeysFile, *, through_asgi: bool) -> None:
        self._service = service
        self._keys = keys
        self._through_asgi = through_asgi

    async def __call__(self, key: str, method: str, path: str, body: Any = None) -> WireResponse:
        token = self._keys.tokens[key]
        return await call(self._service, method, path, body, token=token, through_asgi=self._through_asgi)

    async def put(self, key: str, topic: str, job_id: str, **fields: Any) -> WireResponse:
        return await self(key, "POST", "/jobs", {"topic": topic, "id": job_id, **fields})

    @contextlib.asynccontextmanager
    async def waiting(self, key: str, topic: str) -> AsyncIterator[Wire]:
        """A waiting pop, cancelled at the end."""
        path = f"/topics/{topic}/pop?wait=30"
        header = f"Authorization: Bearer {self._keys.tokens[key]}"
        async with connected(self._service.port) as wire:
            wire.send(request("POST", path, None, header, through_asgi=self._through_asgi))
            yield wire


@pytest.fixture(params=[False, True], ids=["plain", "asgi"])
def caller(request: pytest.FixtureRequest, service: ServiceProcess, keys: KeysFile) -> Caller:
    return Caller(service, keys, through_asgi=request.param)


async def test_a_body_larger_than_the_key_allows_is_refused(caller: Caller, topic: str) -> None:
    response = await caller.put("small", topic, "j", body="x" * MAX_BODY_BYTES)
    assert (413, "payload_too_large") == (response.status, response.json()["code"])
    assert MAX_BODY_BYTES == response.json()["limit_bytes"]
    assert 201 == (await caller.put("small", topic, "j", body="x" * (MAX_BODY_BYTES - 200))).status
    assert 201 == (await caller.put("free", topic, "k", body="x" * MAX_BODY_BYTES)).status


async def test_a_batch_of_more_jobs_than_the_key_allows_is_refused(caller: Caller, topic: str) -> None:
    jobs = [{"topic": topic, "id": f"j{number}"} for number in range(MAX_BATCH + 1)]
    response = await caller("small", "POST", "/jobs/batch", {"jobs": jobs})
    assert 422 == response.status
    [field_error] = response.json()["errors"]
    assert ("body.jobs", "must have at most 4 items, the limit of key 'small'") == (
        field_error["field"],
        field_error["message"],
    )
    assert 200 == (await caller("small", "POST", "/jobs/batch", {"jobs": jobs[:MAX_BATCH]})).status
    assert 200 == (await caller("free", "POST", "/jobs/batch", {"jobs": jobs})).status
    finish = {"jobs": [{"id": f"j{number}"} for number in range(MAX_BATCH + 1)]}
    assert 422 == (await caller("few", "POST", f"/topics/{topic}/finish", finish)).status


async def test_a_limit_of_batches_does_not_concern_lists(caller: Caller) -> None:
    """Their query has a field `jobs` too, a flag."""
    for query in ("", "?jobs=true", "?jobs=false"):
        assert 200 == (await caller("few", "GET", f"/schedules{query}")).status


async def test_json_nested_deeper_than_the_key_allows_is_refused(caller: Caller, topic: str) -> None:
    deep: Any = "[[[[[[not nested]]]]]]"
    for _ in range(MAX_DEPTH - 2):
        deep = [deep, {}]
    assert 201 == (await caller.put("small", topic, "j", body=deep)).status
    response = await caller.put("small", topic, "k", body=[deep])
    assert 422 == response.status
    [field_error] = response.json()["errors"]
    assert "is nested deeper than 6 levels, the limit of key 'small'" == field_error["message"]
    assert 201 == (await caller.put("free", topic, "k", body=[deep])).status


@pytest.mark.parametrize(
    "body",
    [b'"' + b'\\"' * 130_000, b"[" * 1_000_000, b'{"topic":"t","body":' + b"[" * 400_000 + b"]" * 400_000 + b"}"],
    ids=["unclosed string", "unclosed lists", "deep lists"],
)
async def test_checking_the_depth_of_a_body_keeps_no_other_request_waiting(
    service: ServiceProcess, keys: KeysFile, body: bytes
) -> None:
    """With quadratic work the first of these bodies would take minutes."""
    async with httpx.AsyncClient(base_url=service.url, timeout=20, trust_env=False, verify=NO_TLS) as client:
        headers = {"Authorization": f"Bearer {keys.tokens['shallow']}", "Content-Type": "application/json"}
        responses = await asyncio.gather(
            *(client.post("/jobs", content=body, headers=headers) for _ in range(3)),
            *(client.get("/healthz") for _ in range(20)),
        )
    assert [response.status_code for response in responses] == [422] * 3 + [200] * 20


async def test_a_put_is_refused_while_the_topic_holds_the_maximum_of_the_key(caller: Caller, topic: str) -> None:
    for number in range(MAX_JOBS):
        assert 201 == (await caller.put("few", topic, f"j{number}")).status
    response = await caller.put("few", topic, "late")
    assert (429, "topic_full", MAX_JOBS) == (response.status, response.json()["code"], response.json()["max_jobs"])
    assert f"topic '{topic}' holds 5 live jobs, which is the limit for puts with this key" == response.json()["detail"]
    assert "retry-after" in response.headers
    assert 200 == (await caller.put("few", topic, "j0", on_conflict="replace")).status
    assert 409 == (await caller.put("few", topic, "j0")).status
    assert 201 == (await caller.put("few", f"{topic}.other", "late")).status
    assert 201 == (await caller.put("free", topic, "k")).status  # the limit is the key's and not the topic's
    for _ in range(2):
        [job] = (await caller("few", "POST", f"/topics/{topic}/pop?wait=0")).json()["jobs"]
        assert 429 == (await caller.put("few", topic, "late")).status  # a held job counts
        assert 200 == (await caller("few", "POST", f"/jobs/{topic}/{job['id']}/finish", {})).status
    assert 201 == (await caller.put("few", topic, "late")).status


async def test_a_batch_is_put_as_far_as_the_key_has_room(caller: Caller, topic: str) -> None:
    await caller.put("free", topic, "a")
    for known in range(2, MAX_JOBS):
        await caller.put("free", topic, f"a{known}")
    jobs = [{"topic": topic, "id": f"j{number}"} for number in range(3)]
    results = (await caller("few", "POST", "/jobs/batch", {"jobs": jobs})).json()["results"]
    assert [201, 429, 429] == [result["status"] for result in results]
    assert {"topic_full"} == {result["code"] for result in results[1:]}


async def test_the_smaller_of_the_limits_of_key_and_topic_applies(caller: Caller, topic: str) -> None:
    await caller("free", "PUT", f"/topics/{topic}", {"max_jobs": 2})
    assert [201, 201, 429] == [(await caller.put("few", topic, f"j{number}")).status for number in range(3)]
    response = await caller.put("few", topic, "late")
    assert (2, "which is its max_jobs") == (response.json()["max_jobs"], response.json()["detail"].partition(", ")[2])


async def test_puts_at_the_same_time_never_exceed_the_key(caller: Caller, topic: str) -> None:
    responses = await asyncio.gather(
        *(caller.put("few", topic, f"j{number}") for number in range(20)),
        *(caller.put("free", topic, f"k{number}") for number in range(3)),
    )
    put_by_few = sum(response.status == 201 for response in responses[:20])
    assert {201, 429} >= {response.status for response in responses[:20]}
    assert [201] * 3 == [response.status for response in responses[20:]]
    assert MAX_JOBS - 3 <= put_by_few <= MAX_JOBS


async def test_more_waiting_pops_than_a_key_may_have_are_refused(caller: Caller, topic: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        waiting = [await stack.enter_async_context(caller.waiting("waits", topic)) for _ in range(MAX_WAITING)]
        await until_refused(caller, topic)
        refused = await caller("waits", "GET", f"/topics/{topic}/pop?wait=30")
        assert (429, "rate_limited") == (refused.status, refused.json()["code"])
        assert refused.json()["detail"] == "key 'waits' already has 3 waiting pops, its maximum"
        assert "1" == refused.headers["retry-after"]
        assert '"waiting-pops";q=3;qu="concurrent-requests"' == refused.headers["ratelimit-policy"]
        assert '"waiting-pops";r=0' == refused.headers["ratelimit"]
        await caller.put("free", f"{topic}.other", "job")
        for_a_job = await caller("waits", "GET", f"/jobs/{topic}.other/job?wait=30")
        assert (for_a_job.status, for_a_job.json()["detail"]) == (429, refused.json()["detail"])
        assert 200 == (await caller("waits", "GET", f"/jobs/{topic}.other/job?wait=0")).status
        at_once = await caller("waits", "GET", f"/topics/{topic}/pop?wait=0")  # this one does not wait
        assert 200 == at_once.status
        async with caller.waiting("free", topic) as other:
            await caller.put("free", topic, "a")
            await caller.put("free", topic, "b")
            await caller.put("free", topic, "c")
            await caller.put("free", topic, "d")
            responses = [await wire.read_response() for wire in (*waiting, other)]
    assert {"a", "b", "c", "d"} == {response.json()["jobs"][0]["id"] for response in responses}
    assert "ratelimit" not in responses[-1].headers
    async with caller.waiting("waits", topic), asyncio.timeout(10):  # they have ended, so there is room
        await caller.put("free", topic, "e")


async def test_a_waiting_pop_whose_client_disconnects_leaves_room(caller: Caller, topic: str) -> None:
    for _ in range(3):
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(MAX_WAITING):
                await stack.enter_async_context(caller.waiting("waits", topic))
            await until_refused(caller, topic)
        async with asyncio.timeout(10):
            while (await caller("waits", "GET", f"/topics/{topic}/pop?wait=0.01")).status == 429:
                await asyncio.sleep(0.01)


async def until_refused(caller: Caller, topic: str) -> None:
    """Wait until the pops sent before are waiting."""
    async with asyncio.timeout(10):
        while (await caller("waits", "GET", f"/topics/{topic}/pop?wait=0.01")).status != 429:
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_key_at_all_its_limits_does_not_slow_the_others(
    service: ServiceProcess, keys: KeysFile, topic: str
) -> None:
    caller = Caller(service, keys, through_asgi=False)
    stop = asyncio.Event()
    refusals: list[int] = []

    async def put_too_much() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            responses = await asyncio.gather(
                caller.put("limited", topic, f"x{number}"), caller.put("limited", topic, f"y{number}", body="x" * 600)
            )
            refusals.extend(response.status for response in responses)

    async def pop() -> None:
        while not stop.is_set():
            await caller("limited", "GET", f"/topics/{topic}/pop?wait=1&count=1000")

    pressing = asyncio.gather(put_too_much(), pop())
    number = 0
    try:
        async with asyncio.timeout(40):
            while number < 100 or refusals.count(429) <= 50:
                number += 1
                other = f"{topic}.other"
                assert 201 == (await caller.put("free", other, f"j{number}", body="x" * 5000)).status
                [job] = (await caller("free", "GET", f"/topics/{other}/pop?wait=5")).json()["jobs"]
                assert 200 == (await caller("free", "POST", f"/jobs/{other}/{job['id']}/finish", {})).status
    finally:
        stop.set()
        async with asyncio.timeout(40):
            await pressing


@pytest.mark.slow
async def test_waiting_pops_still_count_after_a_reload_of_limits(
    service: ServiceProcess, keys: KeysFile, topic: str
) -> None:
    caller = Caller(service, keys, through_asgi=False)
    keys.add("later", "pop", more="max_waiting_pops = 2")

    def status(path: str) -> int:
        header = {"Authorization": f"Bearer {keys.tokens['later']}"}
        return httpx.get(service.url + path, headers=header, timeout=10, verify=NO_TLS).status_code

    pop = f"/topics/{topic}/pop?wait=0.01"
    await asyncio.to_thread(wait_until, lambda: status(pop) == 200, 10, "the key is known")
    async with caller.waiting("later", topic):
        keys.add("later", "pop", more="max_waiting_pops = 1")
        await asyncio.to_thread(wait_until, lambda: status(pop) == 429, 10, "the new limit applies")
    await asyncio.to_thread(wait_until, lambda: status(pop) == 200, 10, "the pop that waited is gone")


# Jobs that a finish puts


async def finish(service: ServiceProcess, keys: KeysFile, key: str, topic: str, *puts: dict[str, Any]) -> WireResponse:
    """Put and pop job `a` of the topic, and finish it with these puts by the key."""
    token = keys.tokens["all"]
    await call(service, "POST", "/jobs", {"topic": topic, "id": "a"}, token=token)
    await call(service, "POST", f"/topics/{topic}/pop?wait=1", token=token)
    return await call(service, "POST", f"/jobs/{topic}/a/finish", {"put": list(puts)}, token=keys.tokens[key])


async def exists(service: ServiceProcess, keys: KeysFile, topic: str, job_id: str) -> bool:
    return (await call(service, "GET", f"/jobs/{topic}/{job_id}", token=keys.tokens["all"])).status == 200


async def test_a_key_needs_the_scope_put_for_the_topics(service: ServiceProcess, keys: KeysFile) -> None:
    response = await finish(service, keys, "pop", "own.a", {"topic": "own.b", "id": "x"})
    assert (response.status, response.json()["code"]) == (403, "forbidden")
    assert response.json()["detail"] == "key 'pop' does not have scope put for topic 'own.b'"
    response = await finish(service, keys, "own", "own.a", {"topic": "own.b", "id": "x"}, {"topic": "other"})
    assert response.json()["detail"] == "key 'own' does not have scope put for topic 'other'"
    assert not await exists(service, keys, "own.b", "x")
    assert await exists(service, keys, "own.a", "a")
    assert (await finish(service, keys, "own", "own.a", {"topic": "own.b", "id": "x"})).status == 200
    assert await exists(service, keys, "own.b", "x")
    assert (await call(service, "POST", "/jobs/own.b/x/finish", {}, token=keys.tokens["pop"])).status == 409


JOB_WITH_END = {"topic": "own.a", "id": "with-end", "delay": 60, "on_end": {"topic": "other"}}


@pytest.mark.parametrize(
    ("key", "line", "body"),
    [
        ("own", "POST /jobs", JOB_WITH_END),
        ("own", "POST /jobs/batch", {"jobs": [{"topic": "own.a"}, JOB_WITH_END]}),
        ("own", "POST /jobs/batch", {"jobs": [JOB_WITH_END | {"run_at": "2030-01-01T00:00:00.5Z", "delay": None}]}),
        ("own", "PATCH /jobs/own.a/with-end", {"on_end": {"topic": "other"}}),
        ("own", "POST /jobs/own.a/none/finish", {"put": [JOB_WITH_END]}),
        ("own", "PUT /schedules/own", {"topic": "own.a", "every": 60, "job": {"on_end": {"topic": "other"}}}),
        ("own-admin", "PUT /topics/own.a", {"on_end": {"topic": "other"}}),
    ],
)
async def test_a_key_needs_the_scope_put_for_the_topics_of_ends(
    service: ServiceProcess, keys: KeysFile, key: str, line: str, body: dict[str, Any]
) -> None:
    method, path = line.split()
    for through_asgi in (False, True):
        response = await call(service, method, path, body, token=keys.tokens[key], through_asgi=through_asgi)
        assert (response.status, response.json()["code"]) == (403, "forbidden")
        assert response.json()["detail"] == f"key {key!r} does not have scope put for topic 'other' of `on_end`"
    assert not await exists(service, keys, "own.a", "with-end")


async def test_a_key_may_put_jobs_whose_ends_put_into_its_topics(service: ServiceProcess, keys: KeysFile) -> None:
    on_end = {"topic": "own.ended", "id": "ended-{id}"}
    response = await finish(service, keys, "own", "own.a", {"topic": "own.a", "id": "next", "on_end": on_end})
    assert response.status == 200
    await call(service, "POST", "/topics/own.a/pop?wait=1", token=keys.tokens["pop"])
    assert (await call(service, "POST", "/jobs/own.a/next/finish", {}, token=keys.tokens["pop"])).status == 200
    assert await exists(service, keys, "own.ended", "ended-next")


@pytest.mark.parametrize(
    ("key", "puts", "field"),
    [
        ("batch", [{"topic": "t"}] * 3, "body.put"),
        ("times", [{"topic": "t"}, {"topic": "t", "retain": 61}], "body.put.1.retain"),
        ("times", [{"topic": "t", "ttl": None}], "body.put.0.ttl"),
    ],
)
async def test_the_limits_of_a_key_on_its_requests_hold(
    service: ServiceProcess, keys: KeysFile, key: str, puts: list[dict[str, Any]], field: str
) -> None:
    response = await finish(service, keys, key, f"limits.{key}", *puts)
    assert response.status == 422
    [error] = response.json()["errors"]
    assert error["field"] == field
    assert f"the limit of key {key!r}" in error["message"]
    assert await exists(service, keys, f"limits.{key}", "a")


@pytest.mark.slow
async def test_the_most_live_jobs_and_the_quota_of_a_key_hold(service: ServiceProcess, keys: KeysFile) -> None:
    response = await finish(service, keys, "one", "one", {"topic": "few.next"}, {"topic": "few.next"})
    assert (response.status, response.json()["code"]) == (429, "topic_full")
    assert (await finish(service, keys, "one", "one", {"topic": "few.next"})).status == 200
    response = await finish(service, keys, "quota", "quota.a", *[{"topic": "quota.b"}] * 4)
    assert response.status in {422, 429}
    assert "max_jobs_total" in response.json()["detail"]
    assert await exists(service, keys, "quota.a", "a")

"""The quotas of a key for all of its topics together: jobs and what waits for them, bytes, topics, and retention."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import WireResponse

MOST, MOST_JOBS = 20, 10
MOST_BYTES = 20_000
MOST_TOPICS = 5
SHARDS = 3
COUNTED_S = 20.0


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("admin", "admin")
    for name in ("full", "many", "again", "others", "dead", "retained", "cancelled"):
        keys.add(name, "put", "pop", "cancel", topics=(f"{name}.*",), more=f"max_jobs_total = {MOST}")
    keys.add("bytes", "put", "pop", topics=("bytes.*",), more=f"max_bytes_total = {MOST_BYTES}")
    for how in ("finish", "finish_batch", "release", "bury"):
        keys.add(f"ends.{how}", "put", "pop", topics=(f"ends.{how}.*",), more=f"max_bytes_total = {MOST_BYTES}")
    keys.add("schedules", "put", topics=("schedules.*",), more=f"max_bytes_total = {MOST_BYTES}")
    keys.add("planned", "put", topics=("planned.*",), more=f"max_jobs_total = {MOST}")
    for how in ("cancel", "task"):
        keys.add(f"calls.{how}", "put", "cancel", topics=(f"calls.{how}.*",), more=f"max_jobs_total = {MOST}")
    keys.add("topics", "put", "pop", topics=("topics.*",), more=f"max_topics = {MOST_TOPICS}")
    more = f"max_jobs_total = {MOST}\nmax_topics = 2"
    keys.add("batches", "put", "read", topics=("batches.*",), more=more)
    keys.add("follow", "put", "pop", "cancel", "read", topics=("follow.*",), more=f"max_jobs_total = {MOST_JOBS}")
    for name in ("long", "items", "tags"):
        keys.add(name, "put", "pop", "cancel", "read", topics=(f"{name}.*",), more=f"max_bytes_total = {MOST_BYTES}")
    keys.add("times", "put", "pop", "read", more="max_retain = 60\nmax_ttl = 30\nmax_dead_retain = 2")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--keys-file", str(keys.path), "--shards", str(SHARDS))
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("quota")) as service:
        yield service
        assert "Traceback" not in service.output()


class Caller:
    """Calls with one key."""

    def __init__(self, service: ServiceProcess, keys: KeysFile, name: str) -> None:
        self._service = service
        self._token = keys.tokens[name]

    async def __call__(self, method: str, path: str, body: Any = None) -> WireResponse:
        return await call(self._service, method, path, body, token=self._token)

    async def put(self, topic: str, **fields: Any) -> WireResponse:
        return await self("POST", "/jobs", {"topic": topic, **fields})

    async def put_batch(self, topic: str, count: int) -> int:
        return (await self("POST", "/jobs/batch", {"jobs": [{"topic": topic}] * count})).status

    async def put_when_counted(self, topic: str, **fields: Any) -> None:
        """Put one as soon as a count finds that the topics have room: what was put during a count is in use twice."""
        async with asyncio.timeout(COUNTED_S):
            while (await self.put(topic, **fields)).status != 201:
                await asyncio.sleep(0.1)


async def test_a_put_is_refused_while_all_topics_together_are_full(service: ServiceProcess, keys: KeysFile) -> None:
    full, admin = Caller(service, keys, "full"), Caller(service, keys, "admin")
    for number in range(MOST):
        await full.put_when_counted(f"full.{number}", id="j", delay=60)
    async with asyncio.timeout(COUNTED_S):
        while "in use: 20," not in (response := await full.put("full.new")).json()["detail"]:
            await asyncio.sleep(0.1)
    assert (429, "rate_limited") == (response.status, response.json()["code"])
    assert 1 <= int(response.headers["retry-after"]) <= COUNTED_S, "when they will have been counted again"
    assert (
        "the topics of key 'full' are full: max_jobs_total is 20, including dead and retained jobs; "
        "jobs in use: 20, needed: 1 more" == response.json()["detail"]
    )
    assert 404 == (await admin("GET", "/topics/full.new")).status
    assert 201 == (await admin.put("full.new")).status  # the limit is the key's
    assert 201 == (await Caller(service, keys, "others").put("others.new")).status
    assert 200 == (await full("DELETE", "/jobs/full.0/j")).status
    assert 200 == (await full("DELETE", "/jobs/full.1/j")).status
    await full.put_when_counted("full.new")  # so they have been counted, with the one of the other key
    assert 429 == (await full.put("full.new")).status


async def test_a_batch_for_which_there_is_no_room_is_refused_whole(service: ServiceProcess, keys: KeysFile) -> None:
    many = Caller(service, keys, "many")
    assert 200 == await many.put_batch("many.a", MOST - 3)
    assert 429 == await many.put_batch("many.b", 4)
    assert 404 == (await Caller(service, keys, "admin")("GET", "/topics/many.b")).status
    async with asyncio.timeout(COUNTED_S):
        while await many.put_batch("many.b", 3) != 200:
            await asyncio.sleep(0.1)
    assert 429 == await many.put_batch("many.b", 1)


async def test_sealing_a_batch_without_jobs_is_a_put(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "batches")

    async def seal(name: str, **fields: Any) -> tuple[int, str | None]:
        response = await caller("PUT", f"/batches/{name}", {**fields, "seal": True})
        return response.status, response.json().get("code")

    on_end = {"topic": "batches.done"}
    assert (await caller("PUT", "/batches/open", {"on_end": on_end})).status == 201
    assert (await caller.put("batches.done", batch="open", delay=60)).status == 201  # so a count finds it
    assert await seal("more-topics", on_end={"topic": "batches.b"}) == (201, None)
    assert await seal("more-topics-2", on_end={"topic": "batches.c"}) == (429, "rate_limited")  # and nothing was made
    assert (await caller("PUT", "/batches/open", {"on_end": {"topic": "batches.c"}})).status == 429
    made = 2  # with the job of `open`
    async with asyncio.timeout(COUNTED_S):
        while made < MOST:  # one may be refused early
            made += await seal(f"b{made}", on_end=on_end) == (201, None)
    assert await seal("more", on_end=on_end) == (429, "rate_limited")
    assert (await caller("PUT", "/batches/empty", {"on_end": on_end})).status == 201  # it puts nothing yet
    assert await seal("empty") == (429, "rate_limited")
    assert await seal("open") == (200, None)  # its job is that of the end of another one
    assert await seal("b2") == (200, None)


async def jobs_that_come_and_go_never_exceed_the_quota(service: ServiceProcess, keys: KeysFile) -> None:
    again = Caller(service, keys, "again")
    for number in range(3 * MOST):
        topic = f"again.{number % 7}"
        await again.put_when_counted(topic)
        [job] = (await again("POST", f"/topics/{topic}/pop?wait=0")).json()["jobs"]
        assert 200 == (await again("POST", f"/jobs/{topic}/{job['id']}/finish", {})).status


async def test_jobs_put_at_the_same_time_never_exceed_the_quota(service: ServiceProcess, keys: KeysFile) -> None:
    others = Caller(service, keys, "others")
    puts = (others.put(f"others.{number % 9}", delay=60) for number in range(3 * MOST))
    stored = [response.status for response in await asyncio.gather(*puts)].count(201)
    async with asyncio.timeout(COUNTED_S):  # some are refused early if the jobs are counted meanwhile
        while stored < MOST - 1:
            stored += (await others.put("others.9", delay=60)).status == 201
            await asyncio.sleep(0.02)
    assert MOST - 1 <= stored <= MOST  # another test put one
    assert 429 == await others.put_batch("others.9", 2)


async def put_until_refused(caller: Caller, topic: str, **fields: Any) -> int:
    """How many puts to one topic succeed until one is refused for the quota; each job is ended after its put."""
    for stored in range(3 * MOST):
        response = await caller.put(topic, **fields)
        if response.status == 429:
            assert "rate_limited" == response.json()["code"]
            return stored
        assert 201 == response.status
        [job] = (await caller("POST", f"/topics/{topic}/pop?wait=0")).json()["jobs"]
        await caller("POST", f"/jobs/{topic}/{job['id']}/{fields['body']}", {})
    return 3 * MOST


async def jobs_that_are_kept_after_their_end_count(
    service: ServiceProcess, keys: KeysFile, name: str, state: str, fields: dict[str, Any]
) -> None:
    caller = Caller(service, keys, name)
    stored = 0
    async with asyncio.timeout(20):  # a put may be refused early, until the next count
        while stored < MOST:
            stored += await put_until_refused(caller, f"{name}.a", **fields)
            await asyncio.sleep(0.1)
    assert stored == MOST
    admin = Caller(service, keys, "admin")
    kept = (await admin("GET", f"/topics/{name}.a/jobs?limit=1&state={state}")).json()["jobs"]
    assert 200 == (await admin("DELETE", f"/jobs/{name}.a/{kept[0]['id']}")).status
    await caller.put_when_counted(f"{name}.b")  # so the others have been counted once more
    assert 429 == (await caller.put(f"{name}.b")).status


async def tombstones_of_cancelled_deliveries_count(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "cancelled")
    assert 200 == await caller.put_batch("cancelled.a", MOST - 1)
    await caller.put_when_counted("cancelled.b", id="gone")
    held = (await caller("POST", f"/topics/cancelled.a/pop?wait=0&count={MOST}&ttr=3600")).json()["jobs"]
    for job in held:
        assert 200 == (await caller("DELETE", f"/jobs/cancelled.a/{job['id']}")).status
    assert 429 == (await caller.put("cancelled.a")).status
    assert 200 == (await caller("DELETE", "/jobs/cancelled.b/gone")).status
    await caller.put_when_counted("cancelled.b")  # so the others have been counted once more
    assert 429 == (await caller.put("cancelled.a")).status


async def test_the_bytes_of_all_topics_are_bounded(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "bytes")
    response = await caller.put("bytes.a", body="x" * MOST_BYTES)
    assert (422, "validation") == (response.status, response.json()["code"])
    assert f"may have at most {MOST_BYTES} (max_bytes_total)" in response.json()["errors"][0]["message"]
    for number in range(4):
        await caller.put_when_counted(f"bytes.{number}", id="j", delay=60, body="x" * 4000)
    await caller.put_when_counted("bytes.4")  # until then what was put during a count may be in use twice
    assert 429 == (await caller.put("bytes.4", body="x" * 4000)).status
    assert 429 == (await caller("PATCH", "/jobs/bytes.0/j", {"body": "x" * 8000})).status
    assert 200 == (await caller("PATCH", "/jobs/bytes.0/j", {"delay": 90})).status
    await caller.put_when_counted("bytes.4", body="small")


@pytest.mark.parametrize("how", ["finish", "finish_batch", "release", "bury"])
async def test_the_end_of_a_delivery_is_never_refused_and_what_it_stores_counts(
    service: ServiceProcess, keys: KeysFile, how: str
) -> None:
    caller = Caller(service, keys, f"ends.{how}")
    topic = f"ends.{how}.a"
    for number in range(3):
        assert 201 == (await caller.put(topic, id=f"j{number}", retain=99)).status
    held = (await caller("POST", f"/topics/{topic}/pop?wait=0&count=3")).json()["jobs"]
    assert 3 == len(held)
    text = "x" * 4000
    body: dict[str, Any]
    for job in held:
        if how == "finish_batch":
            path, body = f"/topics/{topic}/finish", {"jobs": [{"id": job["id"], "result": text * 3}]}
        elif how == "finish":
            path, body = f"/jobs/{topic}/{job['id']}/finish", {"result": text * 3}
        else:
            path, body = f"/jobs/{topic}/{job['id']}/{how}", {"error": text}
        assert 200 == (await caller("POST", path, body)).status
    response = await caller.put(topic, body=text * 2)  # at once: what the ends stored is already counted
    assert (429, "rate_limited") == (response.status, response.json()["code"])


async def test_schedules_count_also_when_they_make_no_runs(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "schedules")
    paused = {"topic": "schedules.a", "every": 3600, "paused": True, "job": {"body": "x" * 3000}}
    responses = [await caller("PUT", f"/schedules/s{number}", paused) for number in range(MOST_BYTES // 3000)]
    assert [201] * 3 == [response.status for response in responses[:3]]  # fewer fit if they are counted meanwhile
    assert (429, "rate_limited") == (responses[-1].status, responses[-1].json()["code"])
    assert 201 == (await Caller(service, keys, "admin").put("schedules.b", body="x" * MOST_BYTES)).status
    async with asyncio.timeout(COUNTED_S):
        while (response := await caller("POST", "/schedules/s0/resume")).status != 429:
            assert 200 == response.status
            await asyncio.sleep(0.05)
    assert 429 == (await caller("POST", "/schedules/s0/run")).status


async def test_each_schedule_counts_as_a_job(service: ServiceProcess, keys: KeysFile) -> None:
    caller, admin = Caller(service, keys, "planned"), Caller(service, keys, "admin")
    paused = {"topic": "planned.a", "every": 3600, "paused": True}
    async with asyncio.timeout(COUNTED_S):  # one may be refused early, until the next count
        for number in range(MOST):
            while (await caller("PUT", f"/schedules/planned{number}", paused)).status != 201:
                await asyncio.sleep(0.1)
    assert 429 == (await caller.put("planned.a")).status
    assert 300 > (await admin("DELETE", "/schedules/planned0")).status
    await caller.put_when_counted("planned.a")  # so the others have been counted once more
    assert 429 == (await caller.put("planned.a")).status


@pytest.mark.parametrize("how", ["cancel", "task"])
async def test_remembered_calls_on_many_jobs_count(service: ServiceProcess, keys: KeysFile, how: str) -> None:
    caller = Caller(service, keys, f"calls.{how}")
    topic = f"calls.{how}.a"
    select = {"topics": [topic], "state": "delayed"}  # there are none

    async def cancel(request_id: str) -> WireResponse:
        response = await caller("POST", "/jobs/cancel", {"select": select, "request_id": request_id})
        assert response.status in {200, 429}
        return response

    async def begin_task(_: str) -> WireResponse:
        while True:
            response = await caller("POST", "/jobs/cancel", {"select": select, "as_task": True})
            if response.status != 429 or "tasks already" not in response.json()["detail"]:
                return response

    call_once, most = (cancel, MOST) if how == "cancel" else (begin_task, MOST // 2)  # a task and its notes count
    assert 200 == await caller.put_batch(topic, MOST)
    assert 429 == (await caller.put(topic)).status
    called = 0
    async with asyncio.timeout(COUNTED_S):
        while called < most:  # also while the topics are full of jobs; one may be refused early
            called += (response := await call_once(f"r{called}")).status < 300
    while (response := await call_once("more")).status < 300:
        called += 1
    assert called == most
    assert (429, "rate_limited") == (response.status, response.json()["code"])
    not_named = {"select": {"topics": [topic], "state": "ready"}}
    assert MOST == (await caller("POST", "/jobs/cancel", not_named)).json()["done"]
    assert 429 == (await caller.put(topic)).status  # the calls are still remembered


async def the_topics_in_use_are_bounded(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "topics")
    for number in range(MOST_TOPICS):
        assert 201 == (await caller.put(f"topics.{number}")).status
    response = await caller.put("topics.more")
    assert (429, "rate_limited") == (response.status, response.json()["code"])
    assert "max_topics" in response.json()["detail"]
    assert 404 == (await Caller(service, keys, "admin")("GET", "/topics/topics.more")).status
    assert 201 == (await caller.put("topics.0")).status
    await asyncio.sleep(2.5)  # counted by then, and only the puts below cause another count
    await Caller(service, keys, "admin")("DELETE", "/topics/topics.0")
    await caller.put_when_counted("topics.more")


async def the_retention_of_its_jobs_is_bounded(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "times")
    for field, most in (("retain", 60), ("ttl", 30)):
        for path, body, at in (
            ("/jobs", {"topic": "times.a", field: most + 1}, f"body.{field}"),
            ("/jobs/batch", {"jobs": [{"topic": "times.a"}, {"topic": "times.a", field: 99}]}, f"body.jobs[1].{field}"),
        ):
            response = await caller("POST", path, body)
            assert 422 == response.status
            [field_error] = response.json()["errors"]
            assert at.replace("[1]", ".1") == field_error["field"].replace("[1]", ".1")
            assert f"must be at most {most} seconds, the limit of key 'times'" == field_error["message"]
        assert 201 == (await caller.put("times.a", id=field, **{field: most})).status
    nulls: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("POST", "/jobs", {"topic": "times.a", "ttl": None}),
        ("POST", "/jobs/batch", {"jobs": [{"topic": "times.a"}, {"topic": "times.a", "ttl": None}]}),
        ("PATCH", "/jobs/times.a/ttl", {"ttl": None}),
    )
    for method, path, without in nulls:
        response = await caller(method, path, without)
        assert (422, "validation") == (response.status, response.json()["code"]), method
        assert "null means no bound" in response.json()["errors"][0]["message"]
    held = (await caller("POST", "/topics/times.a/pop?wait=0&count=2")).json()["jobs"]
    assert 2 == len(held)
    assert 200 == (await caller("POST", "/jobs/times.a/ttl/bury", {})).status
    async with asyncio.timeout(10):  # kept for 2 s, not for the service's 30 days
        while (await caller("GET", "/jobs/times.a/ttl")).status == 200:
            await asyncio.sleep(0.1)


# What collapsing puts store: follow-ups and collected items


async def hold(caller: Caller, topic: str, count: int) -> list[dict[str, Any]]:
    for number in range(count):
        assert (await caller.put(topic, id=f"j{number}")).status == 201
    jobs: list[dict[str, Any]] = (await caller("POST", f"/topics/{topic}/pop?wait=0&count={count}&ttr=600")).json()[
        "jobs"
    ]
    assert len(jobs) == count
    return jobs


async def stays_refused(caller: Caller, topic: str, **fields: Any) -> None:
    """Assert that a put is refused, also after two more counts, and that nothing is stored."""
    for _ in range(2):
        response = await caller.put(topic, **fields)
        assert (response.status, response.json()["code"]) == (429, "rate_limited")
        await asyncio.sleep(1.5)
    assert (await caller.put(topic, **fields)).status == 429


async def follow_ups_count_as_jobs(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "follow")
    held = await hold(caller, "follow.a", MOST_JOBS // 2)
    for job in held:
        await caller.put_when_counted("follow.a", id=job["id"], on_conflict="replace", if_reserved="after")
    await stays_refused(caller, "follow.a", id="one.more")
    assert (await caller("GET", "/jobs/follow.a/one.more")).status == 404
    finish = {"receipt": held[0]["receipt"]}
    assert (await caller("POST", f"/jobs/follow.a/{held[0]['id']}/finish", finish)).status == 200
    await caller.put_when_counted("follow.a", id="one.more")


async def the_bytes_of_follow_ups_count(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "long")
    [job] = await hold(caller, "long.a", 1)
    after = {"id": job["id"], "on_conflict": "replace", "if_reserved": "after"}
    await caller.put_when_counted("long.a", body="x" * 15_000, **after)
    await stays_refused(caller, "long.b", body="x" * 8000)
    assert (await caller("DELETE", f"/jobs/long.a/{job['id']}")).status == 200
    await caller.put_when_counted("long.b", body="x" * 8000)


async def the_bytes_of_collected_items_count(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "items")
    stored = 0
    async with asyncio.timeout(COUNTED_S):
        while stored < 15:  # each is 1 kB; a put may be refused early, until the next count
            status = (await caller.put("items.a", id="all", body="x" * 1000, delay=60, on_conflict="append")).status
            assert status in {200, 201, 429}
            stored += status != 429
    await stays_refused(caller, "items.a", id="all", body="x" * 8000, on_conflict="append")
    assert (await caller("GET", "/jobs/items.a/all")).json()["items"] == 15
    assert (await caller("DELETE", "/jobs/items.a/all")).status == 200
    await caller.put_when_counted("items.a", id="all", body="x" * 8000, on_conflict="append")


async def the_bytes_of_the_tag_index_count(service: ServiceProcess, keys: KeysFile) -> None:
    caller = Caller(service, keys, "tags")
    tags = [f"{number}{'t' * 60}" for number in range(8)]
    stored = 0
    async with asyncio.timeout(COUNTED_S):
        while stored < 3:  # some 5 kB each
            response = await caller.put("tags.a", id=f"{stored}{'i' * 250}", tags=tags, delay=60)
            assert response.status in {201, 429}
            stored += response.status == 201
            await asyncio.sleep(0.1)
    await stays_refused(caller, "tags.a", id="last" + "i" * 250, tags=tags, body="x" * 8000)


@pytest.mark.slow
async def test_all_that_a_key_stores_counts(service: ServiceProcess, keys: KeysFile) -> None:
    """At the same time, with keys of their own: they wait for counts, of which there is one each second."""
    async with asyncio.TaskGroup() as scenarios:
        for scenario in (
            jobs_that_come_and_go_never_exceed_the_quota,
            tombstones_of_cancelled_deliveries_count,
            the_topics_in_use_are_bounded,
            the_retention_of_its_jobs_is_bounded,
            follow_ups_count_as_jobs,
            the_bytes_of_follow_ups_count,
            the_bytes_of_collected_items_count,
            the_bytes_of_the_tag_index_count,
        ):
            scenarios.create_task(scenario(service, keys))
        dead, retained = {"body": "bury"}, {"body": "finish", "retain": 99}
        scenarios.create_task(jobs_that_are_kept_after_their_end_count(service, keys, "dead", "dead", dead))
        scenarios.create_task(jobs_that_are_kept_after_their_end_count(service, keys, "retained", "finished", retained))

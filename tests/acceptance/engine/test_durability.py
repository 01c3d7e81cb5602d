"""The durability level of a put, over HTTP, in the client and on the command line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from deferd import Client, DurabilityUnavailable, JobExists, StoreUnavailable
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.http_calls import NO_TLS, Http, ok, problem, refusal
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import Pair

REPLICATION_TIMEOUT_S = 1.0
SLACK_S = 3.0
"""What a loaded machine may add."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("stores")) as pair:
        yield pair


@pytest.fixture(scope="module")
def replicated_service(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--redis-url", pair.primary.mark_used().url, "--replication-timeout", str(REPLICATION_TIMEOUT_S))
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
async def shop(replicated_service: ServiceProcess, topic: str) -> AsyncIterator[Http]:
    async with httpx.AsyncClient(base_url=replicated_service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        yield Http(client, topic)


@pytest.fixture
def client(replicated_service: ServiceProcess) -> Iterator[Client]:
    with Client(replicated_service.url) as client:
        yield client


def replica_has(pair: Pair, topic: str, job_id: str) -> bool:
    return bool(pair.replica.command("HEXISTS", f"deferd:{{0}}:{topic}:pool", job_id))


class TestHttp:
    async def test_the_embedded_store_fsyncs_and_says_so(self, http: Http) -> None:
        for named in ({}, {"durability": "fsync"}, {"durability": "memory"}):
            assert ok(await http.post("/jobs", json={"topic": http.topic, **named}), 201)["durability"] == "fsync"
        batch = {"jobs": [{"topic": http.topic, "id": "a"}, {"topic": http.topic, "id": "a"}]}
        created, taken = ok(await http.post("/jobs/batch", json=batch))["results"]
        assert created == {"topic": http.topic, "id": "a", "status": 201, "durability": "fsync"}
        assert (taken["code"], taken["durability"]) == ("job_exists", "fsync")
        members = problem(await http.post("/jobs", json={"topic": http.topic, "id": "a"}), 409, "job_exists")
        assert members["durability"] == "fsync"
        assert "durability" not in await http.get_job("a")

    async def test_an_unsupported_level_is_refused_with_the_supported_ones(self, http: Http) -> None:
        job = {"topic": http.topic, "id": "a", "durability": "replicated:1"}
        for response in (await http.post("/jobs", json=job), await http.post("/jobs/batch", json={"jobs": [job, job]})):
            members = problem(response, 422, "durability_unavailable")
            assert (members["durability"], members["available"]) == ("replicated:1", ["memory", "fsync"])
            assert "durability 'replicated:1' is not available: the embedded store has no replicas" in members["detail"]
        assert not await http.has_job("a")
        batch = {"jobs": [job, {"topic": http.topic, "id": "b"}]}
        refused, put = ok(await http.post("/jobs/batch", json=batch))["results"]
        assert refused == {"topic": http.topic, "id": "a", "status": 422, "code": "durability_unavailable"}
        assert (put["status"], put["durability"]) == (201, "fsync")

    @pytest.mark.parametrize("value", ["disk", "replicated", "replicated:0", "replicated:10", "FSYNC", 1, ""])
    async def test_an_unknown_level_is_refused(self, http: Http, value: object) -> None:
        for response in (
            await http.post("/jobs", json={"topic": http.topic, "durability": value}),
            await http.put(http.topic_path(), json={"durability": value}),
        ):
            message = refusal(response, "body.durability")
            assert "memory, fsync, or replicated:N with N from 1 to 9" in message or message == "must be a string"

    @pytest.mark.slow
    async def test_a_job_is_on_the_replica_when_its_put_returns(self, shop: Http, pair: Pair) -> None:
        for n in range(10):
            job = {"topic": shop.topic, "id": f"j{n}", "durability": "replicated:1"}
            assert ok(await shop.post("/jobs", json=job), 201)["durability"] == "replicated:1"
            assert replica_has(pair, shop.topic, f"j{n}")
        assert ok(await shop.post("/jobs", json={"topic": shop.topic}), 201)["durability"] == "memory"

    async def test_the_topics_default_counts_for_jobs_that_name_none(self, shop: Http, pair: Pair) -> None:
        settings = ok(await shop.put(shop.topic_path(), json={"durability": "replicated:1"}))["settings"]
        assert settings["durability"] == "replicated:1"
        batch = [{"topic": shop.topic, "id": "a"}, {"topic": shop.topic, "id": "b", "durability": "memory"}]
        results = ok(await shop.post("/jobs/batch", json={"jobs": batch}))["results"]
        assert [line["durability"] for line in results] == ["replicated:1", "memory"]
        assert replica_has(pair, shop.topic, "a")

    @pytest.mark.slow
    async def test_a_replica_that_hangs_makes_a_503_that_says_what_to_do(self, shop: Http, pair: Pair) -> None:
        job = {"topic": shop.topic, "id": "a", "durability": "replicated:1", "on_conflict": "keep"}
        ok(await shop.post("/jobs", json={**job, "id": "warm"}), 201)
        pair.replica.pause()
        try:
            began = time.monotonic()
            response = await shop.post("/jobs", json=job)
            assert time.monotonic() - began < REPLICATION_TIMEOUT_S + SLACK_S
            detail = problem(response, 503, "store_unavailable")["detail"]
            assert "may exist" in detail
            assert "repeating the put with the same id is safe" in detail
            again = problem(await shop.post("/jobs", json=job), 503, "store_unavailable")
            assert "0 of 1 replicas are in sync" in again["detail"]
        finally:
            pair.replica.unpause()
        while (response := await shop.post("/jobs", json=job)).status_code == 503:
            pass
        assert ok(response)["durability"] == "replicated:1"
        assert replica_has(pair, shop.topic, "a")

    async def test_a_put_does_not_wait_for_more_replicas_than_there_are(self, shop: Http) -> None:
        job = {"topic": shop.topic, "id": "a", "durability": "replicated:2"}
        began = time.monotonic()
        response = await shop.post("/jobs", json=job)
        assert time.monotonic() - began < SLACK_S
        assert (
            "1 of 2 replicas are in sync; nothing was stored" in problem(response, 503, "store_unavailable")["detail"]
        )
        assert not await shop.has_job("a")

    async def test_a_cancel_that_names_a_level_says_what_it_has_reached(self, shop: Http, pair: Pair) -> None:
        for job_id in ("a", "b"):
            ok(await shop.post("/jobs", json={"topic": shop.topic, "id": job_id, "delay": 60}), 201)
        path = shop.job_path("a")
        refused = problem(await shop.delete(path, params={"durability": "fsync"}), 422, "durability_unavailable")
        assert (refused["durability"], refused["available"]) == ("fsync", ["memory", "replicated:N"])
        assert "memory, fsync, or" in refusal(
            await shop.delete(path, params={"durability": "disk"}), "query.durability"
        )
        cancelled = ok(await shop.delete(path, params={"durability": "replicated:1"}))
        assert cancelled == {
            "topic": shop.topic,
            "id": "a",
            "state": "cancelled",
            "was": "delayed",
            "durability": "replicated:1",
        }
        assert not replica_has(pair, shop.topic, "a")
        assert "durability" not in ok(await shop.delete(shop.job_path("b")))


class TestClient:
    def test_a_put_reports_the_level_that_it_reached(self, client: Client, topic: str) -> None:
        assert client.put(topic, durability="replicated:1").durability == "replicated:1"
        assert client.put(topic).durability == "memory"
        [result] = client.put_batch([{"topic": topic, "id": "a", "durability": "replicated:1"}])
        assert result.durability == "replicated:1"
        assert client.get(topic, "a").durability is None
        with pytest.raises(JobExists) as taken:
            client.put(topic, id="a", durability="replicated:1")
        assert taken.value.durability == "replicated:1"

    def test_a_cancel_reports_the_level_that_it_reached(self, client: Client, pair: Pair, topic: str) -> None:
        job = client.put(topic, delay=60, durability="replicated:1")
        cancelled = client.cancel(topic, job.id, durability="replicated:1")
        assert (cancelled.was, cancelled.durability) == ("delayed", "replicated:1")
        assert not replica_has(pair, topic, job.id)
        assert client.cancel(topic, client.put(topic, delay=60).id).durability is None

    def test_an_unsupported_level_is_an_error_with_its_facts(self, client: Client, topic: str) -> None:
        with pytest.raises(DurabilityUnavailable, match="appendonly is no") as refused:
            client.put(topic, durability="fsync")
        assert (refused.value.durability, refused.value.available) == ("fsync", ["memory", "replicated:N"])
        assert client.set_topic(topic, {"durability": "fsync"}).settings.durability == "fsync"
        with pytest.raises(DurabilityUnavailable, match=f"the default of topic '{topic}'"):
            client.put(topic)

    @pytest.mark.parametrize("own_id", [None, "a"])
    def test_a_put_with_a_lost_response_is_done_when_its_repeat_is_confirmed(
        self, replicated_service: ServiceProcess, pair: Pair, topic: str, own_id: str | None
    ) -> None:
        with lossy_proxy(replicated_service.url) as proxy, Client(proxy.url, timeout=5) as client:
            proxy.lose_responses(2)
            job = client.put(topic, {"n": 1}, id=own_id, delay=60, durability="replicated:1")
            assert job.durability == "replicated:1"
            proxy.lose_responses()
            [result] = client.put_batch([{"topic": topic, "id": "b", "durability": "replicated:1"}])
            assert (result.status, result.code, result.durability) == (201, None, "replicated:1")
        assert replica_has(pair, topic, job.id)

    @pytest.mark.slow
    def test_an_unconfirmed_put_is_repeated_until_the_replica_has_it(
        self, client: Client, pair: Pair, topic: str
    ) -> None:
        client.put(topic, durability="replicated:1")
        pair.replica.pause()
        wake = threading.Timer(1.5, pair.replica.unpause)
        wake.start()
        try:
            began = time.monotonic()
            job = client.put(topic, id="a", delay=60, durability="replicated:1")
            assert time.monotonic() - began > 1
        finally:
            wake.join()
        assert job.durability == "replicated:1"
        assert replica_has(pair, topic, "a")

    def test_a_put_that_is_not_confirmed_in_time_is_no_success(
        self, replicated_service: ServiceProcess, pair: Pair, topic: str
    ) -> None:
        pair.replica.pause()
        try:
            with (
                Client(replicated_service.url, retry_for=1.5) as client,
                pytest.raises(StoreUnavailable, match="replicas"),
            ):
                client.put(topic, id="a", delay=60, durability="replicated:1")
        finally:
            pair.replica.unpause()


class TestCommandLine:
    def test_a_put_and_a_topic_accept_a_level(
        self, shared_service: ServiceProcess, replicated_service: ServiceProcess, topic: str
    ) -> None:
        shell, replicated = Shell(shared_service.url), Shell(replicated_service.url)
        assert shell.good("put", topic, "--durability", "fsync").endswith(", durability fsync\n")
        [job] = replicated.json("put", topic, "--durability", "replicated:1")
        assert job["durability"] == "replicated:1"
        assert "the embedded store has no replicas" in shell.refused(2, "put", topic, "--durability", "replicated:1")
        assert "--durability" in shell.run("put", topic, "--durability", "disk").stderr
        cancelled = replicated.good("cancel", topic, job["id"], "--durability", "replicated:1")
        assert cancelled == f"{topic}/{job['id']} cancelled, was ready, durability replicated:1\n"

        assert "durability    replicated:1\n" in replicated.good("topic", topic, "--durability", "replicated:1")
        done = replicated.run("put", topic, "-", "--jobs", "--json", stdin=json.dumps({"id": "a"}))
        assert (done.returncode, json.loads(done.stdout)["durability"]) == (0, "replicated:1")
        [view] = replicated.json("topic", topic, "--durability", "none")
        assert view["settings"]["durability"] is None

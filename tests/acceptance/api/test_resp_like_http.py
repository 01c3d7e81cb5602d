"""The same drawn commands through HTTP and the Redis protocol have the same results and leave the same states."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.resp_calls import fields, redis_client
from tests.acceptance.service_process import ServiceProcess
from tests.drawn_input import drawn

pytestmark = pytest.mark.hypothesis
_topics = itertools.count()
IDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.text(max_size=6)
DELAYS = st.sampled_from([0, 0, 0, 3_600_000])
COMMANDS = st.one_of(
    st.tuples(st.just("sadd"), st.lists(st.tuples(TEXTS, DELAYS), min_size=1, max_size=3)),
    st.tuples(st.just("spop"), st.integers(1, 4)),
    st.tuples(
        st.just("put"), IDS, TEXTS, DELAYS, st.sampled_from(["reject", "keep", "replace"]), st.sampled_from([0, 60_000])
    ),
    st.tuples(st.just("pop"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["finish", "bury", "touch", "cancel", "release"]), IDS, st.booleans()),
    st.tuples(st.just("purge")),
)
Held = dict[str, str]
"""The last receipts by id."""


class ByHttp:
    """Carries out commands through HTTP."""

    def __init__(self, http: httpx.Client, topic: str) -> None:
        self._http = http
        self._topic = topic
        self._held: Held = {}

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        response = self._http.request(method, path, json=body)
        found = response.json()
        return found if response.is_success else found["code"].upper()

    def sadd(self, jobs: list[tuple[str, int]]) -> Any:
        puts = [{"topic": self._topic, "body": body, "delay": delay / 1000} for body, delay in jobs]
        return len(self._call("POST", "/jobs/batch", {"jobs": puts})["results"])

    def spop(self, count: int) -> Any:
        jobs = self._call("POST", f"/topics/{self._topic}/pop?wait=0&count={count}")["jobs"]
        if jobs:
            finishes = [{"id": job["id"], "receipt": job["receipt"]} for job in jobs]
            self._call("POST", f"/topics/{self._topic}/finish", {"jobs": finishes})
        return [job["body"] for job in jobs]

    def put(self, job_id: str, body: str, delay: int, on_conflict: str, retain: int) -> Any:
        job = {"topic": self._topic, "id": job_id, "body": body, "delay": delay / 1000, "on_conflict": on_conflict}
        found = self._call("POST", "/jobs", {**job, "retain": retain / 1000})
        return found if isinstance(found, str) else (found["state"], found["body"])

    def pop(self, count: int) -> Any:
        jobs = self._call("POST", f"/topics/{self._topic}/pop?wait=0&count={count}")["jobs"]
        self._held.update({job["id"]: job["receipt"] for job in jobs})
        return [(job["body"], job["attempt"]) for job in jobs]

    def end(self, verb: str, job_id: str, with_receipt: bool) -> Any:
        path = f"/jobs/{self._topic}/{job_id}"
        if verb == "cancel":
            found = self._call("DELETE", path)
            return found if isinstance(found, str) else found["was"]
        body = {"receipt": self._held.get(job_id, "none")} if with_receipt else {}
        found = self._call("POST", f"{path}/{verb}", {**body, **({"delay": 3600} if verb == "release" else {})})
        return found if isinstance(found, str) else found.get("state", "touched")

    def purge(self) -> Any:
        found = self._call("DELETE", f"/topics/{self._topic}")
        return 0 if found == "TOPIC_NOT_FOUND" else int(found["removed"] > 0)


class ByResp:
    """Carries out commands through the Redis protocol."""

    def __init__(self, client: redis.Redis, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._held: Held = {}

    def _call(self, *words: Any) -> Any:
        try:
            return self._client.execute_command(*words)
        except redis.ResponseError as error:
            return str(error).split()[0]

    def sadd(self, jobs: list[tuple[str, int]]) -> Any:
        return self._call("SADD", self._topic, *itertools.chain(*jobs))

    def spop(self, count: int) -> Any:
        return [body.decode() for body in self._call("SPOP", self._topic, count)]

    def put(self, job_id: str, body: str, delay: int, on_conflict: str, retain: int) -> Any:
        options = ("DELAY", delay, "ONCONFLICT", on_conflict, "RETAIN", retain)
        found = self._call("DEFERD.PUT", self._topic, job_id, body, *options)
        if isinstance(found, str):
            return found
        job = fields(found)
        return job["state"].decode(), job["body"].decode()

    def pop(self, count: int) -> Any:
        jobs = [fields(job) for job in self._call("DEFERD.POP", self._topic, "COUNT", count)]
        self._held.update({job["id"].decode(): job["receipt"].decode() for job in jobs})
        return [(job["body"].decode(), job["attempt"]) for job in jobs]

    def end(self, verb: str, job_id: str, with_receipt: bool) -> Any:
        if verb == "cancel":
            found = self._call("DEFERD.CANCEL", self._topic, job_id)
            return found if isinstance(found, str) else fields(found)["was"].decode()
        receipt = self._held.get(job_id, "none") if with_receipt else "*"
        more = ("DELAY", 3_600_000) if verb == "release" else ()
        found = self._call(f"DEFERD.{verb}", self._topic, job_id, receipt, *more)
        return found if isinstance(found, str) else fields(found).get("state", b"touched").decode()

    def purge(self) -> Any:
        return self._call("DEL", self._topic)


def carry_out(way: ByHttp | ByResp, command: tuple[Any, ...]) -> Any:
    verb, *arguments = command
    if verb in ("finish", "bury", "touch", "cancel", "release"):
        return way.end(verb, *arguments)
    run: Callable[..., Any] = getattr(way, verb)
    return run(*arguments)


def state_of(http: httpx.Client, topic: str) -> list[Any]:
    """The jobs of a topic, but for what differs between any two: times, made ids, receipts."""
    response = http.get(f"/topics/{topic}/jobs", params={"limit": 1000})
    if response.status_code == 404:
        return []
    times = {"created_at", "due_at", "reserved_until", "finished_at", "topic"}
    jobs = [{name: value for name, value in job.items() if name not in times} for job in response.json()["jobs"]]
    jobs = [{**job, "id": job["id"] if len(job["id"]) == 1 else "made"} for job in jobs]
    return sorted(jobs, key=lambda job: (job["id"], job["body"], job["state"]))  # those due together are in no order


@pytest.fixture
def http(resp_service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=resp_service.url, verify=NO_TLS, timeout=30) as http:
        yield http


@pytest.fixture
def clients(resp_service: ServiceProcess) -> Iterator[list[redis.Redis]]:
    """One for each version of the protocol."""
    with redis_client(resp_service, 2) as old, redis_client(resp_service, 3) as new:
        yield [old, new]


@drawn(80)
@given(st.lists(COMMANDS, min_size=1, max_size=15))
def test_both_ways_have_the_same_results_and_states(
    http: httpx.Client, clients: list[redis.Redis], commands: list[Any]
) -> None:
    number = next(_topics)
    names = f"like-http.{number}", f"like-resp.{number}"
    by_http, by_resp = ByHttp(http, names[0]), ByResp(clients[number % 2], names[1])
    for command in commands:
        assert carry_out(by_http, command) == carry_out(by_resp, command), command
    assert state_of(http, names[0]) == state_of(http, names[1])
    for name in names:
        audit = http.get(f"/topics/{name}/audit")
        assert audit.status_code == 404 or audit.json()["findings"] == []

"""Calls on selected jobs: what HTTP and the clients refuse, and lists by the same selectors."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd import AsyncClient, BulkResult, InvalidInput, JobState
from deferd.client.job_requests import matches_put
from tests.acceptance.http_calls import Http, ok, problem, refusal
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def tag() -> str:
    return f"tag-{uuid.uuid4().hex}"


@pytest.fixture
async def client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client


SELECT = {"tag": "x"}
FAR = "2020-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("call", "field", "message"),
    [
        ({}, "body.select", "is required"),
        ({"select": {}}, "body.select", "exactly one of `ids`, `tag` and `state`: it has none"),
        ({"select": {"tag": "x", "state": "ready", "topics": ["t"]}}, "body.select", "it has `tag` and `state`"),
        ({"select": {"state": "ready"}}, "body.select", "must have `topics` with `state`"),
        ({"select": {"state": "dead", "topics": ["t"]}}, "body.select.state", "'delayed' or 'ready'"),
        ({"select": {"tag": "x", "due_after": FAR}}, "body.select", "only with `state`"),
        ({"select": {"tag": "a b"}}, "body.select.tag", "1 to 64"),
        ({"select": {"ids": []}}, "body.select.ids", "at least 1 items"),
        ({"select": {"ids": [{"topic": "t", "id": "a"}] * 1001}}, "body.select.ids", "at most 1000 items"),
        ({"select": {"ids": [{"topic": "t"}]}}, "body.select.ids.0.id", "is required"),
        ({"select": {"tag": "x", "topics": ["a/b"]}}, "body.select.topics.0", "a pattern"),
        ({"select": {"tag": "x", "topics": ["t"] * 101}}, "body.select.topics", "at most 100 items"),
        ({"select": {"tag": "x", "reason": "buried"}}, "body.select.reason", "not a known field"),
        ({"select": SELECT, "limit": 0}, "body.limit", "at least 1"),
        ({"select": SELECT, "limit": 100_001}, "body.limit", "at most 100000"),
        ({"select": SELECT, "dry_run": "yes"}, "body.dry_run", "true or false"),
        ({"select": SELECT, "request_id": "a b"}, "body.request_id", "1 to 255"),
        ({"select": SELECT, "now": 1}, "body.now", "not a known field"),
    ],
)
async def test_bad_calls_are_refused(http: Http, call: dict[str, Any], field: str, message: str) -> None:
    assert message in refusal(await http.post("/jobs/cancel", json=call), field)
    assert message in refusal(await http.post("/jobs/reschedule", json={**call, "by": 1}), field)


@pytest.mark.parametrize(
    ("when", "field", "message"),
    [
        ({}, "body", "exactly one of `by`, `delay` and `run_at`"),
        ({"by": 1, "delay": 1}, "body", "exactly one of `by`, `delay` and `run_at`"),
        ({"by": 0}, "body.by", "at least 0.001 seconds away from 0"),
        ({"by": -0.0004}, "body.by", "away from 0"),
        ({"by": 315576000.1}, "body.by", "at most 315576000 seconds"),
        ({"by": -315576000.1}, "body.by", "at least -315576000 seconds"),
        ({"by": "1"}, "body.by", "must be a number"),
        ({"delay": -1}, "body.delay", "at least 0 seconds"),
        ({"run_at": "2030-01-01T00:00:00"}, "body.run_at", "with a zone"),
        ({"by": 1, "if_reserved": "refuse"}, "body.if_reserved", "not a known field"),
    ],
)
async def test_bad_times_are_refused(http: Http, when: dict[str, Any], field: str, message: str) -> None:
    assert message in refusal(await http.post("/jobs/reschedule", json={"select": SELECT, **when}), field)


async def test_the_client_takes_durations_instants_and_jobs(http: Http, client: AsyncClient, tag: str) -> None:
    job = await client.put(http.topic, id="a", delay=60, tags=[tag])
    moved = await client.reschedule_all(tag=tag, by=timedelta(hours=1))
    assert moved == BulkResult(matched=1, done=1, was={JobState.DELAYED: 1}, complete=True)
    none = await client.reschedule_all(state="delayed", topics=http.topic, due_before=datetime.now(UTC), by=1)
    assert none == BulkResult(matched=0, done=0, was={}, complete=True)
    assert (await client.cancel_all(ids=[job, (http.topic, "j9")])).done == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'tags': the selectors are ids, tag"):
        await client.cancel_all(tags="x")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="exactly one"):
        await client.cancel_all()


async def test_a_repeated_put_with_tags_counts_as_the_same_put(http: Http, client: AsyncClient, tag: str) -> None:
    stored = await client.put(http.topic, 1, id="a", delay=60, tags=[tag], headers={"x": "y"})
    fields = {"topic": http.topic, "body": 1, "delay": 60}
    assert matches_put(stored, {**fields, "tags": [tag], "headers": {"x": "y"}})
    assert not matches_put(stored, {**fields, "tags": ["other"], "headers": {"x": "y"}})
    assert not matches_put(stored, {**fields, "tags": []})
    assert not matches_put(stored, {**fields, "headers": {"x": "z"}})


async def test_lists_are_filtered(http: Http, client: AsyncClient, tag: str) -> None:
    for number in range(3):
        await http.put_job(f"j{number}", delay=60 + number, tags=[tag] if number else [])
    page = ok(await http.get(http.topic_path("jobs"), params={"tag": tag}))
    assert ([job["id"] for job in page["jobs"]], page["next_cursor"], page["looked_at"]) == (["j1", "j2"], None, 2)
    due = page["jobs"][0]["due_at"]
    page = ok(await http.get(http.topic_path("jobs"), params={"due_before": due, "id_prefix": "j", "limit": 1}))
    assert ([job["id"] for job in page["jobs"]], page["looked_at"]) == (["j0"], 1)
    assert "looked_at" not in ok(await http.get(http.topic_path("jobs")))
    listed = [job.id async for job in client.jobs(http.topic, due_after=datetime.fromisoformat(due), state="delayed")]
    assert listed == ["j1", "j2"]
    assert [job.id async for job in client.jobs(http.topic, state="delayed", order="desc")] == ["j2", "j1", "j0"]
    for query, field in (
        ({"tag": "a b"}, "query.tag"),
        ({"due_after": "soon"}, "query.due_after"),
        ({"id_prefix": ""}, "query.id_prefix"),
        ({"error": "x" * 1001}, "query.error"),
        ({"reason": "buried"}, "query.reason"),
        ({"order": "newest"}, "query.order"),
    ):
        refusal(await http.get(http.topic_path("jobs"), params=query), field)


async def test_wrong_conditions_of_a_redrive_or_purge_are_named(http: Http) -> None:
    await http.put_job("a")
    refusal(await http.delete(http.topic_path(), params={"reason": "buried", "state": "ready"}), "query")
    refusal(await http.post(http.topic_path("redrive"), json={"reason": "bored"}), "body.reason")


async def test_a_known_path_with_another_method_is_refused(http: Http) -> None:
    assert problem(await http.get("/jobs/cancel"), 405, "method_not_allowed")

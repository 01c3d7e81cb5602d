"""Calls on selected jobs: what HTTP and the clients refuse, previews and cutoffs, and lists by the same selectors."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient, BulkResult, Client, InvalidInput, JobState
from deferd.client.job_requests import matches_put
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, Json, moment, ok, refusal
from tests.acceptance.service_process import ServiceProcess, running_service


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
        ({"select": {}}, "body.select", "exactly one of `ids`, `tag`, `group` and `state`: it has none"),
        ({"select": {"tag": "x", "state": "ready", "topics": ["t"]}}, "body.select", "it has `tag` and `state`"),
        ({"select": {"state": "ready"}}, "body.select", "must have `topics` with `state`"),
        ({"select": {"group": "g"}}, "body.select", "must have `topics` with `group`"),
        ({"select": {"group": "a b", "topics": ["t"]}}, "body.select.group", "1 to 128"),
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
        ({"select": {"tag": "x", "cutoff": 5}}, "body.select.cutoff", "must be"),
        ({"select": SELECT, "samples": 10}, "body", "`samples`"),
        ({"select": SELECT, "dry_run": True, "samples": 101}, "body.samples", "at most 100"),
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
    preview = await client.preview_cancel_all(tag=tag)
    assert (preview.matched, preview.samples[0].state) == (1, JobState.DELAYED)
    moved = await client.reschedule_all(tag=tag, by=timedelta(hours=1))
    assert moved == BulkResult(matched=1, done=1, was={JobState.DELAYED: 1}, complete=True)
    none = await client.reschedule_all(state="delayed", topics=http.topic, due_before=datetime.now(UTC), by=1)
    assert none == BulkResult(matched=0, done=0, was={}, complete=True)
    assert (await client.cancel_all(ids=[job, (http.topic, "j9")])).done == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'tags': the selectors are ids, tag"):
        await client.cancel_all(tags="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="the conditions are tag, group, reason, error, cutoff"):
        await client.redrive(http.topic, colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="exactly one"):
        await client.cancel_all()


async def test_a_repeated_put_with_tags_counts_as_the_same_put(http: Http, client: AsyncClient, tag: str) -> None:
    stored = await client.put(http.topic, 1, id="a", delay=60, tags=[tag], headers={"x": "y"})
    fields = {"topic": http.topic, "body": 1, "delay": 60}
    assert matches_put(stored, {**fields, "tags": [tag], "headers": {"x": "y"}})
    assert not matches_put(stored, {**fields, "tags": ["other"], "headers": {"x": "y"}})
    assert not matches_put(stored, {**fields, "tags": []})
    assert not matches_put(stored, {**fields, "headers": {"x": "z"}})
    await client.set_batch(tag, on_end=http.topic)
    stored = await client.put(http.topic, 1, id="b", delay=60, tags=[tag], batch=tag)
    assert matches_put(stored, {**fields, "tags": [tag], "batch": tag})
    assert not matches_put(stored, {**fields, "batch": tag})
    assert not matches_put(stored, {**fields, "tags": [tag], "batch": "other"})


async def test_lists_are_filtered(http: Http, client: AsyncClient, tag: str) -> None:
    for number in range(3):
        await http.put_job(f"j{number}", delay=60 + number, tags=[tag] if number else [])
    page = ok(await http.get(http.topic_path("jobs"), params={"tag": tag}))
    assert ([job["id"] for job in page["jobs"]], page["next_cursor"], page["looked_at"]) == (["j1", "j2"], None, 2)
    due = page["jobs"][0]["due_at"]
    page = ok(await http.get(http.topic_path("jobs"), params={"due_before": due, "id_prefix": "j", "limit": 1}))
    assert ([job["id"] for job in page["jobs"]], page["looked_at"]) == (["j0"], 1)
    page = ok(await http.get(http.topic_path("jobs"), params={"ids": "j2,none,j0"}))
    assert ([job["id"] for job in page["jobs"]], page["next_cursor"]) == (["j0", "j2"], None)
    assert [job.id async for job in client.jobs(http.topic, ids=["j1", "none"])] == ["j1"]
    assert "looked_at" not in ok(await http.get(http.topic_path("jobs")))
    listed = [job.id async for job in client.jobs(http.topic, due_after=datetime.fromisoformat(due), state="delayed")]
    assert listed == ["j1", "j2"]
    assert [job.id async for job in client.jobs(http.topic, state="delayed", order="desc")] == ["j2", "j1", "j0"]
    for query, field in (
        ({"tag": "a b"}, "query.tag"),
        ({"due_after": "soon"}, "query.due_after"),
        ({"id_prefix": ""}, "query.id_prefix"),
        ({"ids": "a,,b"}, "query.ids"),
        ({"ids": ",".join(f"j{number}" for number in range(101))}, "query.ids"),
        ({"error": "x" * 1001}, "query.error"),
        ({"reason": "bored"}, "query.reason"),
        ({"order": "newest"}, "query.order"),
    ):
        refusal(await http.get(http.topic_path("jobs"), params=query), field)


# Cutoffs and previews


async def bury(http: Http, job_id: str, error: str) -> None:
    await http.reserve(job_id)
    ok(await http.post(http.job_path(job_id, "bury"), json={"error": error}))


async def states(http: Http) -> dict[str, str]:
    return {job["id"]: job["state"] for job in ok(await http.get(http.topic_path("jobs")))["jobs"]}


async def test_a_preview_says_when_the_jobs_are_due(http: Http) -> None:
    for day in (31, 1, 15):
        await http.put_job(f"d{day}", run_at=f"2035-01-{day:02}T09:30:00Z")
    select = {"state": "delayed", "topics": [http.topic]}
    body = {"select": select, "dry_run": True, "samples": 1}
    found = ok(await http.post("/jobs/cancel", json=body))
    assert (found["first_due_at"], found["last_due_at"]) == ("2035-01-01T09:30:00.000Z", "2035-01-31T09:30:00.000Z")
    nothing = ok(await http.post("/jobs/cancel", json={**body, "select": {"tag": "none"}}))
    assert nothing.keys().isdisjoint({"first_due_at", "last_due_at"})


async def test_a_cancel_is_undone(http: Http, client: AsyncClient, tag: str) -> None:
    for job_id in ("a", "b"):
        await http.put_job(job_id, delay=600, tags=[tag], body={"n": 1})
    before = ok(await http.get(http.job_path("a")))
    cancel = {"select": {"tag": tag}, "request_id": tag, "undo": True}
    assert ok(await http.post("/jobs/cancel", json=cancel))["undoable"] == 2
    undone = [ok(await http.post("/jobs/undo", json={"request_id": tag})) for _ in range(2)]
    assert undone == [{"put_back": 2, "left": 0}, {"put_back": 0, "left": 0}]
    assert ok(await http.get(http.job_path("a"))) == before
    assert (await client.cancel_all(tag=tag, request_id=f"{tag}-2", undo=True)).undoable == 2
    await http.put_job("b", body="new")
    result = await client.undo_cancel(f"{tag}-2")
    assert (result.put_back, result.left) == (1, 1)
    assert "undoable" not in ok(await http.post("/jobs/cancel", json={"select": {"tag": tag}}))


def test_a_cancel_is_undone_after_the_service_was_killed(tmp_path: Path) -> None:
    with running_service(data_dir=tmp_path) as service, Client(service.url) as client:
        for number in range(70):
            client.put("trials", id=f"j{number}", delay=600, tags=["x"])
        assert client.cancel_all(tag="x", request_id="r", undo=True).undoable == 70
        service.kill()
    with running_service(data_dir=tmp_path) as service, Client(service.url) as client:
        assert client.topic("trials").counts[JobState.DELAYED] == 0
        undone = [client.undo_cancel("r") for _ in range(2)]
        assert [(one.put_back, one.left) for one in undone] == [(70, 0), (0, 0)]
        assert client.cancel_all(tag="x", request_id="r", undo=True).done == 70, "of the first attempt"
        assert client.topic("trials").counts[JobState.DELAYED] == 70


async def test_a_task_that_cancels_is_undone(http: Http, client: AsyncClient, tag: str) -> None:
    await http.put_job("a", delay=600, tags=[tag])
    await asyncio.sleep(0.002)
    task = await client.start_cancel_all(tag=tag, request_id=tag, undo=True)
    async with asyncio.timeout(20):
        while (await client.task(task.id)).state != "done":
            await asyncio.sleep(0.01)
    assert (await client.task(task.id)).request_id == tag
    assert (await client.undo_cancel(tag)).put_back == 1
    assert ok(await http.get(http.job_path("a")))["state"] == "delayed"


@pytest.mark.parametrize("more", [{}, {"request_id": "r", "dry_run": True}])
async def test_a_cancel_that_could_not_be_named_keeps_nothing(http: Http, more: dict[str, Any]) -> None:
    message = refusal(await http.post("/jobs/cancel", json={"select": SELECT, "undo": True, **more}), "body")
    assert "must have `undo` only with `request_id`, and without `dry_run`" in message


async def test_a_list_says_how_many_jobs_match_where_that_is_known(http: Http, tag: str) -> None:
    for day in range(1, 6):
        await http.put_job(f"d{day}", run_at=f"2035-01-0{day}T09:30:00Z", tags=[tag])
    await http.put_job("ready", tags=[tag])

    async def matching(**query: Any) -> int | None:
        page = ok(await http.get(http.topic_path("jobs"), params={"limit": 1, **query}))
        count: int | None = page.get("matching")
        return count

    assert await matching(state="delayed", due_after="2035-01-02T09:30:00Z", due_before="2035-01-04T09:30:00Z") == 2
    assert await matching(state="delayed", due_after="2035-01-04T00:00:00Z") == 2
    assert await matching(state="delayed", due_before="2035-01-04T00:00:00Z") == 3
    for query in (
        {"tag": tag},
        {"tag": tag, "state": "delayed"},
        {"due_before": "2035-01-04T00:00:00Z"},
        {"id_prefix": "d"},
        {},
    ):
        assert await matching(**query) is None, query


async def test_redrive_a_group_of_errors(http: Http) -> None:
    for number in range(3):
        await bury(http, f"m{number}", f"SMTP 421: message {number} refused")
    await bury(http, "other", "no use")
    [group, _] = ok(await http.get("/dead", params={"topics": http.topic}))["groups"]
    which = {"reason": group["reason"], "error": group["error"]}
    preview = ok(await http.post(http.topic_path("redrive"), json={**which, "dry_run": True}))
    cutoff = preview.pop("cutoff")
    moment(cutoff)
    assert sorted(one.pop("id") for one in preview["samples"]) == ["m0", "m1", "m2"]
    assert preview == {
        "redriven": 0,
        "matched": 3,
        "complete": True,
        "samples": [{"topic": http.topic, "state": "dead"}] * 3,
    }
    await asyncio.sleep(0.002)
    await bury(http, "m3", "SMTP 421: message 3 refused")
    redriven = ok(await http.post(http.topic_path("redrive"), json={**which, "cutoff": cutoff}))
    assert redriven == {"redriven": 3}
    assert await states(http) == {"m0": "ready", "m1": "ready", "m2": "ready", "m3": "dead", "other": "dead"}
    listed = ok(await http.get("/activity", params={"topics": http.topic}))["activity"]
    assert [one["count"] for one in listed] == [3]
    assert '"error":"SMTP 421: message * refused"' in listed[0]["filter"]
    assert ok(await http.delete(http.topic_path(), params={"error": which["error"]})) == {"removed": 1}


async def test_wrong_conditions_of_a_redrive_or_purge_are_named(http: Http) -> None:
    await http.put_job("a")
    redrives: list[tuple[Json, str]] = [
        ({"reason": "bored"}, "body.reason"),
        ({"cutoff": "yesterday"}, "body.cutoff"),
        ({"error": "x" * 1001}, "body.error"),
        ({"ids": ["a"], "error": "x"}, "body"),
        ({"dry_run": 1}, "body.dry_run"),
    ]
    for body, field in redrives:
        refusal(await http.post(http.topic_path("redrive"), json=body), field)
    purges: list[tuple[Json, str]] = [
        ({"reason": "buried", "state": "ready"}, "query"),
        ({"error": "x", "state": "ready"}, "query"),
        ({"cutoff": "now"}, "query.cutoff"),
        ({"dry_run": "maybe"}, "query.dry_run"),
    ]
    for query, field in purges:
        refusal(await http.delete(http.topic_path(), params=query), field)


async def test_commands(http: Http, shared_service: ServiceProcess) -> None:
    shell = Shell(shared_service.url)
    await bury(http, "a", "order 7 is gone")
    which = ("--reason", "buried", "--error", "order * is gone")
    first, sample = shell.good("redrive", http.topic, *which, "--dry-run").splitlines()
    text, cutoff = first.rsplit(" ", 1)
    assert text == "1 job matches; to act on no other: --cutoff"
    assert sample == f"{http.topic}/a (dead)"
    await asyncio.sleep(0.002)
    await bury(http, "b", "order 8 is gone")
    assert shell.good("redrive", http.topic, *which, "--cutoff", cutoff) == f"1 dead job of {http.topic} ready again\n"
    [preview] = shell.json("purge", http.topic, "--state", "ready", "--dry-run")
    assert preview["samples"] == [{"topic": http.topic, "id": "a", "state": "ready"}]
    counted = shell.good("cancel", http.topic, "--state", "ready", "--dry-run", "--samples").splitlines()
    assert counted[1] == f"{http.topic}/a (ready)"
    cutoff = counted[0].rsplit(" ", 1)[1]
    by = ("--by", "1h", "--cutoff", cutoff)
    [moved] = shell.json("reschedule", http.topic, "--state", "ready", *by, "--dry-run", "--samples")
    assert (moved["matched"], moved["cutoff"]) == (1, cutoff)
    assert "1 of 1 job cancelled" in shell.good("cancel", http.topic, "--state", "ready", "--cutoff", cutoff)
    assert shell.run("cancel", http.topic, "b", "--cutoff", cutoff).returncode == 2
    assert shell.run("cancel", http.topic, "--state", "ready", "--samples").returncode == 2
    assert shell.good("purge", http.topic, "--cutoff", cutoff, "--yes") == f"1 job of {http.topic} removed\n"

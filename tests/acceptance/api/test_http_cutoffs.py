"""Cutoffs and previews of redrives, purges and calls on many jobs: over HTTP, in the client, as commands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deferd import Client, JobState
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, Json, moment, ok, refusal
from tests.acceptance.service_process import ServiceProcess


async def bury(http: Http, job_id: str, error: str) -> None:
    await http.reserve(job_id)
    ok(await http.post(http.job_path(job_id, "bury"), json={"error": error}))


async def states(http: Http) -> dict[str, str]:
    return {job["id"]: job["state"] for job in ok(await http.get(http.topic_path("jobs")))["jobs"]}


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


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("redrive", {"cutoff": "yesterday"}, "body.cutoff"),
        ("redrive", {"error": "x" * 1001}, "body.error"),
        ("redrive", {"ids": ["a"], "error": "x"}, "body"),
        ("redrive", {"dry_run": 1}, "body.dry_run"),
    ],
)
async def test_invalid_redrives(http: Http, path: str, body: Json, field: str) -> None:
    refusal(await http.post(http.topic_path(path), json=body), field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"select": {"tag": "x", "cutoff": 5}}, "body.select.cutoff"),
        ({"select": {"tag": "x"}, "samples": 10}, "body"),
        ({"select": {"tag": "x"}, "dry_run": True, "samples": 101}, "body.samples"),
    ],
)
async def test_invalid_calls_on_many_jobs(http: Http, body: Json, field: str) -> None:
    refusal(await http.post("/jobs/cancel", json=body), field)


async def test_invalid_purges(http: Http) -> None:
    refusal(await http.delete(http.topic_path(), params={"error": "x", "state": "ready"}), "query")
    refusal(await http.delete(http.topic_path(), params={"cutoff": "now"}), "query.cutoff")
    refusal(await http.delete(http.topic_path(), params={"dry_run": "maybe"}), "query.dry_run")


async def test_client(http: Http, shared_service: ServiceProcess) -> None:
    for number in range(2):
        await bury(http, f"m{number}", f"order {number} is gone")
    which: Any = {"reason": "buried", "error": "order * is gone"}
    with Client(shared_service.url) as client:
        preview = client.preview_redrive(http.topic, **which)
        assert (preview.matched, preview.complete) == (2, True)
        assert {(one.topic, one.state) for one in preview.samples} == {(http.topic, JobState.DEAD)}
        assert client.preview_purge(http.topic, **which).matched == 2
        await asyncio.sleep(0.002)
        await bury(http, "m2", "order 2 is gone")
        assert client.redrive(http.topic, cutoff=preview.cutoff, **which) == 2
        many = client.preview_cancel_all(state="ready", topics=http.topic)
        assert (many.matched, len(many.samples), many.samples[0].state) == (2, 2, JobState.READY)
        assert client.cancel_all(state="ready", topics=http.topic, cutoff=many.cutoff).done == 2
        assert client.purge(http.topic, state="dead", cutoff=preview.cutoff) == 0
        assert client.purge(http.topic, state="dead") == 1
        with pytest.raises(TypeError, match="the conditions are tag, reason, error, cutoff"):
            client.redrive(http.topic, colour="red")  # type: ignore[call-arg]


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

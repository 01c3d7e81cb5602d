"""Tasks: how HTTP and the commands show them, and what no task does; tests/conformance has the rest."""

from __future__ import annotations

import asyncio

import pytest

from deferd import Client
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, Json, moment, ok, problem, refusal
from tests.acceptance.service_process import ServiceProcess


async def begin(http: Http, path: str, body: Json) -> Json:
    response = await http.post(path, json=body)
    task = ok(response, 202)
    assert response.headers["location"] == f"/tasks/{task['id']}"
    return task


async def test_a_task_is_shown_and_recorded_when_it_has_ended(http: Http) -> None:
    for job_id in "abc":
        await http.put_job(job_id, delay=60)
    await asyncio.sleep(0.002)
    select = {"state": "delayed", "topics": [http.topic]}
    task = await begin(http, "/jobs/cancel", {"select": select, "as_task": True, "request_id": http.topic})
    moment(task["cutoff"])
    moment(task["started_at"])
    assert (task["kind"], task["topic"], task["select"], task["by"], task["via"]) == (
        "cancel",
        http.topic,
        select,
        "127.0.0.1",
        "api",
    )
    done = await http.ended(task["id"])
    assert (done["state"], done["done"], done["total"]) == ("done", 3, 3)
    moment(done["ended_at"])
    listed = ok(await http.get("/tasks"))["tasks"]
    assert done in listed
    [change] = ok(await http.get("/activity", params={"topics": http.topic}))["activity"]
    assert (change["operation"], change["count"], change["subject"]) == ("cancel_selected_jobs", 3, task["id"])


@pytest.mark.parametrize("params", [{"state": "finished"}, {}])
async def test_a_purge_frees_ids_that_stay_taken(http: Http, params: Json) -> None:
    async def is_taken() -> bool:
        return (await http.post("/jobs", json={"topic": http.topic, "id": "a", "delay": 60})).status_code == 409

    await http.put_job("a", unique_for=3600)
    held = await http.pop_one()
    ok(await http.post(http.job_path("a", "finish"), json={"receipt": held["receipt"]}))
    assert await is_taken()
    cutoff = ok(await http.delete(http.topic_path(), params={**params, "dry_run": "true"}))["cutoff"]
    task = ok(await http.delete(http.topic_path(), params={**params, "cutoff": cutoff, "as_task": "true"}), 202)
    await http.ended(task["id"])
    assert await is_taken()
    task = ok(await http.delete(http.topic_path(), params={**params, "as_task": "true"}), 202)
    await http.ended(task["id"])
    assert not await is_taken()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs/cancel", {"select": {"tag": "x"}, "as_task": True, "dry_run": True}),
        ("/jobs/cancel", {"select": {"ids": [{"topic": "t", "id": "j"}]}, "as_task": True}),
        ("/topics/t/redrive", {"ids": ["j"], "as_task": True}),
        ("/topics/t/redrive", {"dry_run": True, "as_task": True}),
        ("/topics/t/redrive", {"rate": 10}),
    ],
)
async def test_what_no_task_does(http: Http, path: str, body: Json) -> None:
    refusal(await http.post(path, json=body), "body")


async def test_unknown_tasks_and_parameters(http: Http) -> None:
    assert problem(await http.get("/tasks/none"), 404, "task_not_found")["task"] == "none"
    refusal(await http.delete(http.topic_path(), params={"as_task": "true", "dry_run": "true"}), "query")
    refusal(await http.get("/tasks", params={"limit": "1001"}), "query.limit")


async def test_what_became_of_redriven_jobs(http: Http, shared_service: ServiceProcess) -> None:
    for number in range(3):
        await http.bury(f"j{number}")
    await asyncio.sleep(0.002)
    shell = Shell(shared_service.url)
    preview = shell.good("redrive", http.topic, "--rate", "0.5", "--dry-run").splitlines()[1]
    assert preview.startswith("at 0.5 jobs a second: 6s, if it begins now until 20")
    begun = shell.json("redrive", http.topic, "--rate", "1000", "--task")[0]
    assert begun["action"] == {"rate": 1000}
    done = await http.ended(begun["id"])
    held = await http.pop_one()
    ok(await http.post(http.job_path(held["id"], "bury"), json={"receipt": held["receipt"], "error": "no 17"}))
    counts = {"looked_at": 3, "waiting": 2, "retrying": 0, "running": 0, "finished": 0, "dead": 1, "gone": 0}
    became = {**counts, "errors": [{"error": "no *", "jobs": 1}]}
    task = ok(await http.get(f"/tasks/{begun['id']}", params={"became": "true"}))
    assert task == {**done, "became": became}
    with Client(shared_service.url) as client:
        assert client.task(begun["id"], became=True).fields["became"] == became
    said = shell.good("tasks", begun["id"], "--became").splitlines()[-1]
    assert said == f"{begun['id']}: of 3 jobs 2 waiting, 1 dead again; 1 with no *"
    purge = ok(await http.delete(http.topic_path(), params={"as_task": "true"}), 202)
    assert "became" not in ok(await http.get(f"/tasks/{purge['id']}", params={"became": "true"}))
    await http.ended(purge["id"])


async def test_commands(http: Http, shared_service: ServiceProcess) -> None:
    shell = Shell(shared_service.url)
    for number in range(2):
        await http.bury(f"j{number}")
    await asyncio.sleep(0.002)
    for words in (
        ("redrive", http.topic),
        ("reschedule", http.topic, "--state", "ready", "--delay", "1h"),
        ("cancel", http.topic, "--state", "delayed"),
        ("purge", http.topic, "--yes"),
    ):
        said = shell.good(*words, "--task")
        task_id = said.split()[1]
        assert said == f"task {task_id} has begun: deferd tasks {task_id}\n"
        done = await http.ended(task_id)
        assert (done["kind"], done["done"]) == (words[0], 0 if words[0] == "purge" else 2)
    [shown] = shell.json("tasks", task_id)
    assert (shown["id"], shown["via"]) == (task_id, "cli")
    header, row = shell.good("tasks", task_id, "--stop").splitlines()
    assert header.split() == ["ID", "KIND", "TOPIC", "STATE", "DONE", "TOTAL", "STARTED", "ENDED", "BY"]
    assert row.split()[:4] == [task_id, "purge", http.topic, "done"]
    assert shell.json("tasks", "--limit", "1")[0]["id"] == task_id
    with Client(shared_service.url) as client:
        assert [one.id for one in client.tasks(limit=1)] == [task_id]
    for wrong in (
        ("tasks", "--stop"),
        ("tasks", "--became"),
        ("redrive", http.topic, "--rate", "10"),
        ("redrive", http.topic, "a", "--task"),
        ("cancel", http.topic, "a", "--task"),
        ("purge", http.topic, "--task", "--dry-run"),
        ("cancel", "--tag", "x", "--task", "--dry-run"),
    ):
        assert shell.run(*wrong).returncode == 2, wrong

"""Actions on many jobs in the background: over HTTP, in the client, as commands, and with keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferd import Client, TaskNotFound
from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, Json, moment, ok, problem, refusal
from tests.acceptance.service_process import ServiceProcess, running_service


async def ended(http: Http, task_id: str) -> Json:
    for _ in range(200):
        task = ok(await http.get(f"/tasks/{task_id}"))
        if task["state"] != "running":
            return task
        await asyncio.sleep(0.05)
    raise AssertionError("the task does not end")


async def begin(http: Http, path: str, body: Json) -> Json:
    response = await http.post(path, json=body)
    task = ok(response, 202)
    assert response.headers["location"] == f"/tasks/{task['id']}"
    return task


async def test_a_cancel(http: Http) -> None:
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
    done = await ended(http, task["id"])
    assert (done["state"], done["done"], done["total"]) == ("done", 3, 3)
    moment(done["ended_at"])
    assert await http.counts() == {}
    await http.put_job("d", delay=60)
    again = await begin(http, "/jobs/cancel", {"select": select, "as_task": True, "request_id": http.topic})
    assert again == done
    assert await http.counts() == {"delayed": 1}
    listed = ok(await http.get("/tasks"))["tasks"]
    assert done in listed
    [change] = ok(await http.get("/activity", params={"topics": http.topic}))["activity"]
    assert (change["operation"], change["count"], change["subject"]) == ("cancel_selected_jobs", 3, task["id"])


async def test_a_request_id_with_another_call_is_refused(http: Http) -> None:
    select = {"state": "delayed", "topics": [http.topic]}
    body = {"select": select, "as_task": True, "request_id": http.topic}
    task = await begin(http, "/jobs/cancel", body)
    await ended(http, task["id"])
    for other in (
        {"select": {**select, "state": "ready"}},
        {"select": {"tag": "x"}},
        {"if_reserved": "refuse"},
        {"limit": 5},
    ):
        refused = await http.post("/jobs/cancel", json={**body, **other})
        assert task["id"] in refusal(refused, "body.request_id")
    for same in ({}, {"if_reserved": "cancel"}):
        assert (await begin(http, "/jobs/cancel", {**body, **same}))["id"] == task["id"]
    moved = await begin(http, "/jobs/reschedule", {**body, "by": 5})
    assert moved["id"] != task["id"]


async def test_a_reschedule_redrive_and_purge(http: Http) -> None:
    for number in range(3):
        await http.bury(f"j{number}")
    await http.put_job("late", delay=60)
    await asyncio.sleep(0.002)
    body = {"select": {"state": "delayed", "topics": [http.topic]}, "delay": 3600, "as_task": True}
    task = await begin(http, "/jobs/reschedule", body)
    assert task["action"] == {"delay": 3600}
    assert (await ended(http, task["id"]))["done"] == 1
    task = await begin(http, http.topic_path("redrive"), {"reason": "buried", "error": "no use", "as_task": True})
    assert task["select"] == {"reason": "buried", "error": "no use"}
    assert (await ended(http, task["id"]))["done"] == 3
    assert await http.counts() == {"ready": 3, "delayed": 1}
    task = ok(await http.delete(http.topic_path(), params={"state": "ready", "as_task": "true"}), 202)
    assert task["select"] == {"state": "ready"}
    assert (await ended(http, task["id"]))["total"] == 3
    assert await http.counts() == {"delayed": 1}


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
    await ended(http, task["id"])
    assert await is_taken()
    task = ok(await http.delete(http.topic_path(), params={**params, "as_task": "true"}), 202)
    await ended(http, task["id"])
    assert not await is_taken()


async def test_stop(http: Http) -> None:
    await http.put_job("a")
    task = await begin(http, "/jobs/cancel", {"select": {"tag": http.topic}, "as_task": True})
    stopped = ok(await http.delete(f"/tasks/{task['id']}"))
    assert stopped["id"] == task["id"]
    assert (await ended(http, task["id"]))["state"] in {"done", "stopped"}
    for unknown in (await http.get("/tasks/none"), await http.delete("/tasks/none")):
        assert problem(unknown, 404, "task_not_found")["task"] == "none"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs/cancel", {"select": {"tag": "x"}, "as_task": True, "dry_run": True}),
        ("/jobs/cancel", {"select": {"ids": [{"topic": "t", "id": "j"}]}, "as_task": True}),
        ("/topics/t/redrive", {"ids": ["j"], "as_task": True}),
        ("/topics/t/redrive", {"dry_run": True, "as_task": True}),
    ],
)
async def test_what_no_task_does(http: Http, path: str, body: Json) -> None:
    refusal(await http.post(path, json=body), "body")


async def test_unknown_topics_and_parameters(http: Http) -> None:
    problem(await http.delete(http.topic_path(), params={"as_task": "true"}), 404, "topic_not_found")
    problem(await http.post(http.topic_path("redrive"), json={"as_task": True}), 404, "topic_not_found")
    refusal(await http.delete(http.topic_path(), params={"as_task": "true", "dry_run": "true"}), "query")
    refusal(await http.get("/tasks", params={"limit": "1001"}), "query.limit")


async def test_client(http: Http, shared_service: ServiceProcess) -> None:
    for number in range(3):
        await http.bury(f"j{number}")
    await asyncio.sleep(0.002)

    def wait(client: Client, task: Any) -> tuple[str, int, int | None]:
        while task.state == "running":
            task = client.task(task.id)
        return task.state, task.done, task.total

    def use() -> None:
        with Client(shared_service.url) as client:
            task = client.start_redrive(http.topic, error="no use", limit=2)
            assert (task.kind, task.topic) == ("redrive", http.topic)
            assert wait(client, task) == ("done", 2, 2)
            task = client.task(task.id)
            assert task.ended_at is not None
            assert task.ended_at >= task.started_at
            moved = client.start_reschedule_all(state="ready", topics=http.topic, delay=60)
            assert wait(client, moved) == ("done", 2, 2)
            assert wait(client, client.start_cancel_all(state="delayed", topics=http.topic)) == ("done", 2, 2)
            assert wait(client, client.start_purge(http.topic)) == ("done", 1, 1)
            assert moved.id in [one.id for one in client.tasks(limit=10)]
            assert client.stop_task(moved.id).state == "done"
            with pytest.raises(TaskNotFound):
                client.task("none")

    await asyncio.to_thread(use)


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
        done = await ended(http, task_id)
        assert (done["kind"], done["done"]) == (words[0], 0 if words[0] == "purge" else 2)
    [shown] = shell.json("tasks", task_id)
    assert (shown["id"], shown["via"]) == (task_id, "cli")
    header, row = shell.good("tasks", task_id, "--stop").splitlines()
    assert header.split() == ["ID", "KIND", "TOPIC", "STATE", "DONE", "TOTAL", "STARTED", "ENDED", "BY"]
    assert row.split()[:4] == [task_id, "purge", http.topic, "done"]
    assert shell.json("tasks", "--limit", "1")[0]["id"] == task_id
    for wrong in (
        ("tasks", "--stop"),
        ("redrive", http.topic, "a", "--task"),
        ("cancel", http.topic, "a", "--task"),
        ("purge", http.topic, "--task", "--dry-run"),
        ("cancel", "--tag", "x", "--task", "--dry-run"),
    ):
        assert shell.run(*wrong).returncode == 2, wrong


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(Path(tmp_path_factory.mktemp("keys")) / "keys.toml")
    keys.add("ops", "admin", "read", "put", "cancel")
    keys.add("shop", "read", "put", "cancel", topics=("shop.*",))
    keys.add("reader", "read")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    data_dir = tmp_path_factory.mktemp("deferd")
    with running_service("--keys-file", str(keys.path), data_dir=data_dir) as service:
        service.wait_ready()
        yield service


async def test_a_task_acts_on_the_topics_of_its_key_only(service: ServiceProcess, keys: KeysFile) -> None:
    ops, shop, reader = (keys.tokens[name] for name in ("ops", "shop", "reader"))
    for topic in ("shop.a", "bank.a"):
        job = {"topic": topic, "id": "j", "tags": ["x"], "delay": 60}
        assert (await call(service, "POST", "/jobs", job, token=ops)).status == 201
    await asyncio.sleep(0.002)
    body = {"select": {"tag": "x"}, "as_task": True}
    assert (await call(service, "POST", "/jobs/cancel", body, token=reader)).status == 403
    by_shop = (await call(service, "POST", "/jobs/cancel", body, token=shop)).json()["id"]
    purge = (await call(service, "DELETE", "/topics/bank.a?as_task=true&state=dead", token=ops)).json()["id"]
    task: Json = {"state": "running"}
    while task["state"] == "running":
        task = (await call(service, "GET", f"/tasks/{by_shop}", token=shop)).json()
    assert (task["done"], task["by"]) == (1, "shop")
    assert (await call(service, "GET", "/jobs/bank.a/j", token=ops)).status == 200
    assert (await call(service, "GET", "/jobs/shop.a/j", token=ops)).status == 404

    async def seen(token: str) -> set[str]:
        return {one["id"] for one in (await call(service, "GET", "/tasks", token=token)).json()["tasks"]}

    assert await seen(ops) == await seen(reader) == {by_shop, purge}
    assert await seen(shop) == {by_shop}
    assert (await call(service, "GET", f"/tasks/{purge}", token=shop)).status == 404
    assert (await call(service, "DELETE", f"/tasks/{purge}", token=shop)).status == 404
    assert (await call(service, "DELETE", f"/tasks/{purge}", token=reader)).status == 403
    assert (await call(service, "DELETE", f"/tasks/{purge}", token=ops)).status == 200

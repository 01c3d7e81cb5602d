"""What people and keys changed: over HTTP, through the client, as a command, and with keys."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from deferd import Client
from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, Json, moment, ok, problem, refusal
from tests.acceptance.service_process import ServiceProcess, running_service

CLI = {"Deferd-Via": "cli"}
CLAIMS_TO_BE_THE_CONSOLE = {"Deferd-Via": "console"}


async def changes(http: Http, **query: Any) -> list[Json]:
    found: list[Json] = ok(await http.get("/activity", params={"topics": http.topic, **query}))["activity"]
    return found


def values(change: Json) -> list[tuple[str, str | None, str | None]]:
    """The fields that it changed, what they were, and what they are now."""
    return [(one["field"], one.get("was"), one.get("now")) for one in change.get("fields_changed", ())]


async def test_changes_say_what_was_and_what_is_now(http: Http) -> None:
    name = http.topic
    ok(await http.put(http.topic_path(), json={"ttr": 30, "max_attempts": 3}))
    ok(await http.put(http.topic_path(), json={"ttr": 60, "window": [{"from": "09:00", "to": "17:00"}]}))
    ok(await http.post(http.topic_path("pause"), json={"reason": "down"}))
    ok(await http.post(http.topic_path("resume")))
    resumed, paused, changed, created = await changes(http)
    assert values(resumed) == [
        ("paused", "true", "false"),
        ("paused_reason", '"down"', None),
    ]
    assert values(paused) == [("paused", "false", "true"), ("paused_reason", None, '"down"')]
    assert values(created) == [("ttr", None, "30"), ("max_attempts", None, "3")]
    assert values(changed)[:2] == [("ttr", "30", "60"), ("max_attempts", "3", None)]
    [(field, was, now)] = values(changed)[2:]
    assert (field, was, json.loads(now or "")[0]["from"]) == ("window", None, "09:00")

    ok(await http.post(http.topic_path("groups/g/pause")))
    [paused] = (await changes(http))[:1]
    assert (paused["operation"], paused["subject"], paused["topic"]) == ("pause_group", "g", http.topic)
    assert values(paused) == [("paused", "false", "true")]

    job = {"body": "secret", "headers": {"x": "secret"}, "ttr": 9}
    ok(await http.put(f"/schedules/{name}", json={"topic": name, "every": 3600, "job": job}), 201)
    job |= {"body": "SECRET", "headers": {"x": "SECRET"}}
    ok(await http.put(f"/schedules/{name}", json={"topic": name, "every": 60, "job": job}))
    ok(await http.post(f"/schedules/{name}/pause"))
    ok(await http.post(f"/schedules/{name}/resume"))
    ok(await http.delete(f"/schedules/{name}"))
    deleted, resumed, paused, changed, created = (await changes(http))[:5]
    assert {("every", "60", None), ("job.ttr", "9", None), ("job.body", "8 bytes", None)} <= set(values(deleted))
    assert (values(resumed), values(paused)) == ([("paused", "true", "false")], [("paused", "false", "true")])
    assert set(values(changed)) == {
        ("every", "3600", "60"),
        ("job.body", "8 bytes", "8 bytes, changed"),
        ("job.headers", "x", "x, changed"),
    }
    assert ("every", None, "3600") in values(created)

    await http.put_job("a", delay=60, body="secret")
    ok(await http.patch(http.job_path("a"), json={"ttr": 7, "tags": ["x"], "body": "secrets"}, headers=CLI))
    assert set(values((await changes(http))[0])) == {
        ("ttr", "60", "7"),
        ("tags", None, '["x"]'),
        ("body", "8 bytes", "9 bytes"),
    }
    assert "secret" not in str(await changes(http)).lower()


async def test_changes_of_calendars_say_what_was(http: Http) -> None:
    name = http.topic
    ok(await http.put(f"/calendars/{name}", json={"windows": [{"from": "09:00", "to": "17:00"}]}), 201)
    ok(await http.put(f"/calendars/{name}", json={"windows": [{"from": "08:00", "to": "17:00"}]}))
    ok(await http.delete(f"/calendars/{name}"))
    found = ok(await http.get("/activity", params={"limit": 50}))["activity"]
    deleted, changed, created = (values(one) for one in found if one.get("subject") == name)
    assert [(field, "09:00" in (was or ""), "08:00" in (now or "")) for field, was, now in changed] == [
        ("windows", True, True)
    ]
    assert created[0][1] is None
    assert deleted[0][2] is None


async def test_changes_of_a_topic(http: Http) -> None:
    ok(await http.put(http.topic_path(), json={"ttr": 30}))
    ok(await http.post(http.topic_path("pause")))
    ok(await http.post(http.topic_path("resume")))
    for job_id in ("a", "b"):
        await http.bury(job_id)
    ok(await http.post(http.topic_path("redrive"), json={"reason": "buried", "limit": 1}))
    ok(await http.post(http.topic_path("redrive"), json={"ids": ["no-such-job"]}))
    ok(await http.post("/jobs/cancel", json={"select": {"state": "ready", "topics": [http.topic]}, "dry_run": True}))
    select = {"state": "ready", "topics": [http.topic]}
    ok(await http.post("/jobs/cancel", json={"select": select, "request_id": "r1"}))
    ok(await http.delete(http.topic_path(), params={"state": "dead"}))
    purge, cancel, redrive, *others = await changes(http)
    assert [(one["operation"], one["via"]) for one in others] == [
        ("resume_topic", "api"),
        ("pause_topic", "api"),
        ("set_topic", "api"),
    ]
    at = moment(purge.pop("at"))
    assert abs(time.time() - at) < 60
    who = {"by": "127.0.0.1", "via": "api", "outcome": "done", "topic": http.topic, "count": 1}
    assert purge == {**who, "operation": "purge_topic", "filter": '{"state":"dead"}'}
    assert json.loads(cancel["filter"]) == {"select": select}
    assert (cancel["operation"], cancel["count"]) == ("cancel_selected_jobs", 1)
    assert redrive["filter"] == '{"limit":1,"reason":"buried"}'


async def test_single_jobs_only_when_people_change_them(http: Http) -> None:
    for job_id in "abcd":
        await http.put_job(job_id, delay=60)
    for _ in range(3):  # the direct path learns the headers of a request that comes again
        ok(await http.delete(http.job_path("a")))
        await http.put_job("a", delay=60)
    ok(await http.patch(http.job_path("b"), json={"delay": 9}))
    ok(await http.post(http.topic_path("cancel"), json={"jobs": [{"id": "a"}]}))
    assert await changes(http) == []
    for job_id in "bcd":
        ok(await http.delete(http.job_path(job_id), headers=CLI))
    problem(await http.delete(http.job_path("d"), headers=CLI), 404, "job_not_found")
    ok(await http.post("/jobs", json={"topic": http.topic, "id": "e", "delay": 60}, headers=CLI), 201)
    ok(await http.patch(http.job_path("e"), json={"delay": 9, "body": "secret"}, headers=CLI))
    batch = {"jobs": [{"id": "e"}, {"id": "none"}]}
    ok(await http.post(http.topic_path("cancel"), json=batch, headers=CLI))
    found = await changes(http)
    assert [(one["operation"], one.get("subject"), one["via"], one.get("times", 1)) for one in found] == [
        ("cancel_jobs", None, "cli", 1),
        ("change_job", "e", "cli", 1),
        ("cancel_job", "d", "cli", 3),
    ]
    assert "secret" not in str(found)


async def test_batches_only_when_people_change_them(http: Http) -> None:
    path, on_end = f"/batches/{http.topic}", {"topic": http.topic}
    ok(await http.put(path, json={"on_end": on_end}), 201)
    assert await changes(http) == []
    ok(await http.put(path, json={"expect": 2}, headers=CLI))
    ok(await http.delete(path, headers=CLI))
    deleted, changed = await changes(http)
    assert (deleted["operation"], deleted["subject"]) == ("delete_batch", http.topic)
    assert (changed["operation"], changed["fields_changed"]) == ("set_batch", [{"field": "expect", "now": "2"}])


async def test_a_program_that_claims_to_be_the_console_is_a_program(http: Http) -> None:
    for _ in range(3):  # the direct path learns the headers of a request that comes again
        put = {"topic": http.topic, "id": "a", "delay": 60, "on_conflict": "replace"}
        assert (await http.post("/jobs", json=put, headers=CLAIMS_TO_BE_THE_CONSOLE)).status_code in (200, 201)
    ok(await http.delete(http.job_path("a"), headers=CLAIMS_TO_BE_THE_CONSOLE))
    ok(await http.post(http.topic_path("pause"), headers=CLAIMS_TO_BE_THE_CONSOLE))
    assert [(one["operation"], one["via"]) for one in await changes(http)] == [("pause_topic", "api")]


async def test_schedules_calendars_and_pages(http: Http) -> None:
    name = http.topic
    schedule = {"topic": http.topic, "every": 3600, "job": {"body": "secret"}}
    ok(await http.put(f"/schedules/{name}", json=schedule), 201)
    ok(await http.post(f"/schedules/{name}/run"), 201)
    ok(await http.post(f"/schedules/{name}/pause"))
    ok(await http.delete(f"/schedules/{name}"))
    found = await changes(http)
    assert [(one["operation"], one["subject"]) for one in found] == [
        (operation, name) for operation in ("delete_schedule", "pause_schedule", "run_schedule", "put_schedule")
    ]
    cursor, paged = None, []
    while True:
        query = {"topics": http.topic, "limit": "3"} | ({"cursor": cursor} if cursor else {})
        page = ok(await http.get("/activity", params=query))
        paged += page["activity"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert paged == found
    assert "secret" not in str(found)
    windows = {"windows": [{"from": "09:00", "to": "17:00"}]}
    ok(await http.put(f"/calendars/{name}", json=windows), 201)
    newest = ok(await http.get("/activity", params={"limit": 1}))["activity"][0]
    assert (newest["operation"], newest["subject"], newest.get("topic")) == ("put_calendar", name, None)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"topics": ""}, "query.topics"),
        ({"limit": "0"}, "query.limit"),
        ({"limit": "1001"}, "query.limit"),
        ({"cursor": "x"}, "query.cursor"),
        ({"since": "x"}, "query.since"),
    ],
)
async def test_invalid_parameters(http: Http, query: dict[str, str], field: str) -> None:
    refusal(await http.get("/activity", params=query), field)


async def test_client_and_command(http: Http, shared_service: ServiceProcess) -> None:
    shell = Shell(shared_service.url)
    assert shell.good("activity", http.topic) == ""
    for job_id in "abc":
        await http.put_job(job_id, delay=60)
    shell.good("cancel", http.topic, "a", "b")
    shell.good("topic", http.topic, "--ttr", "9")
    with Client(shared_service.url) as client:
        client.cancel(http.topic, "c")
        found = list(client.activity(topics=[http.topic]))
        assert [(one.operation, one.via, one.times, one.subject) for one in found] == [
            ("set_topic", "cli", 1, None),
            ("cancel_job", "cli", 2, "b"),
        ]
        assert (found[0].by, found[0].topic, found[0].count, found[0].filter) == ("127.0.0.1", http.topic, None, None)
        assert found[0].at > found[1].at
        assert [one.operation for one in client.activity(topics=http.topic, limit=1)] == ["set_topic"]
        assert repr(found[0]).startswith("Change(at=")
    header, *rows = shell.good("activity", http.topic).splitlines()
    assert header.split() == ["AT", "BY", "VIA", "OPERATION", "TOPIC", "JOBS", "WHAT"]
    assert len(rows) == 2
    assert "cancel_job (2 times)" in rows[1]
    assert [one["operation"] for one in shell.json("activity", http.topic, "--limit", "1")] == ["set_topic"]


async def test_keys_are_named_and_see_their_topics_only(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    admin, shop = keys.tokens["admin"], keys.tokens["shop"]
    ours, theirs = f"shop.{topic}", f"bank.{topic}"
    for name in (ours, theirs):
        assert (await call(service, "PUT", f"/topics/{name}", {"ttr": 9}, token=admin)).status == 200
        put = {"topic": name, "id": "j", "tags": [topic]}
        assert (await call(service, "POST", "/jobs", put, token=admin)).status == 201
    assert (await call(service, "POST", f"/topics/{theirs}/pause", {}, token=shop)).status == 403
    assert (await call(service, "POST", "/jobs/cancel", {"select": {"tag": topic}}, token=shop)).status == 200

    async def seen(key: str, query: str) -> tuple[int, list[tuple[str, str, str | None]]]:
        response = await call(service, "GET", f"/activity?{query}", token=keys.tokens[key])
        found = response.json().get("activity", ())
        return response.status, [(one["operation"], one["by"], one.get("topic")) for one in found]

    by_tag = ("cancel_selected_jobs", "shop", None)
    set_theirs, set_ours = ("set_topic", "admin", theirs), ("set_topic", "admin", ours)
    assert await seen("admin", "limit=3") == (200, [by_tag, set_theirs, set_ours])
    assert await seen("shop", "limit=1") == (200, [set_ours])
    assert await seen("admin", f"topics=*.{topic}") == (200, [set_theirs, set_ours])
    assert await seen("shop", f"topics=*.{topic}") == (200, [set_ours])
    assert await seen("shop", f"topics={theirs}") == (403, [])
    assert await seen("pop", "limit=1") == (403, [])


async def test_values_of_a_topic_are_hidden_from_keys_of_others(
    service: ServiceProcess, keys: KeysFile, topic: str
) -> None:
    ours, theirs = f"shop.{topic}", f"bank.{topic}"
    for name, ttr in ((theirs, 7), (ours, 9), (ours, 11)):
        schedule = {"topic": name, "every": 3600, "job": {"ttr": ttr, "headers": {"x": "y"}}}
        put = await call(service, "PUT", f"/schedules/{topic}", schedule, token=keys.tokens["admin"])
        assert put.status in {200, 201}

    async def seen(key: str) -> list[list[tuple[str, str | None, str | None]]]:
        found = await call(service, "GET", f"/activity?topics={ours}", token=keys.tokens[key])
        return [values(one) for one in found.json()["activity"]]

    changed = [("job.ttr", "9", "11")]
    moved = [("topic", f'"{theirs}"', f'"{ours}"'), ("job.ttr", "7", "9")]
    assert [sorted(one) for one in await seen("admin")] == [changed, sorted(moved)]
    assert await seen("shop") == [changed, []]


@pytest.mark.slow
async def test_changes_are_there_after_a_restart(keys: KeysFile, tmp_path: Path) -> None:
    token = keys.tokens["admin"]
    with running_service("--keys-file", str(keys.path), data_dir=tmp_path) as service:
        service.wait_ready()
        assert (await call(service, "PUT", "/topics/t", {"ttr": 9}, token=token)).status == 200
    with running_service("--keys-file", str(keys.path), data_dir=tmp_path) as service:
        service.wait_ready()
        found = (await call(service, "GET", "/activity", token=token)).json()["activity"]
    assert [one["operation"] for one in found] == ["set_topic"]

"""Dead jobs by error: over HTTP, through the client, and as a command."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from deferd import Client
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, moment, ok, refusal
from tests.acceptance.service_process import ServiceProcess


async def test_groups(http: Http) -> None:
    for number in range(4):
        await http.reserve(f"j{number}")
        error = {"error": f"SMTP 421: message {number} refused"}
        ok(await http.post(http.job_path(f"j{number}", "bury"), json=error))
    await http.bury("k")
    found = ok(await http.get("/dead", params={"topics": http.topic}))
    assert {name: found[name] for name in ("left_out", "dead", "looked_at", "complete", "unreadable_shards")} == {
        "left_out": 0, "dead": 5, "looked_at": 5, "complete": True, "unreadable_shards": []
    }  # fmt: skip
    first, second = found["groups"]
    assert (first["error"], first["count"], first["reason"]) == ("SMTP 421: message * refused", 4, "buried")
    assert moment(first["first_at"]) <= moment(first["last_at"]) < time.time() + 1
    assert (second["error"], second["samples"]) == ("no use", ["k"])
    limited = ok(await http.get("/dead", params={"topics": f"{http.topic},x.*", "limit": 1}))
    assert (len(limited["groups"]), limited["left_out"]) == (1, 1)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert ok(await http.get("/dead", params={"topics": http.topic, "since": later}))["groups"] == []


async def test_the_jobs_of_a_group_are_listed_and_redriven_and_no_others(http: Http) -> None:
    for job_id, name in (("a", "email"), ("b", "total"), ("c", "email")):
        await http.reserve(job_id)
        ok(await http.post(http.job_path(job_id, "bury"), json={"error": f"KeyError: '{name}'"}))
    await http.put_job("alive", delay=100)
    groups = ok(await http.get("/dead", params={"topics": http.topic}))["groups"]
    counts = {group["error"]: group["count"] for group in groups}
    assert counts == {"KeyError: 'email'": 2, "KeyError: 'total'": 1}
    assert groups[0]["originals"] == [{"error": "KeyError: 'email'", "count": 2}]
    group = {"reason": "buried", "error_group": groups[0]["error"]}
    listed = ok(await http.get(http.topic_path("jobs"), params=group))
    assert sorted(job["id"] for job in listed["jobs"]) == ["a", "c"]
    redriven = ok(await http.post(http.topic_path("redrive"), json={"reason": "buried", "error": groups[0]["error"]}))
    assert redriven["redriven"] == 2
    rest = ok(await http.get(http.topic_path("jobs"), params={"reason": "buried"}))
    assert [job["id"] for job in rest["jobs"]] == ["b"]
    for query in ({"reason": "buried"}, {"error_group": ""}):
        assert refusal(await http.get(http.topic_path("jobs"), params={**query, "state": "ready"}), "query")
    assert refusal(await http.get(http.topic_path("jobs"), params={"error_group": "x", "error": "x"}), "query")
    assert refusal(await http.get(http.topic_path("jobs"), params={"reason": "tired"}), "query.reason")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"since": "yesterday"}, "query.since"),
        ({"topics": "a,a"}, "query.topics"),
        ({"topics": ""}, "query.topics"),
        ({"limit": "0"}, "query.limit"),
        ({"look_at": "100001"}, "query.look_at"),
        ({"cursor": "x"}, "query.cursor"),
    ],
)
async def test_invalid_parameters(http: Http, query: dict[str, str], field: str) -> None:
    assert refusal(await http.get("/dead", params=query), field)


async def test_client_and_command(http: Http, shared_service: ServiceProcess) -> None:
    await http.bury("a")
    shell = Shell(shared_service.url)
    with Client(shared_service.url) as client:
        found = client.dead_errors(topics=[http.topic])
        [group] = found.groups
        assert (group.topic, group.reason, group.error, group.count) == (http.topic, "buried", "no use", 1)
        assert group.last_at is not None
        assert (found.dead, found.looked_at, found.complete) == (1, 1, True)
        assert not client.dead_errors(topics=http.topic, since=datetime.now(UTC) + timedelta(hours=1)).groups
    header, row = shell.good("dead", http.topic).splitlines()
    assert header.split() == ["COUNT", "TOPIC", "REASON", "LAST", "ERROR", "SAMPLE"]
    assert row.split()[:3] == ["1", http.topic, "buried"]
    [fields] = shell.json("dead", http.topic, "--since", "2026-01-01T00:00Z")
    assert fields["dead"] == 1
    assert shell.good("dead", "no-such-topic") == ""


async def test_a_command_says_when_not_all_were_read(http: Http, shared_service: ServiceProcess) -> None:
    for job_id in ("a", "b"):
        await http.bury(job_id)
    done = Shell(shared_service.url).run("dead", http.topic, "--look-at", "1")
    assert (done.returncode, done.stderr) == (0, "deferd: 1 of 2 dead jobs were read: --look-at reads more\n")

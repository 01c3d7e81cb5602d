"""Over HTTP: all topics at a glance, the system, relays, the caller's key, and the reason of a pause."""

from __future__ import annotations

import re
import time

import httpx

from deferd import AsyncClient, Client
from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import NO_TLS, moment
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until


def _get(service: ServiceProcess, path: str, **query: str | int) -> httpx.Response:
    return httpx.get(f"{service.url}{path}", params=query, verify=NO_TLS)


def _put(service: ServiceProcess, topic: str, count: int, delay: float = 0) -> None:
    jobs = [{"topic": topic, "delay": delay} for _ in range(count)]
    httpx.post(f"{service.url}/jobs/batch", json={"jobs": jobs}, verify=NO_TLS).raise_for_status()


def test_the_overview_sorts_and_finds_topics(shared_service: ServiceProcess) -> None:
    for at, topic in enumerate(("view.a", "view.b", "view.c")):
        _put(shared_service, topic, 3 - at, delay=60)
        _put(shared_service, topic, 1 + at)

    def seen(**query: str | int) -> list[str]:
        found = _get(shared_service, "/overview", name="VIEW.", **query).json()
        return [one["topic"] for one in found["topics"]]

    wait_until(lambda: seen(sort="ready") == ["view.c", "view.b", "view.a"], 10, "the topics are read again")
    assert seen() == seen(sort="delayed") == ["view.a", "view.b", "view.c"]
    assert seen(offset=1, limit=1) == ["view.b"]
    found = _get(shared_service, "/overview", name="view.").json()
    assert (found["matching"], found["complete"]) == (3, True)
    assert found["totals"] == {"delayed": 6, "ready": 6, "reserved": 0, "dead": 0}
    first = found["topics"][0]
    topic = _get(shared_service, "/topics/view.a").json()
    assert first["oldest_ready_at"] == topic["oldest_ready_at"]
    assert first["next_due_at"] == topic["next_due_at"]
    assert _get(shared_service, "/overview", sort="size").status_code == 422


def test_a_pause_keeps_its_first_reason_until_it_is_resumed(shared_service: ServiceProcess) -> None:
    _put(shared_service, "why.paused", 1)
    job = _get(shared_service, "/topics/why.paused/jobs").json()["jobs"][0]["id"]
    url = f"{shared_service.url}/topics/why.paused"
    paused = httpx.post(f"{url}/pause", json={"reason": "the bank is closed"}, verify=NO_TLS).json()
    assert paused["paused_reason"] == "the bank is closed"
    assert (
        httpx.post(f"{url}/pause", json={"reason": "another"}, verify=NO_TLS).json()["paused_reason"]
        == "the bank is closed"
    )
    why = _get(shared_service, f"/jobs/why.paused/{job}/why").json()["reasons"]
    assert any("the bank is closed" in reason["text"] and reason["why"] == "the bank is closed" for reason in why)
    httpx.put(url, json={"ttr": 5}, verify=NO_TLS).raise_for_status()
    assert _get(shared_service, "/topics/why.paused").json()["paused_reason"] == "the bank is closed"
    assert "paused_reason" not in httpx.post(f"{url}/resume", verify=NO_TLS).json()
    assert "paused_reason" not in httpx.post(f"{url}/pause", verify=NO_TLS).json()
    for bad in ({"reason": ""}, {"reason": "x" * 201}, {"reason": 5}, {"why": "?"}):
        assert httpx.post(f"{url}/pause", json=bad, verify=NO_TLS).status_code == 422


def test_the_system_shows_no_secret_and_no_path(shared_service: ServiceProcess) -> None:
    found = _get(shared_service, "/system").json()
    assert found["store"]["embedded"] is True
    assert found["store"]["durability"] == "fsync"
    assert found["store"]["memory_bytes"] > 0
    assert [shard["shard"] for shard in found["shards"]] == [0]
    assert "shelf" not in found
    assert found["settings"]["workers"] == 1
    assert not found["settings"].keys() & {"redis_url", "keys", "data_dir", "keys_file", "tls_cert", "tls_key"}
    assert _get(shared_service, "/key").json()["scopes"] == ["put", "pop", "cancel", "read", "admin"]


async def test_a_key_sees_itself_and_only_its_topics(service: ServiceProcess, keys: KeysFile) -> None:
    for topic in ("mine.a", "other.a"):
        await call(service, "POST", "/jobs", {"topic": topic}, token=keys.tokens["put"])
    few = keys.tokens["few"]
    found = (await call(service, "GET", "/overview", token=few)).json()
    assert ([one["topic"] for one in found["topics"]], found["matching"]) == (["mine.a"], 1)
    assert found["totals"]["ready"] == 1
    own = (await call(service, "GET", "/key", token=few)).json()
    assert own == {
        "name": "few",
        "scopes": ["put", "read"],
        "topics": ["mine.*"],
        "requests_per_second": None,
        "limits": {"max_jobs": 7},
    }
    assert (await call(service, "GET", "/system", token=few)).status == 403
    assert (await call(service, "GET", "/system", token=keys.tokens["read"])).status == 200
    assert (await call(service, "GET", "/key", token=keys.tokens["put"])).status == 403


async def test_a_relay_reports_with_the_scope_put_and_is_listed(service: ServiceProcess, keys: KeysFile) -> None:
    report = {"database": "db:5432/shop", "working": True, "rows": 12, "refused": 1, "lag": 0.25}
    path, put, read = "/relays/shop-1:7", keys.tokens["put"], keys.tokens["read"]
    assert (await call(service, "PUT", path, report, token=read)).status == 403
    reported = (await call(service, "PUT", path, report, token=put)).json()
    del report["working"]
    assert reported == {"name": "shop-1:7", "state": "works", **report, "seen_at": reported["seen_at"]}
    assert abs(moment(reported["seen_at"]) - time.time()) < 10
    async with AsyncClient(service.url, key=read) as client:
        assert [one.fields for one in await client.relays()] == [reported]
    shown = Shell(service.url).run("system", DEFERD_KEY=read).stdout
    assert re.search("^relays +shop-1:7 works for db:5432/shop: 12 rows, 0.25s behind, 1 refused$", shown, re.MULTILINE)
    metrics = (await call(service, "GET", "/metrics", token=read)).body.decode()
    assert 'deferd_outbox_relay_up{database="db:5432/shop"} 1.0' in metrics
    for name, value in (("lag_seconds", 0.25), ("rows", 12.0), ("refused_rows", 1.0)):
        assert f'deferd_outbox_{name}{{database="db:5432/shop"}} {value}' in metrics
    assert (await call(service, "GET", "/relays", token=keys.tokens["few"])).status == 403
    await call(service, "PUT", "/relays/shop-2:8", report | {"working": True, "refused": 4321}, token=put)
    await call(service, "PUT", path, report | {"working": True}, token=put)
    shown = Shell(service.url).run("system", DEFERD_KEY=read).stdout
    assert "shop-2:8 silent for db:5432/shop since 20" in shown
    async with httpx.AsyncClient(base_url=service.url) as browser:
        await browser.post("/console/login", data={"key": read}, headers={"Sec-Fetch-Site": "same-origin"})
        page = (await browser.get("/console/system")).text
    assert "shop-2:8" in page
    assert "4,321" not in page
    wrong = {"lag": -1, "rows": 0.5, "refused": True, "working": 1, "database": "a\nb", "password": "x"}
    refused = (await call(service, "PUT", path, wrong, token=put)).json()
    assert sorted(error["field"] for error in refused["errors"]) == sorted(f"body.{name}" for name in wrong)


def test_only_keys_for_all_topics_see_alerts_of_outboxes(service: ServiceProcess, keys: KeysFile) -> None:
    with Client(service.url, key=keys.tokens["put"]) as client:
        client.report_relay("alert", database="db:5432/alert", working=True, rows=0, refused=3, lag=0)

    def has_alert(key: str) -> bool:
        with Client(service.url, key=keys.tokens[key]) as client:
            return any(one.database == "db:5432/alert" for one in client.now().alerts)

    wait_until(lambda: has_alert("read"), 10, "the alerts are read again")
    assert not has_alert("few")

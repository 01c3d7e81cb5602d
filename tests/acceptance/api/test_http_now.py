"""What needs a person: over HTTP, through the client, as a command, and with keys."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd.client import AsyncClient
from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.http_calls import Http, Json, moment, ok, refusal
from tests.acceptance.service_process import ServiceProcess

KEPT_S = 10.0


async def when(http: Http, **wanted: Any) -> Json:
    """The only alert of the test's topic, once it has these facts: what was read is kept for some seconds."""
    end_s = time.monotonic() + KEPT_S
    while True:
        found = ok(await http.get("/now", params={"topics": http.topic}))
        own: list[Json] = [one for one in found["alerts"] if one.get("topic") == http.topic]
        if len(own) == 1 and wanted.items() <= own[0].items():
            return own[0]
        assert time.monotonic() < end_s, found
        await asyncio.sleep(0.2)


async def test_ready_jobs_without_a_consumer(http: Http) -> None:
    await http.put_job("a")
    await http.put_job("b")
    alert = await when(http, code="no_consumer", severity="warning", ready=2)
    assert alert["text"].startswith(f"{http.topic}: 2 jobs are ready, the oldest for ")
    assert alert["text"].endswith(" s; there is no consumer")
    assert 0 <= alert["oldest_age"] < 20
    assert set(alert) == {"severity", "code", "topic", "text", "ready", "oldest_age"}


async def test_alerts_are_acknowledged_with_a_reason_and_an_end(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("a")
    await when(http, code="no_consumer")
    until = datetime.now(UTC) + timedelta(hours=1)
    call = {"code": "no_consumer", "topics": [http.topic], "reason": "moved", "until": until.isoformat()}
    assert ok(await http.post("/now/acknowledge", json=call)) == {"alerts": 1}
    found = ok(await http.get("/now", params={"topics": http.topic}))
    assert [one.get("topic") for one in found["alerts"] if one.get("topic")] == []
    [alert] = found["acknowledged"]
    assert (alert["topic"], alert["acknowledged"]["reason"]) == (http.topic, "moved")
    assert moment(alert["acknowledged"]["until"]) == pytest.approx(until.timestamp(), abs=0.01)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    async with AsyncClient(shared_service.url) as client:
        ended = await client.acknowledge_alerts("no_consumer", reason="done", until=past, topics=[http.topic])
        assert ended == 1
        now = await client.now(topics=http.topic)
    assert [one.topic for one in now.alerts] == [http.topic]
    assert list(now.acknowledged) == []
    for change, field in (
        ({"code": "bored"}, "body.code"),
        ({"reason": ""}, "body.reason"),
        ({"until": "soon"}, "body.until"),
        ({"until": "2999-01-01T00:00:00Z"}, "body.until"),
        ({"topics": []}, "body.topics"),
    ):
        assert refusal(await http.post("/now/acknowledge", json={**call, **change}), field)


@pytest.mark.slow
async def test_what_is_due_next(http: Http) -> None:
    job = await http.put_job("a", delay=5000)
    end_s = time.monotonic() + KEPT_S
    while (found := ok(await http.get("/now", params={"topics": http.topic})))["next_due_at"] != job["due_at"]:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.2)
    assert (found["next_due_jobs"], found["topics_looked_at"], found["complete"], found["left_out"]) == (1, 1, True, 0)
    assert found["alerts"] == []
    assert moment(found["now"]) == pytest.approx(time.time(), abs=KEPT_S)


@pytest.mark.parametrize(
    ("query", "field"), [({"limit": "0"}, "query.limit"), ({"topics": "a,a"}, "query.topics"), ({"x": "1"}, "query.x")]
)
async def test_invalid_parameters(http: Http, query: dict[str, str], field: str) -> None:
    assert refusal(await http.get("/now", params=query), field)


async def test_a_key_sees_its_topics_only(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    for name, delay in (("shop", 0), ("bank", 0), ("shop.later", 600), ("bank.later", 60)):
        body = {"topic": f"{name}.{topic}", "id": "j", "delay": delay}
        assert (await call(service, "POST", "/jobs", body, token=keys.tokens["put"])).status == 201
    mine, theirs = f"shop.{topic}", f"bank.{topic}"

    async def seen(key: str, topics: str = f"*.{topic}") -> tuple[int, set[str], int | None, str | None]:
        response = await call(service, "GET", f"/now?topics={topics}", token=keys.tokens[key])
        found = response.json()
        alerts = {one["topic"] for one in found.get("alerts", []) if "topic" in one}  # others are of the store
        return response.status, alerts, found.get("topics_looked_at"), found.get("next_due_at")

    *of_all, next_of_all = await seen("read")
    assert of_all == [200, {mine, theirs}, 4]
    *of_shop, next_of_shop = await seen("shop")
    assert of_shop == [200, {mine}, 2]
    assert (await seen("shop", mine))[:3] == (200, {mine}, 1)
    assert (await seen("shop", theirs))[0] == 403
    assert (await seen("put"))[0] == 403
    assert next_of_shop is not None
    assert next_of_all is not None
    assert moment(next_of_shop) - moment(next_of_all) > 500

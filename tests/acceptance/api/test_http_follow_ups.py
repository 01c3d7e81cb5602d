"""How many follow-ups and collections a topic has, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.api.test_http_operations import samples_of, value
from tests.acceptance.http_calls import NO_TLS, Http, ok
from tests.acceptance.service_process import running_service

AFTER: dict[str, Any] = {"on_conflict": "replace", "if_reserved": "after"}


async def put_after(http: Http, **fields: Any) -> None:
    ok(await http.post("/jobs", json={"topic": http.topic, "id": "a", **AFTER, **fields}), 201)


@pytest.mark.parametrize("path", ["/topics/{}", "/topics?limit=1000"])
async def test_a_topic_shows_its_follow_ups_and_collections(http: Http, path: str) -> None:
    async def shown() -> tuple[int | None, int | None]:
        found = ok(await http.get(path.format(http.topic)))
        [topic] = [one for one in found.get("topics", [found]) if one["topic"] == http.topic]
        return topic.get("follow_ups"), topic.get("collections")

    receipt = (await http.reserve("a"))["receipt"]
    assert await shown() == (None, None)
    await put_after(http)
    for job_id in ("b", "c"):
        await http.put_job(job_id, on_conflict="append", delay=60)
    assert await shown() == (1, 2)
    ok(await http.post(http.job_path("a", "finish"), json={"receipt": receipt}))
    assert await shown() == (None, 2)
    ok(await http.delete(http.job_path("b")))
    assert await shown() == (None, 1)


async def test_metrics_count_follow_ups_and_collections(tmp_path: Path) -> None:
    with running_service("--max-topic-labels", "1", data_dir=tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
            await Http(client, "z").put_job("plain")
            before = (await client.get("/metrics")).text
            assert "deferd_follow_ups{" not in before
            assert "deferd_collections{" not in before
            for topic in ("a", "b", "c"):
                http = Http(client, topic)
                await http.reserve("a")
                await put_after(http)
                await http.put_job("b", on_conflict="append", delay=60)
            samples = samples_of((await client.get("/metrics")).text)
    for name in ("deferd_follow_ups", "deferd_collections"):
        assert value(samples, name, topic="a") == 1
        assert value(samples, name, topic="_other") == 2
        assert len([1 for metric, _ in samples if metric == name]) == 2
    assert value(samples, "deferd_jobs", topic="_other", state="reserved") == 2

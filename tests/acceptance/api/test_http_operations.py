"""For operators: health, readiness, metrics, documents."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.http_calls import NO_TLS, Http, moment, ok
from tests.acceptance.service_process import running_service

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} appears twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


async def test_the_service_is_healthy_and_ready(http: Http) -> None:
    assert ok(await http.get("/healthz")) == {"status": "ok"}
    assert ok(await http.get("/readyz")) == {"status": "ok"}


async def test_the_docs_page_needs_no_other_host(http: Http) -> None:
    page = await http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "://" not in page.text.replace("http://www.w3.org", "")
    for file, media_type in (
        ("swagger-ui-bundle.js", "text/javascript"),
        ("swagger-ui.css", "text/css"),
        ("favicon.png", "image/png"),
    ):
        assert f"docs/{file}" in page.text
        response = await http.get(f"/docs/{file}")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(media_type)
        assert len(response.content) > 100


async def test_metrics_count_requests_by_route_and_not_by_path(http: Http) -> None:
    for name in ("a", "b"):
        await http.get(http.job_path(name))
    for number in range(3):
        await http.get(f"/unknown-{number}")
    await http.put("/jobs", json={})
    await http.get("/openapi.json")
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = samples_of(response.text)
    count = "deferd_http_request_seconds_count"
    assert value(samples, count, route="/jobs/{topic}/{id}", method="GET", status="4xx") >= 2
    assert value(samples, count, route="unknown", method="GET", status="4xx") >= 3
    assert value(samples, count, route="/jobs", method="PUT", status="4xx") >= 1
    assert value(samples, count, route="/openapi.json", method="GET", status="2xx") >= 1
    assert "unknown-0" not in response.text
    assert value(samples, "deferd_store_up") == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_metrics_report_the_state_of_the_store(tmp_path: Path, workers: int) -> None:
    flags = ("--max-topic-labels", "2", "--workers", str(workers))
    with running_service(*flags, data_dir=tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
            http = Http(client, "a")
            due = await http.put_job("delayed", delay=600)
            await http.put_job("ready")
            for topic in ("b", "c", "d"):
                ok(await http.post("/jobs", json={"topic": topic}), 201)
            ok(await http.post("/topics/d/pause"))
            samples = samples_of((await http.get("/metrics")).text)
            assert value(samples, "deferd_store_up") == 1
            assert value(samples, "deferd_jobs", topic="a", state="delayed") == 1
            assert value(samples, "deferd_jobs", topic="a", state="ready") == 1
            assert value(samples, "deferd_jobs", topic="b", state="ready") == 1
            assert value(samples, "deferd_jobs", topic="_other", state="ready") == 2
            assert value(samples, "deferd_topic_paused", topic="a") == 0
            assert value(samples, "deferd_oldest_ready_age_seconds", topic="a") >= 0
            assert value(samples, "deferd_next_due_timestamp_seconds", topic="a") == pytest.approx(
                moment(due["due_at"]), abs=0.001
            )
            assert {dict(labels)["topic"] for name, labels in samples if name == "deferd_jobs"} == {"a", "b", "_other"}
            assert (
                sum(
                    number
                    for (name, labels), number in samples.items()
                    if name == "deferd_http_request_seconds_count" and ("route", "/jobs") in labels
                )
                == 5
            )

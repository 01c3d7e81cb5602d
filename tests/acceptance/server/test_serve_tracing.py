"""`deferd serve --tracing`: the spans of requests, as the console exporter of the SDK prints them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deferd import Client
from tests.acceptance.api.test_keys_and_listening import refused
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.recorded_spans import RecordedSpans, context_of
from tests.acceptance.service_process import ServiceProcess

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEPT_UNTIL_THE_END = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "60000"}


def printed_spans(output: str) -> Iterator[dict[str, Any]]:
    """The spans in an output, which also has lines of the log."""
    decoder = json.JSONDecoder()
    at = 0
    while (at := output.find("{\n", at)) >= 0:
        span, at = decoder.raw_decode(output, at)
        yield span


def traced_service(folder: Path, *flags: str, **environment: str) -> ServiceProcess:
    variables = {**KEPT_UNTIL_THE_END, **environment}
    return ServiceProcess(folder, "--tracing", "true", *flags, environment=variables, preloaded=True)


@pytest.mark.slow
def test_requests_have_spans_of_which_the_last_ones_are_exported_at_the_end(tmp_path: Path) -> None:
    spans = RecordedSpans()
    with traced_service(tmp_path) as service:
        with httpx.Client(base_url=service.url, verify=NO_TLS) as http:
            for path in ("/healthz", "/readyz", "/metrics", "/topics/none/pop?wait=0", "/jobs/orders.close/none"):
                http.get(path)
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert http.post("/jobs", json={"topic": "by.hand"}, headers=headers).status_code == 201
        with Client(service.url, tracing=spans.tracing()) as client:
            client.put("orders.close", id="order-1")
            [job] = client.pop("orders.close")
            client.finish(job)
        assert service.stop() == 0
    found = {span["name"]: span for span in printed_spans(service.output())}
    assert sorted(found) == [
        "GET /jobs/{topic}/{id}",
        "POST /jobs",
        "POST /jobs/{topic}/{id}/finish",
        "POST /topics/{topic}/pop",
    ]
    assert {span["kind"] for span in found.values()} == {"SpanKind.SERVER"}
    assert found["GET /jobs/{topic}/{id}"]["attributes"] == {
        "http.request.method": "GET",
        "http.route": "/jobs/{topic}/{id}",
        "http.response.status_code": 404,
        "messaging.destination.name": "orders.close",
        "client.address": "127.0.0.1",
    }
    by_hand, by_client = (span for span in printed_spans(service.output()) if span["name"] == "POST /jobs")
    assert (by_hand["context"]["trace_id"], by_hand["parent_id"]) == (f"0x{TRACE}", f"0x{PARENT}")
    put, finish = context_of(spans.one("put orders.close")), context_of(spans.one("finish orders.close"))
    assert by_client["parent_id"] == f"0x{put.span_id:016x}"
    assert found["POST /jobs/{topic}/{id}/finish"]["parent_id"] == f"0x{finish.span_id:016x}"
    assert found["POST /jobs"]["resource"]["attributes"]["service.name"] == "deferd"


@pytest.mark.slow
def test_each_server_process_exports_its_spans(tmp_path: Path) -> None:
    with traced_service(tmp_path, "--workers", "2", OTEL_SERVICE_NAME="jobs") as service:
        for number in range(20):
            job = {"topic": "t", "body": number}
            httpx.post(f"{service.url}/jobs", json=job, verify=NO_TLS)  # each over a connection of its own
        assert service.stop() == 0
    assert service.output().count('"name": "POST /jobs"') == 20
    assert '"service.name": "jobs"' in service.output()


@pytest.mark.slow
def test_without_tracing_there_are_no_spans(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, environment=KEPT_UNTIL_THE_END, preloaded=True) as service:
        httpx.post(
            f"{service.url}/jobs",
            json={"topic": "t"},
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
            verify=NO_TLS,
        )
        assert service.stop() == 0
    assert "trace_id" not in service.output()


EXPORTERS = """
import time
from opentelemetry.sdk.trace.export import SpanExporter

class Failing(SpanExporter):
    def export(self, spans):
        raise ConnectionError("no collector")

class Hanging(SpanExporter):
    def export(self, spans):
        time.sleep(60)
"""


def installed_exporters(folder: Path) -> str:
    """A folder for PYTHONPATH with a package that declares two exporters."""
    facts = folder / "exporters-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: exporters\nVersion: 1\n")
    group = "[opentelemetry_traces_exporter]\nfailing = exporters:Failing\nhanging = exporters:Hanging\n"
    (facts / "entry_points.txt").write_text(group)
    (folder / "exporters.py").write_text(EXPORTERS)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["failing", "hanging"])
def test_an_exporter_that_fails_or_hangs_delays_neither_requests_nor_the_stop(tmp_path: Path, exporter: str) -> None:
    path = installed_exporters(tmp_path / "site")
    environment = {"PYTHONPATH": path, "OTEL_TRACES_EXPORTER": exporter, "OTEL_BSP_SCHEDULE_DELAY": "10"}
    with traced_service(tmp_path, **environment) as service:
        with httpx.Client(base_url=service.url, verify=NO_TLS) as http:
            for number in range(20):
                assert http.post("/jobs", json={"topic": "t", "body": number}).status_code == 201
        began_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began_s < 4
    with traced_service(tmp_path, **environment) as service:  # its data is whole
        assert httpx.get(f"{service.url}/topics/t", verify=NO_TLS).json()["counts"]["ready"] == 20


@pytest.mark.slow
def test_a_missing_exporter_is_named_in_one_line_before_anything_starts(tmp_path: Path) -> None:
    line = refused(folder=tmp_path, DEFERD_TRACING="true", OTEL_TRACES_EXPORTER="zipkin")
    assert "--tracing (DEFERD_TRACING) needs the package opentelemetry-exporter-zipkin: pip install" in line
    assert not (tmp_path / "data").exists()

"""The span of one request."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from deferd.api.incoming_request import AsgiRequest
from deferd.api.routes import jobs
from deferd.api.tracing import RequestSpans
from tests.acceptance.recorded_spans import RecordedSpans

[GET_JOB] = [route for route in jobs.router.routes if route.operation_id == "get_job"]


async def _receive() -> Any:
    raise AssertionError


def request(*headers: tuple[bytes, bytes]) -> AsgiRequest:
    scope = {"type": "http", "method": "GET", "query_string": b"", "headers": headers}
    return AsgiRequest(scope, _receive, {"topic": "orders", "id": "a"}, 1024)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedSpans:
    recorded = RecordedSpans()

    def get_tracer(name: str, *arguments: Any, **options: Any) -> trace.Tracer:
        return recorded.provider.get_tracer(name, *arguments, **options)

    monkeypatch.setattr(trace, "get_tracer", get_tracer)
    return recorded


@pytest.mark.parametrize(("status", "error"), [(200, None), (404, None), (429, None), (500, "500"), (503, "503")])
def test_only_errors_of_the_service_are_errors(recorded: RecordedSpans, status: int, error: str | None) -> None:
    RequestSpans().record(GET_JOB, request(), status, 1)
    span = recorded.one("GET /jobs/{topic}/{id}")
    assert (span.attributes or {}).get("error.type") == error
    assert (span.status.status_code is StatusCode.ERROR) is (error is not None)
    assert span.start_time == 1


def test_the_span_has_the_parent_and_the_state_that_the_request_names(recorded: RecordedSpans) -> None:
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01".encode()
    RequestSpans().record(GET_JOB, request((b"tracestate", b"vendor=x:1"), (b"traceparent", traceparent)), 200, 1)
    span = recorded.one("GET /jobs/{topic}/{id}")
    assert span.parent is not None
    assert (span.parent.span_id, span.parent.trace_state.get("vendor")) == (int("b" * 16, 16), "x:1")


@pytest.mark.parametrize("value", [b"", b"x", b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01", "00-ü".encode()])
def test_an_invalid_traceparent_is_ignored(recorded: RecordedSpans, value: bytes) -> None:
    RequestSpans().record(GET_JOB, request((b"traceparent", value)), 200, 1)
    assert recorded.one("GET /jobs/{topic}/{id}").parent is None


def test_the_key_of_the_request_is_named(recorded: RecordedSpans) -> None:
    by_key = request()
    by_key.key_name = "shop"
    RequestSpans().record(GET_JOB, by_key, 200, 1)
    assert (recorded.one("GET /jobs/{topic}/{id}").attributes or {})["deferd.key"] == "shop"


def test_an_error_of_the_tracer_is_logged_and_goes_no_further(
    recorded: RecordedSpans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug in a sampler")

    spans = RequestSpans()
    monkeypatch.setattr(spans._tracer, "start_span", fail)
    spans.record(GET_JOB, request(), 200, 1)
    assert "a span could not be recorded" in caplog.text

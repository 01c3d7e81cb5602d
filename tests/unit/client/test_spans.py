"""When a client traces, and that one that does not imports nothing of OpenTelemetry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.semconv.schemas import Schemas

from deferd import AsyncClient, Client
from deferd.api import tracing as request_spans
from deferd.client import tracing
from deferd.client.async_client import TRACING_VARIABLE, spans_of
from deferd.client.spans import NO_SPANS
from deferd.client.tracing import Tracing
from deferd.version import how_to_install
from tests.acceptance.recorded_spans import RecordedSpans

ROOT = Path(__file__).resolve().parents[3]
IMPORTS = """
import sys
import deferd
for options in ({}, {"tracing": False}, {"tracing": True}):
    deferd.Client("http://127.0.0.1:9", **options)
    deferd.Worker("http://127.0.0.1:9", **options)
    print(any(name.split(".")[0] == "opentelemetry" for name in sys.modules))
"""


def test_a_client_imports_opentelemetry_only_to_trace() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "False", "True"]


@pytest.mark.parametrize(
    ("value", "traces"), [("true", True), ("1", True), (" ON ", True), ("false", False), ("", False)]
)
def test_the_variable_decides_where_the_program_does_not(
    monkeypatch: pytest.MonkeyPatch, value: str, traces: bool
) -> None:
    monkeypatch.setenv(TRACING_VARIABLE, value)
    assert isinstance(spans_of(None), Tracing) is traces
    assert spans_of(False) is NO_SPANS
    assert isinstance(spans_of(True), Tracing)


@pytest.mark.parametrize(
    ("urls", "server"),
    [
        ("http://127.0.0.1:9", {"server.address": "127.0.0.1", "server.port": 9}),
        ("https://jobs.example.com", {"server.address": "jobs.example.com", "server.port": 443}),
        ("unix:///run/deferd.sock", {"server.address": "/run/deferd.sock"}),
        (["http://127.0.0.1:9", "http://127.0.0.1:10"], {}),
    ],
)
def test_a_given_tracing_is_used_and_names_the_service(urls: str | list[str], server: dict[str, str | int]) -> None:
    recorded = RecordedSpans()
    given = recorded.tracing()
    for spans in (AsyncClient(urls, tracing=given).spans, Client(urls, tracing=given)._methods.spans):
        with spans.put([{"topic": "t"}]):
            pass
    for span in recorded.named("put t"):
        found = {name: value for name, value in (span.attributes or {}).items() if name.startswith("server.")}
        assert found == server
    assert len(recorded.all()) == 2


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deferd.client.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=re.escape(how_to_install("otel"))):
        Client("http://127.0.0.1:9", tracing=True)


def test_without_an_sdk_nothing_is_carried() -> None:
    job: dict[str, object] = {"topic": "t"}
    with Tracing().put([job]):
        assert "traceparent" not in job


def test_the_schema_is_one_that_the_conventions_have() -> None:
    assert {tracing.SCHEMA_URL, request_spans.SCHEMA_URL} <= {schema.value for schema in Schemas}


def test_the_program_of_the_page_runs() -> None:
    text = (ROOT / "docs/tracing.md").read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=30)

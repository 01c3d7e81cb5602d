"""Which packages tracing needs, and what is said when one is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from deferd.server.startup_errors import CannotServe
from deferd.server.tracing import EXPORTER_VARIABLE, check_tracing
from deferd.settings import Settings

TRACED = Settings(tracing=True)
NEEDS = "--tracing (DEFERD_TRACING) needs the package "


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (EXPORTER_VARIABLE, "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)


def refusal() -> str:
    with pytest.raises(CannotServe) as refused:
        check_tracing(TRACED)
    return str(refused.value)


@pytest.mark.parametrize(
    ("environment", "package"),
    [
        ({}, "opentelemetry-exporter-otlp-proto-http"),
        ({EXPORTER_VARIABLE: "otlp"}, "opentelemetry-exporter-otlp-proto-http"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "opentelemetry-exporter-otlp-proto-grpc"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            "opentelemetry-exporter-otlp-proto-http",
        ),
        ({EXPORTER_VARIABLE: "zipkin"}, "opentelemetry-exporter-zipkin"),
    ],
)
def test_a_missing_exporter_is_named(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], package: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = f"{NEEDS}{package}: pip install {package}, or another exporter in OTEL_TRACES_EXPORTER"
    assert refusal() == text


def test_a_missing_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    assert refusal() == f"{NEEDS}opentelemetry-sdk: pip install opentelemetry-sdk"


def test_an_exporter_that_cannot_be_imported_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = tmp_path / "exporters-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: exporters\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[opentelemetry_traces_exporter]\nbroken = no_such_module:Exporter\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(EXPORTER_VARIABLE, "broken")
    assert refusal() == (
        "--tracing cannot load the exporter broken of OTEL_TRACES_EXPORTER: No module named 'no_such_module'"
    )


@pytest.mark.parametrize("exporter", ["none", "console"])
def test_nothing_more_is_needed(monkeypatch: pytest.MonkeyPatch, exporter: str) -> None:
    monkeypatch.setenv(EXPORTER_VARIABLE, exporter)
    check_tracing(TRACED)


def test_without_tracing_nothing_is_needed() -> None:
    check_tracing(Settings())


def test_a_provider_that_is_there_needs_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: TracerProvider(shutdown_on_exit=False))
    check_tracing(TRACED)

"""Sets up the OpenTelemetry SDK of a server process, from the variables OTEL_*.

A provider that is there already stays: that of `opentelemetry-instrument`, for example. It is set up in each server
process, because the threads that export do not survive a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from deferd.server.startup_errors import CannotServe
from deferd.settings import Settings, flag, variable

EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_FLUSH_S = 0.2
"""How long the last spans may take at shutdown: the service ends without them when the collector does not respond."""


def check_tracing(settings: Settings) -> None:
    """Find the packages that tracing needs. Raises CannotServe if one is missing."""
    if settings.tracing and not _is_configured():
        _packages()


@contextlib.contextmanager
def tracing(settings: Settings) -> Iterator[None]:
    """Export the spans that are made in the block; the last ones for 0.2 s after it."""
    if not settings.tracing or _is_configured():
        yield
        return
    exporter = _packages()
    provider = None if exporter is None else _start(exporter)
    try:
        yield
    finally:
        if provider is not None:  # in a daemon thread: it may ignore its time-out, and must not keep the process alive
            flushing = threading.Thread(target=provider.force_flush, args=(int(_FLUSH_S * 1000),), daemon=True)
            flushing.start()
            flushing.join(_FLUSH_S)


def _is_configured() -> bool:
    """Whether the process has a tracer provider."""
    try:
        trace = importlib.import_module("opentelemetry.trace")
    except ImportError:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _packages() -> type[Any] | None:
    """The class of the exporter that is asked for; None for none."""
    try:
        importlib.import_module("opentelemetry.sdk.trace.export")
    except ImportError:
        raise CannotServe(_needs("opentelemetry-sdk")) from None
    name = os.environ.get(EXPORTER_VARIABLE) or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        protocol = next((os.environ[one] for one in _PROTOCOL_VARIABLES if os.environ.get(one)), "http/protobuf")
        name = _OTLP.get(protocol, protocol)
    found = metadata.entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        package = f"opentelemetry-exporter-{name.replace('_', '-')}"
        raise CannotServe(f"{_needs(package)}, or another exporter in {EXPORTER_VARIABLE}")
    try:
        return next(iter(found)).load()  # type: ignore[no-any-return] # a plugin of any package has no type
    except ImportError as exc:
        raise CannotServe(f"{flag('tracing')} cannot load the exporter {name} of {EXPORTER_VARIABLE}: {exc}") from None


def _needs(package: str) -> str:
    return f"{flag('tracing')} ({variable('tracing')}) needs the package {package}: pip install {package}"


def _start(exporter: type[Any]) -> Any:
    from opentelemetry import trace  # noqa: PLC0415 (optional packages)
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 (the same)
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 (the same)
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 (the same)

    own = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "deferd"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)
    return provider

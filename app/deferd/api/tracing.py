"""Spans of requests, by the HTTP conventions of OpenTelemetry. Imported only when `--tracing` is on.

A span is made when its response is ready, with the time at which the request came: nothing in between has spans of its
own. Pops without jobs, health checks and scrapes have none, as there would be little else to see.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.responses import Response
from starlette.routing import Router

from deferd.api.context import AppContext
from deferd.api.dispatch import RequestHandler, Run
from deferd.api.incoming_request import IncomingRequest
from deferd.api.openapi import document
from deferd.api.operation import OperationRoute

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
_NOT_TRACED = frozenset({"/healthz", "/readyz", "/metrics"})
_NO_JOBS = b'{"jobs":[]}'
_CONTEXT_HEADERS = frozenset((b"traceparent", b"tracestate"))
_SERVER_ERROR = 500

_log = logging.getLogger(__name__)


class TracedRequestHandler(RequestHandler):
    """A RequestHandler that makes a span for each request."""

    def __init__(self, app: AppContext, router: Router) -> None:
        super().__init__(app, router)
        self._spans = RequestSpans()

    async def handle(
        self, operation: OperationRoute, request: IncomingRequest, run: Run | None = None
    ) -> Response | None:
        """See RequestHandler."""
        began_ns = time.time_ns()
        response = await super().handle(operation, request, run)
        if response is not None and operation.path not in _NOT_TRACED and response.body != _NO_JOBS:
            self._spans.record(operation, request, response.status_code, began_ns)
        return response


class RequestSpans:
    """Makes the spans, with the process's tracer provider."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("deferd", document.VERSION, schema_url=SCHEMA_URL)
        self._extract: Callable[[dict[str, str], Context], Context] = TraceContextTextMapPropagator().extract

    def record(self, operation: OperationRoute, request: IncomingRequest, status: int, began_ns: int) -> None:
        """Make the span of a request that has its response. An error in it is logged, and the client gets that."""
        try:
            carrier = {
                name.decode("ascii"): value.decode("latin-1")
                for name, value in request.headers
                if name in _CONTEXT_HEADERS
            }
            span = self._tracer.start_span(
                f"{request.method} {operation.path}",
                self._extract(carrier, Context()) if carrier else Context(),
                SpanKind.SERVER,
                self._attributes(operation, request, status),
                start_time=began_ns,
            )
            if status >= _SERVER_ERROR:
                span.set_status(Status(StatusCode.ERROR))
            span.end()
        except Exception:  # noqa: BLE001 (no error of a span may fail what it is about)
            _log.warning("a span could not be recorded", exc_info=True)

    @staticmethod
    def _attributes(operation: OperationRoute, request: IncomingRequest, status: int) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            "http.request.method": request.method,
            "http.route": operation.path,
            "http.response.status_code": status,
        }
        if (topic := request.path_values.get("topic")) is not None:
            attributes["messaging.destination.name"] = topic
        if (address := request.client_address()) is not None:
            attributes["client.address"] = address
        if request.key_name is not None:
            attributes["deferd.key"] = request.key_name
        if status >= _SERVER_ERROR:
            attributes["error.type"] = str(status)
        return attributes

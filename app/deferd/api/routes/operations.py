"""For those who run the service: health, readiness, metrics, and the page that shows this contract."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from deferd.api import consistency_json, metrics
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import needs, open_to_all
from deferd.api.call import CurrentCall
from deferd.api.openapi import document, schemas
from deferd.api.openapi.document import problems
from deferd.api.operation import NOTHING, NoFields, Operation
from deferd.api.responses import JsonAnswer
from deferd.api.service import Service
from deferd.contract.errors import StoreUnavailable

router = APIRouter(route_class=Operation, tags=["operations"])

_OK = {"status": "ok"}
_PING_TIMEOUT_S = 2.0


@router.get(
    "/healthz",
    operation_id="check_health",
    summary="Whether the process lives",
    description="Answers as long as the process can answer at all. It says nothing of the store.",
    response_model=schemas.Health,
    response_description="It lives.",
    responses=problems("validation"),
)
@open_to_all
async def check_health() -> Response:
    return JsonAnswer(_OK)


@router.get(
    "/readyz",
    operation_id="check_readiness",
    summary="Whether the service can work",
    description="Asks the store. For load balancers: send requests here only while this answers 200.",
    response_model=schemas.Health,
    response_description="It can.",
    responses=problems("validation", "store_unavailable"),
)
@open_to_all
async def check_readiness(call: CurrentCall) -> Response:
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await call.engine.ping()
    except TimeoutError as error:
        raise StoreUnavailable("the store did not answer in time") from error
    return JsonAnswer(_OK)


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Metrics for Prometheus",
    description="What all worker processes counted, and how the store stands now. While the store is down this "
    "answers all the same, with `deferd_store_up 0`. A key must be for all topics.",
    response_class=PlainTextResponse,
    response_description="Metrics in Prometheus' text format.",
    responses=problems("validation"),
)
@needs(Scope.READ, all_topics=True)
async def get_metrics(call: CurrentCall) -> Response:
    text = await metrics.exposition(call.engine, call.service.settings.max_topic_labels)
    return Response(text, headers={"content-type": metrics.CONTENT_TYPE})


@router.get(
    "/audit",
    operation_id="audit_store",
    summary="Check what belongs to no single topic",
    description="Topics that hold something and that no list shows, and keys of the wrong kind. It goes through all "
    "keys of the store in small steps and changes nothing. A key must be for all topics.",
    response_model=schemas.StoreAudit,
    response_description="What was found.",
    responses=problems("validation", "store_unavailable"),
)
@needs(Scope.ADMIN, all_topics=True)
async def audit_store(call: CurrentCall) -> Response:
    return JsonAnswer(consistency_json.store(await call.unless_gone(call.engine.consistency.check_store())))


@router.post(
    "/repair",
    operation_id="repair_store",
    summary="Mend what belongs to no single topic",
    description="Moves keys of the wrong kind out of the way. Topics that are not listed are mended by their own "
    "repair. A key must be for all topics.",
    response_model=schemas.StoreAudit,
    response_description="What was mended.",
    responses=problems("validation", "store_unavailable", body=True),
)
@needs(Scope.ADMIN, all_topics=True)
async def repair_store(call: CurrentCall, _nothing: NoFields = NOTHING) -> Response:
    return JsonAnswer(consistency_json.store(await call.unless_gone(call.engine.consistency.check_store(repair=True))))


_SWAGGER_FILES = Path(str(files("fastapi_offline") / "static"))
"""Swagger UI from a package, since FastAPI's own page loads it from other hosts and stays blank without them."""


async def _docs_page(_request: Request) -> HTMLResponse:
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=document.TITLE,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )
    page.headers["x-frame-options"] = "DENY"  # else another page could have its reader click here unawares
    return page


def _file(name: str) -> Route:
    async def send_file(_request: Request) -> FileResponse:
        return FileResponse(_SWAGGER_FILES / name)

    return Route(f"/docs/{name}", send_file, include_in_schema=False)


async def _openapi_json(request: Request) -> Response:
    service: Service = request.scope["app"]
    return JsonAnswer(service.openapi())


PAGES = [
    Route("/openapi.json", _openapi_json, include_in_schema=False),
    Route("/docs", _docs_page, include_in_schema=False),
    *(_file(name) for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")),
]

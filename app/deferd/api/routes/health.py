"""For operators: health, readiness, metrics, and the consistency check of the whole store."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from deferd.api import consistency_json, metrics
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import public, requires
from deferd.api.openapi import schemas
from deferd.api.openapi.document import error_responses
from deferd.api.operation import EMPTY_BODY, EmptyBody, Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.responses import JsonResponse
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
    responses=error_responses("validation"),
)
@public
async def check_health() -> Response:
    return JsonResponse(_OK)


@router.get(
    "/readyz",
    operation_id="check_readiness",
    summary="Whether the service can work",
    description="Asks the store. For load balancers: send requests here only while this answers 200.",
    response_model=schemas.Health,
    response_description="It can.",
    responses=error_responses("validation", "store_unavailable"),
)
@public
async def check_readiness(request: CurrentRequest) -> Response:
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await request.engine.ping()
    except TimeoutError as error:
        raise StoreUnavailable("the store did not answer in time") from error
    return JsonResponse(_OK)


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Metrics for Prometheus",
    description="What all worker processes counted, and how the store stands now. While the store is down this "
    "answers all the same, with `deferd_store_up 0`. A key must be for all topics.",
    response_class=PlainTextResponse,
    response_description="Metrics in Prometheus' text format.",
    responses=error_responses("validation"),
)
@requires(Scope.READ, all_topics=True)
async def get_metrics(request: CurrentRequest) -> Response:
    text = await metrics.exposition(request.engine, request.app.settings.max_topic_labels)
    return Response(text, headers={"content-type": metrics.CONTENT_TYPE})


@router.get(
    "/audit",
    operation_id="audit_store",
    summary="Check what belongs to no single topic",
    description="Topics that hold something and that no list shows, and keys of the wrong kind. It goes through all "
    "keys of the store in small steps and changes nothing. A key must be for all topics.",
    response_model=schemas.StoreAudit,
    response_description="What was found.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.ADMIN, all_topics=True)
async def audit_store(request: CurrentRequest) -> Response:
    return JsonResponse(
        consistency_json.store(await request.incoming.cancel_on_disconnect(request.engine.auditor.survey()))
    )


@router.post(
    "/repair",
    operation_id="repair_store",
    summary="Mend what belongs to no single topic",
    description="Moves keys of the wrong kind out of the way. Topics that are not listed are mended by their own "
    "repair. A key must be for all topics.",
    response_model=schemas.StoreAudit,
    response_description="What was mended.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN, all_topics=True)
async def repair_store(request: CurrentRequest, _body: EmptyBody = EMPTY_BODY) -> Response:
    return JsonResponse(
        consistency_json.store(await request.incoming.cancel_on_disconnect(request.engine.auditor.survey(repair=True)))
    )

"""For operators: health, readiness, metrics, and the consistency check of the whole store."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from deferd.api import audit_responses, metrics
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import public, requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import EMPTY_BODY, EmptyBody, Operation
from deferd.api.request_context import CurrentRequest
from deferd.contract.errors import StoreUnavailable
from deferd.contract.responses.audits import StoreAudit
from deferd.contract.responses.health import Health

router = APIRouter(route_class=Operation, tags=["operations"])

_OK = Health(status="ok")
_PING_TIMEOUT_S = 2.0


@router.get(
    "/healthz",
    operation_id="check_health",
    summary="Check that the process is alive",
    description="Responds as long as the process can respond at all. It does not check the store.",
    response_model=Health,
    response_description="The process is alive.",
    responses=error_responses("validation"),
)
@public
async def check_health() -> Health:
    return _OK


@router.get(
    "/readyz",
    operation_id="check_readiness",
    summary="Check that the service is ready",
    description="Checks that the store responds. For load balancers: send requests only while this returns 200. The "
    "detail of the 503 says why, such as `Connection refused` or `No space left on device`, and while the store loads "
    "its data after a start how far it is.",
    response_model=Health,
    response_description="The service is ready.",
    responses=error_responses("validation", "store_unavailable"),
)
@public
async def check_readiness(request: CurrentRequest) -> Health:
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await request.engine.ping()
    except TimeoutError as error:
        raise StoreUnavailable("the store did not respond in time") from error
    return _OK


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Get metrics for Prometheus",
    description="The metrics of all server processes, and the current state of the store. While the store is down "
    "this still responds, with `deferd_store_up 0`. The key must match all topics.",
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
    summary="Audit the store",
    description="Finds topics that have data but are missing from the list of topics, and store keys of the wrong "
    "type. It reads all keys of the store in small steps and changes nothing. The API key must match all topics.",
    response_model=StoreAudit,
    response_description="The findings.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.ADMIN, all_topics=True)
async def audit_store(request: CurrentRequest) -> StoreAudit:
    check = request.engine.consistency.check_store()
    return audit_responses.store_audit(await request.incoming.cancel_on_disconnect(check))


@router.post(
    "/repair",
    operation_id="repair_store",
    summary="Audit and repair the store",
    description="Like the audit, but renames store keys of the wrong type. To repair a topic that is missing from the "
    "list, repair that topic. The API key must match all topics.",
    response_model=StoreAudit,
    response_description="The repaired findings.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN, all_topics=True)
async def repair_store(request: CurrentRequest, _body: EmptyBody = EMPTY_BODY) -> StoreAudit:
    check = request.engine.consistency.check_store(repair=True)
    return audit_responses.store_audit(await request.incoming.cancel_on_disconnect(check))

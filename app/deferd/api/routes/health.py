"""For operators: health, readiness, metrics, and the consistency check of the whole store."""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse, Response

from deferd.api import audit_responses, metrics
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.contract.errors import StoreUnavailable
from deferd.contract.operations import health as operations
from deferd.contract.responses.audits import StoreAudit
from deferd.contract.responses.health import Health

router = OperationRouter()

_OK = Health(status="ok")
_PING_TIMEOUT_S = 2.0


@router.serves(operations.CHECK_HEALTH)
async def check_health() -> Health:
    return _OK


@router.serves(operations.CHECK_READINESS)
async def check_readiness(request: CurrentRequest) -> Health:
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await request.engine.ping()
    except TimeoutError as error:
        raise StoreUnavailable("the store did not respond in time") from error
    return _OK


@router.serves(operations.GET_METRICS, all_topics=True, response_class=PlainTextResponse)
async def get_metrics(request: CurrentRequest) -> Response:
    text = await metrics.exposition(request.engine, request.app.settings.max_topic_labels)
    return Response(text, headers={"content-type": metrics.CONTENT_TYPE})


@router.serves(operations.AUDIT_STORE, all_topics=True)
async def audit_store(request: CurrentRequest) -> StoreAudit:
    check = request.engine.consistency.audit_store()
    return audit_responses.store_audit(await request.incoming.cancel_on_disconnect(check))


@router.serves(operations.REPAIR_STORE, all_topics=True)
async def repair_store(request: CurrentRequest, _body: EmptyBody = EMPTY_BODY) -> StoreAudit:
    check = request.engine.consistency.audit_store(repair=True)
    return audit_responses.store_audit(await request.incoming.cancel_on_disconnect(check))

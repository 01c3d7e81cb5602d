"""Pushed topics: set, show, remove and test a push."""

from __future__ import annotations

from typing import Any, NoReturn

from starlette.responses import Response

from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.recorded_values import Unshown, host_of, names_of, values_before
from deferd.api.responses import JsonResponse, whole
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.model import Topic
from deferd.contract.operations import push as contract
from deferd.contract.operations.push import SetPush
from deferd.contract.push_targets import TargetRefused
from deferd.engine.push_store import PushDefinition

router = OperationRouter()


def _refuse(refused: TargetRefused) -> NoReturn:
    raise InvalidInput([FieldError(("body", "url"), str(refused))]) from None  # the URL may have secrets


@router.serves(contract.SET_PUSH, responses={200: {"model": contract.Push, "description": "The push was replaced."}})
async def set_push(request: CurrentRequest, topic: Topic, push: SetPush) -> Response:
    try:
        request.app.targets.check_url(push.url)
    except TargetRefused as refused:
        _refuse(refused)
    request.was = await values_before(_recorded_before(request, topic))
    is_new = await request.engine.push.set(topic, push)
    stored = await request.engine.push.get(topic)
    request.now = _recorded(stored)
    return JsonResponse(_shown(stored), 201 if is_new else 200)


@router.serves(contract.GET_PUSH)
async def get_push(request: CurrentRequest, topic: Topic) -> contract.Push:
    return _shown(await request.engine.push.get(topic))


@router.serves(contract.REMOVE_PUSH)
async def remove_push(request: CurrentRequest, topic: Topic) -> contract.RemovedPush:
    request.was = await values_before(_recorded_before(request, topic))
    await request.engine.push.remove(topic)
    return contract.RemovedPush(topic=topic, removed=True)


@router.serves(contract.TEST_PUSH)
async def send_test_push(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> contract.TestedPush:
    definition = await request.engine.push.get(topic)
    pushers = request.app.pushers
    try:
        request.app.targets.check_url(definition.push.url)
    except TargetRefused as refused:
        _refuse(refused)
    if pushers is None:
        raise InvalidInput([FieldError(("path", "topic"), "cannot be tested: this service is stopping", topic)])
    result = await request.incoming.cancel_on_disconnect(pushers.test(definition))
    return contract.TestedPush(
        message_id=result.message_id,
        took=round(result.took_s, 3),
        status=result.status,
        response=result.excerpt,
        error=result.error,
    )


def _shown(stored: PushDefinition) -> contract.Push:
    """Secrets, and the values of headers, are never shown."""
    push = stored.push
    return contract.Push(
        topic=stored.topic,
        url=push.url,
        secret_count=len(stored.secrets),
        timeout=whole(push.timeout),
        max_in_flight=push.max_in_flight,
        rate=None if push.rate is None else whole(push.rate),
        header_names=sorted(push.headers),
        mode=push.mode,
    )


async def _recorded_before(request: RequestContext, topic: str) -> dict[str, Any]:
    return _recorded(await request.engine.push.get(topic))


def _recorded(stored: PushDefinition) -> dict[str, Any]:
    """What the list of changes says of a push."""
    push, secrets = stored.push, stored.secrets
    return {
        "url": host_of(push.url),
        "secrets": Unshown("1 secret" if len(secrets) == 1 else f"{len(secrets)} secrets", list(secrets)),
        "timeout": push.timeout,
        "max_in_flight": push.max_in_flight,
        "rate": push.rate,
        "headers": names_of(push.headers),
        "mode": push.mode,
    }

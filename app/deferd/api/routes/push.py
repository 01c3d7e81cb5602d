"""Pushed topics: set, show, remove and test a push."""

from __future__ import annotations

from typing import NoReturn

from starlette.responses import Response

from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.response_models import model_of
from deferd.api.response_values import whole
from deferd.api.responses import JsonResponse
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.model import Topic
from deferd.contract.operations import push as operations
from deferd.contract.push import SetPush
from deferd.contract.push_targets import TargetRefused
from deferd.contract.responses import push as responses
from deferd.engine.push.push_definition import PushDefinition

router = OperationRouter()


def _refuse(refused: TargetRefused) -> NoReturn:
    raise InvalidInput([FieldError(("body", "url"), str(refused))]) from None  # the URL may have secrets


@router.serves(
    operations.SET_PUSH, responses={200: {"model": model_of(responses.Push), "description": "The push was replaced."}}
)
async def set_push(request: CurrentRequest, topic: Topic, push: SetPush) -> Response:
    try:
        request.app.targets.check_url(push.url)
    except TargetRefused as refused:
        _refuse(refused)
    is_new = await request.engine.push.set(topic, push)
    return JsonResponse(_shown(await request.engine.push.get(topic)), 201 if is_new else 200)


@router.serves(operations.GET_PUSH)
async def get_push(request: CurrentRequest, topic: Topic) -> responses.Push:
    return _shown(await request.engine.push.get(topic))


@router.serves(operations.REMOVE_PUSH)
async def remove_push(request: CurrentRequest, topic: Topic) -> responses.RemovedPush:
    await request.engine.push.remove(topic)
    return responses.RemovedPush(topic=topic, removed=True)


@router.serves(operations.TEST_PUSH)
async def send_test_push(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> responses.TestedPush:
    definition = await request.engine.push.get(topic)
    pushers = request.app.pushers
    try:
        request.app.targets.check_url(definition.push.url)
    except TargetRefused as refused:
        _refuse(refused)
    if pushers is None:
        raise InvalidInput([FieldError(("path", "topic"), "cannot be tested: this service is stopping", topic)])
    result = await request.incoming.cancel_on_disconnect(pushers.test(definition))
    return responses.TestedPush(
        message_id=result.message_id,
        took=round(result.took_s, 3),
        status=result.status,
        response=result.excerpt,
        error=result.error,
    )


def _shown(stored: PushDefinition) -> responses.Push:
    """Secrets, and the values of headers, are never shown."""
    push = stored.push
    return responses.Push(
        topic=stored.topic,
        url=push.url,
        secret_count=len(stored.secrets),
        timeout=whole(push.timeout),
        max_in_flight=push.max_in_flight,
        rate=None if push.rate is None else whole(push.rate),
        header_names=sorted(push.headers),
        mode=push.mode,
    )

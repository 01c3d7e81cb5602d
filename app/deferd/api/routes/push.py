"""Pushed topics: set, show, remove and test a push."""

from __future__ import annotations

from typing import NoReturn

from fastapi import APIRouter
from starlette.responses import Response

from deferd.api import push_json
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import EMPTY_BODY, EmptyBody, Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.response_models import model_of
from deferd.api.responses import JsonResponse
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.model import Topic
from deferd.contract.push import SetPush
from deferd.contract.push_targets import TargetRefused
from deferd.contract.responses import push as responses

router = APIRouter(route_class=Operation, tags=["push"])


def _refuse(refused: TargetRefused) -> NoReturn:
    raise InvalidInput([FieldError(("body", "url"), str(refused))]) from None  # the URL may have secrets


@router.put(
    "/topics/{topic}/push",
    operation_id="set_push",
    summary="Push a topic's jobs",
    description="From now on the service sends each ready job of the topic to `url` as a POST that is signed as in "
    "Standard Webhooks, and nobody can pop them: waiting and new pops of the topic get 409 `topic_pushed`. Status 2xx "
    "finishes the job; a JSON response of at most 64 KiB is its result. 202 leaves it to the receiver, which finishes "
    "it by its receipt before its `ttr` ends. 429 and 503 with Retry-After snooze it, 410 buries it, and anything else "
    "releases it with an error. The target must be allowed by the service's `--push-allow`. A push that is set again "
    "is replaced; without `secrets` it keeps those that it has.",
    status_code=201,
    response_model=responses.Push,
    response_description="The topic was not pushed before.",
    responses={
        200: {"model": model_of(responses.Push), "description": "The push was replaced."},
        **error_responses("validation", "store_unavailable", body=True),
    },
)
@requires(Scope.ADMIN)
async def set_push(request: CurrentRequest, topic: Topic, push: SetPush) -> Response:
    try:
        request.app.targets.check_url(push.url)
    except TargetRefused as refused:
        _refuse(refused)
    is_new = await request.engine.push.set(topic, push)
    return JsonResponse(push_json.definition(await request.engine.push.get(topic)), 201 if is_new else 200)


@router.get(
    "/topics/{topic}/push",
    operation_id="get_push",
    summary="Get a topic's push",
    description="Returns how the jobs of the topic are pushed, without secrets and without the values of headers. The "
    "state of its target is in `GET /topics/{topic}`.",
    response_model=responses.Push,
    response_description="The push.",
    responses=error_responses("push_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN)
async def get_push(request: CurrentRequest, topic: Topic) -> responses.Push:
    return push_json.definition(await request.engine.push.get(topic))


@router.delete(
    "/topics/{topic}/push",
    operation_id="remove_push",
    summary="Stop pushing a topic's jobs",
    description="Consumers can pop the jobs again. Requests under way end as they would.",
    response_model=responses.RemovedPush,
    response_description="The jobs are not pushed any more.",
    responses=error_responses("push_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN)
async def remove_push(request: CurrentRequest, topic: Topic) -> responses.RemovedPush:
    await request.engine.push.remove(topic)
    return responses.RemovedPush(topic=topic, removed=True)


@router.post(
    "/topics/{topic}/push/test",
    operation_id="test_push",
    summary="Send a test to a topic's target",
    description='Sends a signed request with the header `deferd-test: true` and the body `{"test": true, '
    '"topic": ...}`, and returns what the target responded. It concerns no job, and does not count for the circuit.',
    response_model=responses.TestedPush,
    response_description="What the target responded.",
    responses=error_responses("push_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
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
    return push_json.test_result(result)

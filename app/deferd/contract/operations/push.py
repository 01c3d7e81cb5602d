"""Pushed topics: set, show, remove and test a push."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import push as responses
from deferd.contract.scopes import Scope

SET_PUSH = Operation(
    "set_push",
    "PUT",
    "/topics/{topic}/push",
    tag="push",
    scope=Scope.ADMIN,
    summary="Push a topic's jobs",
    description=(
        "From now on the service sends each ready job of the topic to `url` as a POST that is signed as in Standard "
        "Webhooks, and nobody can pop them: waiting and new pops of the topic get 409 `topic_pushed`. Status 2xx "
        "finishes the job; a JSON response of at most 64 KiB is its result. 202 leaves it to the receiver, which "
        "finishes it by its receipt before its `ttr` ends. 429 and 503 with Retry-After snooze it, 410 buries it, "
        "and anything else releases it with an error. The target must be allowed by the service's `--push-allow`. A "
        "push that is set again is replaced; without `secrets` it keeps those that it has."
    ),
    response=responses.Push,
    response_description="The topic was not pushed before.",
    status=201,
    done="set push",
)
GET_PUSH = Operation(
    "get_push",
    "GET",
    "/topics/{topic}/push",
    tag="push",
    scope=Scope.ADMIN,
    summary="Get a topic's push",
    description=(
        "Returns how the jobs of the topic are pushed, without secrets and without the values of headers. The "
        "state of its target is in `GET /topics/{topic}`."
    ),
    response=responses.Push,
    response_description="The push.",
    errors=("push_not_found",),
)
REMOVE_PUSH = Operation(
    "remove_push",
    "DELETE",
    "/topics/{topic}/push",
    tag="push",
    scope=Scope.ADMIN,
    summary="Stop pushing a topic's jobs",
    description="Consumers can pop the jobs again. Requests under way end as they would.",
    response=responses.RemovedPush,
    response_description="The jobs are not pushed any more.",
    errors=("push_not_found",),
    repeatable=False,
    done="removed push",
)
TEST_PUSH = Operation(
    "test_push",
    "POST",
    "/topics/{topic}/push/test",
    tag="push",
    scope=Scope.ADMIN,
    summary="Send a test to a topic's target",
    description=(
        'Sends a signed request with the header `deferd-test: true` and the body `{"test": true, '
        '"topic": ...}`, and returns what the target responded. It concerns no job, and does not count for the circuit.'
    ),
    response=responses.TestedPush,
    response_description="What the target responded.",
    errors=("push_not_found",),
    repeatable=False,
    done="tested push",
)

"""Large bodies are parsed outside the event loop, with the same result as small ones."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from starlette.types import Message

from deferd.api.app import create_app
from deferd.api.auth.admission import Admission
from deferd.api.context import RequestContext
from deferd.api.incoming_request import AsgiRequest
from deferd.api.operation import OperationRoute
from deferd.api.request_body import PARSED_IN_THE_LOOP_BYTES
from deferd.api.validation_errors import FIELD_ERRORS_MAX
from deferd.contract.errors import InvalidInput
from deferd.contract.model import PutBatch, PutJob
from deferd.settings import Settings

SERVICE = create_app(Settings(), "")
[PUT, PUT_MANY] = [
    route for route in SERVICE.routes if isinstance(route, OperationRoute) and route.name in ("put_job", "put_jobs")
]


class ObservedBinding(Admission):
    """Records in which thread the body was parsed, and the bound arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: threading.Thread | None = None
        self.arguments: dict[str, Any] = {}

    def check_value(self, _value: dict[str, Any]) -> None:
        self.thread = threading.current_thread()


async def bind(operation: OperationRoute, value: Any, binding: ObservedBinding | None = None) -> ObservedBinding:
    raw = json.dumps(value).encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": raw}

    binding = binding or ObservedBinding()
    scope = {"method": "POST", "query_string": b"", "headers": []}
    request = AsgiRequest(scope, receive, {}, Settings().max_body_bytes)
    binding.arguments = await operation.bind(RequestContext(SERVICE.context, request, binding))
    return binding


async def refused(operation: OperationRoute, value: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        await bind(operation, value)
    return caught.value


def padded(job: dict[str, Any], size: int) -> dict[str, Any]:
    return job | {"body": "x" * size}


async def test_a_small_body_is_parsed_in_the_event_loop_and_a_large_one_is_not() -> None:
    small, large = {"topic": "t"}, padded({"topic": "t"}, PARSED_IN_THE_LOOP_BYTES)
    assert (await bind(PUT, small)).thread is threading.main_thread()
    binding = await bind(PUT, large)
    assert binding.thread is not None
    assert binding.thread is not threading.main_thread()
    assert binding.arguments["job"] == PutJob(**large)


async def test_the_event_loop_goes_on_while_a_large_body_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    is_parsing, may_go_on = threading.Event(), threading.Event()

    def wait_for_the_loop(_binding: ObservedBinding, _value: dict[str, Any]) -> None:
        is_parsing.set()
        assert may_go_on.wait(10)

    monkeypatch.setattr(ObservedBinding, "check_value", wait_for_the_loop)
    binding = asyncio.create_task(bind(PUT, padded({"topic": "t"}, PARSED_IN_THE_LOOP_BYTES)))
    assert await asyncio.to_thread(is_parsing.wait, 10)
    assert not binding.done()
    may_go_on.set()
    await binding


async def test_a_large_batch_is_bound_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [padded({"topic": "t", "delay": number, "tags": ["x"]}, 1000) for number in range(300)]
    assert PUT_MANY._body is not None
    monkeypatch.setattr(PUT_MANY, "_body", PUT_MANY._body._replace(decode=None))  # the models bind it
    bound = (await bind(PUT_MANY, {"jobs": jobs})).arguments["batch"]
    assert bound == PutBatch.model_validate({"jobs": jobs})


async def test_errors_of_a_large_batch_are_listed_like_those_of_a_small_one() -> None:
    jobs = [padded({"topic": "t"}, 1000) for _ in range(300)]
    jobs[7]["delay"] = -1
    jobs[299]["backoff"] = {"kind": "fixed", "seconds": "x"}
    large = await refused(PUT_MANY, {"jobs": jobs, "more": 1})
    named = {field_error.path: field_error.message for field_error in large.field_errors}
    assert named == {
        ("body", "jobs", 7, "delay"): "must be at least 0 seconds",
        ("body", "jobs", 299, "backoff", "seconds"): "must be a number of seconds",
        ("body", "more"): "is not a known field",
    }


@pytest.mark.parametrize("jobs", [{}, [], [0] * 100_000, [{"topic": "t"}] * 1001])
async def test_a_large_batch_of_the_wrong_shape_is_refused(jobs: Any) -> None:
    error = await refused(PUT_MANY, {"jobs": jobs, "x" * PARSED_IN_THE_LOOP_BYTES: 1})
    assert ("body", "jobs") in [field_error.path for field_error in error.field_errors]


async def test_very_many_errors_of_a_large_batch_are_not_listed() -> None:
    job = {"topic": "t"} | {f"{number}": 0 for number in range(60)}
    error = await refused(PUT_MANY, {"jobs": [job] * 1000})
    [field_error] = error.field_errors
    assert field_error.message == f"has more than {FIELD_ERRORS_MAX} invalid values, too many to list"

"""Errors as RFC 9457 problem documents."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from deferd.api import problem_details
from deferd.api.responses import JsonResponse
from deferd.api.unsent_bytes import TooManyUnsentBytes
from deferd.client import CallFailed
from deferd.contract import errors
from deferd.contract.errors import FieldError, InvalidInput
from deferd.engine.event_streams import TooManyStreams

_CONTRACT = {
    "validation": 422,
    "job_exists": 409,
    "job_reserved": 409,
    "receipt_stale": 409,
    "job_not_found": 404,
    "topic_not_found": 404,
    "calendar_not_found": 404,
    "task_not_found": 404,
    "job_cancelled": 410,
    "payload_too_large": 413,
    "topic_full": 429,
    "rate_limited": 429,
    "unauthorized": 401,
    "forbidden": 403,
    "store_unavailable": 503,
}
_ONE_OF_EACH: list[errors.DeferdError] = [
    InvalidInput([FieldError(("body",), "must be a JSON object")]),
    errors.PayloadTooLarge(1024),
    errors.Unauthorized(),
    errors.Forbidden(),
    errors.JobNotFound("t", "j"),
    errors.TopicNotFound("t"),
    errors.ScheduleNotFound("s"),
    errors.ScheduleExists("s"),
    errors.CalendarNotFound("c"),
    errors.TaskNotFound("t"),
    errors.PushNotFound("t"),
    errors.TopicPushed("t"),
    errors.JobExists("t", "j"),
    errors.JobReserved("t", "j"),
    errors.ReceiptStale("t", "j"),
    errors.JobCancelled("t", "j"),
    errors.DurabilityUnavailable("replicated:1", ["memory"], "there are no replicas"),
    errors.DifferentShard("t", "it is in another shard"),
    errors.NotYetAvailable("field priority needs format 2 of the store"),
    errors.TooLate(),
    errors.TopicFull("t", 5),
    errors.RateLimited("too many requests", 7),
    errors.StoreUnavailable("the store does not respond"),
    problem_details.UnknownPath("/nowhere"),
    problem_details.MethodNotAllowed("PUT", ["GET", "POST"]),
    problem_details.UnsupportedMediaType("Content-Type is 'text/plain'"),
    problem_details.BadRequest(),
    problem_details.RequestTimeout(),
    problem_details.UriTooLong(),
    problem_details.HalfClosed(),
    problem_details.UnsupportedTransferCoding(),
    problem_details.HeadTooLarge(),
    problem_details.TooManyConnections("10 connections are open already"),
    TooManyStreams("this process serves 100 streams of events already"),
    TooManyUnsentBytes("clients have not read 10 bytes of their responses"),
]


def members_of(response: JsonResponse) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(bytes(response.body))
    return members


def json_of(error: FieldError) -> dict[str, Any]:
    shown: dict[str, Any] = members_of(problem_details.response(InvalidInput([error])))["errors"][0]
    return shown


def leaves(root: type[errors.DeferdError]) -> Iterator[type[errors.DeferdError]]:
    """All subclasses of `root` that have no subclasses."""
    below = root.__subclasses__()
    if not below:
        yield root
    for kind in below:
        yield from leaves(kind)


def test_every_leaf_error_has_a_row() -> None:
    assert set(leaves(errors.DeferdError)) - set(leaves(CallFailed)) == problem_details.ROWS.keys()


def test_every_leaf_error_is_tested_here() -> None:
    assert {type(error) for error in _ONE_OF_EACH} == problem_details.ROWS.keys()


def test_statuses_are_those_of_the_design() -> None:
    assert {code: problem_details.BY_CODE[code].status for code in _CONTRACT} == _CONTRACT


def test_a_problem_has_all_members() -> None:
    for error in _ONE_OF_EACH:
        response = problem_details.response(error)
        members = members_of(response)
        assert response.headers["content-type"] == "application/problem+json"
        assert members["type"] == f"urn:problem-type:deferd:{error.code}"
        assert members["code"] == error.code
        assert members["status"] == response.status_code
        assert members["title"], error
        assert members["detail"], error


def test_only_429_and_503_have_a_retry_after() -> None:
    for response in map(problem_details.response, _ONE_OF_EACH):
        assert ("retry-after" in response.headers) is (response.status_code in {429, 503}), response.body


def test_retry_after_is_a_whole_number_of_seconds() -> None:
    assert problem_details.response(errors.RateLimited("too many requests", 7)).headers["retry-after"] == "7"


def test_a_problem_has_the_facts_of_its_error() -> None:
    assert members_of(problem_details.response(errors.JobExists("orders", "o-1"))) == {
        "type": "urn:problem-type:deferd:job_exists",
        "title": "The id is taken",
        "status": 409,
        "detail": "topic 'orders' already has a job 'o-1'",
        "code": "job_exists",
        "topic": "orders",
        "id": "o-1",
    }
    refused = members_of(problem_details.response(errors.DurabilityUnavailable("fsync", ["memory"], "it is off")))
    assert (refused["durability"], refused["available"]) == ("fsync", ["memory"])
    assert members_of(problem_details.response(errors.JobReserved("orders", "o-1", "fsync")))["durability"] == "fsync"
    assert members_of(problem_details.response(errors.PayloadTooLarge(1024)))["limit_bytes"] == 1024
    assert members_of(problem_details.response(errors.TopicFull("orders", 5)))["max_jobs"] == 5


def test_a_wrong_method_gets_the_allowed_ones() -> None:
    error = problem_details.MethodNotAllowed("PUT", ["GET", "POST"])
    assert problem_details.response(error).headers["allow"] == "GET, POST"


def test_a_field_error_has_field_pointer_and_value() -> None:
    shown = json_of(FieldError(("body", "jobs", 3, "delay"), "must be at least 0 seconds", -1))
    assert shown == {
        "field": "body.jobs.3.delay",
        "message": "must be at least 0 seconds",
        "value": -1,
        "pointer": "#/jobs/3/delay",
    }


def test_only_errors_in_a_body_have_a_pointer() -> None:
    assert json_of(FieldError(("query", "wait"), "must be at most 60 seconds", "61")) == {
        "field": "query.wait",
        "message": "must be at most 60 seconds",
        "value": "61",
    }


def test_a_pointer_is_escaped() -> None:
    assert json_of(FieldError(("body", "a/b~c"), "is not a known field"))["pointer"] == "#/a~1b~0c"


def test_a_long_string_is_cut() -> None:
    assert json_of(FieldError(("body", "topic"), "is long", "x" * 1000))["value"] == "x" * 100 + "…"


def test_a_long_field_name_is_cut() -> None:
    assert json_of(FieldError(("body", "x" * 1000), "is not a known field"))["field"] == "body." + "x" * 100 + "…"


@pytest.mark.parametrize("value", [list(range(1000)), 10**400, {"deep": "x" * 200}], ids=["list", "number", "object"])
def test_a_large_value_is_omitted(value: Any) -> None:
    assert "value" not in json_of(FieldError(("body", "topic"), "must be a string", value))


def test_a_hundred_errors_are_listed_and_the_rest_counted() -> None:
    field_errors = [FieldError(("body", "jobs", index), "must be a JSON object", index) for index in range(150)]
    members = members_of(problem_details.response(InvalidInput(field_errors)))
    assert len(members["errors"]) == 100
    assert members["detail"] == "body.jobs.0 must be a JSON object (and 149 more)"


def test_an_unexpected_error_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = problem_details.internal_error_response(RuntimeError("the password is 1234"))
    assert response.status_code == 500
    assert members_of(response)["code"] == "internal_error"
    assert "1234" not in bytes(response.body).decode()
    assert "the password is 1234" in caplog.text

"""Errors as RFC 9457 problem documents."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from deferd.api import problem_details
from deferd.api.responses import JsonResponse
from deferd.client import CallFailed, Undecryptable
from deferd.contract import errors
from deferd.contract.errors import FieldError, InvalidInput
from tests.unit.errors_of_each_kind import OF_HTTP, OF_THE_CONTRACT

_ONE_OF_EACH = [*OF_THE_CONTRACT, *OF_HTTP]


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
    of_clients = {*leaves(CallFailed), Undecryptable}
    assert set(leaves(errors.DeferdError)) - of_clients == problem_details.ROWS.keys()


def test_every_leaf_error_is_tested_here() -> None:
    assert {type(error) for error in _ONE_OF_EACH} == problem_details.ROWS.keys()


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
    ended = errors.JobExists("orders", "o-1", state="finished", until_ms=1_000_000)
    assert str(ended).endswith("job 'o-1', which is finished and keeps the id until 1970-01-01T00:16:40Z")


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

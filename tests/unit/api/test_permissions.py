"""The permission that each operation requires."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Route

from deferd.api.app import create_app
from deferd.api.auth.api_keys import Key
from deferd.api.auth.permissions import Permission
from deferd.api.operation import OperationRoute
from deferd.contract.model import PutBatch, PutJob
from deferd.contract.scopes import Scope
from deferd.contract.topic_patterns import TopicPatterns
from deferd.settings import Settings
from tests.openapi_document import openapi_document

ROUTES = create_app(Settings(test_clock=True), "").routes
OPERATIONS = {
    operation.permission.operation: operation for operation in ROUTES if isinstance(operation, OperationRoute)
}
NOT_IN_THE_DOCUMENT = {"GET /testing/clock": "admin", "POST /testing/clock": "admin"}


def scopes_of_the_document() -> dict[str, str | None]:
    """By method and path: what the OpenAPI document in the repository says, which people read when it changes."""
    paths = openapi_document()["paths"]
    securities = {
        f"{method.upper()} {path}": operation["security"]
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    return {name: security[0]["key"][0] if security else None for name, security in securities.items()}


def key(*patterns: str) -> Key:
    return Key("k", b"", frozenset(Scope), TopicPatterns(patterns))


def denied_topic(name: str, arguments: dict[str, Any], *patterns: str) -> str | None:
    return OPERATIONS[name].permission.denied_topic(key(*patterns), arguments)


def test_every_operation_requires_the_scope_that_the_document_names() -> None:
    wanted = scopes_of_the_document() | NOT_IN_THE_DOCUMENT
    assert {name: operation.permission.scope for name, operation in OPERATIONS.items()} == wanted
    assert {name for name, scope in wanted.items() if scope is None} == {"GET /healthz", "GET /readyz"}


def test_what_is_audited_is_in_the_list_of_changes_too() -> None:
    audited = [operation.permission for operation in OPERATIONS.values() if operation.permission.is_audited]
    assert [permission.operation for permission in audited if permission.recorded is None] == []


def test_every_change_but_what_consumers_do_is_in_the_list_of_changes() -> None:
    changes = [operation.permission for operation in OPERATIONS.values() if operation.methods != {"GET"}]
    missing = {it.operation for it in changes if it.recorded is None and it.scope is not Scope.POP}
    assert missing == {"POST /jobs/batch", "POST /schedules/preview"}


def test_changes_of_single_jobs_are_in_the_list_only_if_people_make_them() -> None:
    recorded = {name: operation.permission.recorded for name, operation in OPERATIONS.items()}
    ways = {name: it.via for name, it in recorded.items() if it is not None}
    assert ways["POST /jobs"] == {"console"}
    by_people = frozenset(("console", "cli"))
    assert ways["POST /topics/{topic}/cancel"] == by_people
    assert {via for name, via in ways.items() if "/jobs/{topic}/{id}" in name} == {by_people}


def test_every_other_route_is_a_page() -> None:
    """The gate requires scope read for each of them."""
    pages = {route.path for route in ROUTES if isinstance(route, Route) and not isinstance(route, OperationRoute)}
    assert {path.partition("/docs")[0] or "/docs" for path in pages} == {"/openapi.json", "/docs"}


def test_a_path_with_a_topic_requires_a_key_for_it() -> None:
    for name, operation in OPERATIONS.items():
        if "{topic}" in name:
            assert operation.permission.denied_topic(key("a.*"), {"topic": "b"}) == "b", name
            assert operation.permission.denied_topic(key("a.*"), {"topic": "a.b"}) is None, name


def test_a_pop_requires_a_key_for_each_of_its_topics() -> None:
    assert denied_topic("GET /topics/{topic}/pop", {"topic": "a,b,c"}, "a", "c") == "b"
    assert denied_topic("GET /topics/{topic}/pop", {"topic": "a,c"}, "a", "c") is None


def test_a_put_requires_a_key_for_the_topic_of_each_job() -> None:
    jobs = [PutJob(topic="a"), PutJob(topic="b")]
    assert denied_topic("POST /jobs", {"job": jobs[1]}, "a") == "b"
    assert denied_topic("POST /jobs", {"job": jobs[0]}, "a") is None
    assert denied_topic("POST /jobs/batch", {"batch": PutBatch(jobs=jobs)}, "a") == "b"
    assert denied_topic("POST /jobs/batch", {"batch": PutBatch(jobs=jobs)}, "a", "b") is None


@pytest.mark.parametrize("name", ["GET /metrics", "GET /audit", "POST /repair"])
def test_an_operation_on_all_topics_requires_a_key_for_them(name: str) -> None:
    assert denied_topic(name, {}, "a*") == "*"
    assert denied_topic(name, {}, "*") is None


def test_a_key_for_all_topics_is_never_denied_one() -> None:
    assert Permission(Scope.READ).denied_topic(key("a", "*"), {"topic": "b"}) is None

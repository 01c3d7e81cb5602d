"""The permission that each operation requires: the whole table."""

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

ROUTES = create_app(Settings(test_clock=True), "").routes
OPERATIONS = {
    operation.permission.operation: operation for operation in ROUTES if isinstance(operation, OperationRoute)
}
TABLE = {
    "POST /jobs": "put",
    "POST /jobs/batch": "put",
    "PATCH /jobs/{topic}/{id}": "put",
    "DELETE /jobs/{topic}/{id}": "cancel",
    "POST /topics/{topic}/cancel": "cancel",
    "POST /jobs/cancel": "cancel",
    "POST /jobs/reschedule": "put",
    "GET /jobs/{topic}/{id}": "read",
    "GET /topics": "read",
    "GET /topics/{topic}": "read",
    "GET /topics/{topic}/jobs": "read",
    "GET /jobs/{topic}/{id}/why": "read",
    "GET /consumers": "read",
    "GET /activity": "read",
    "GET /tasks": "read",
    "GET /tasks/{id}": "read",
    "DELETE /tasks/{id}": "cancel",
    "GET /dead": "read",
    "GET /events": "read",
    "GET /events/latest": "read",
    "GET /forecast": "read",
    "GET /history": "read",
    "GET /topics/{topic}/history": "read",
    "GET /now": "read",
    "GET /overview": "read",
    "GET /key": "read",
    "GET /system": "read",
    "GET /metrics": "read",
    "GET /calendars": "read",
    "GET /calendars/{name}": "read",
    "PUT /calendars/{name}": "admin",
    "DELETE /calendars/{name}": "admin",
    "GET /topics/{topic}/pop": "pop",
    "POST /topics/{topic}/pop": "pop",
    "POST /topics/{topic}/finish": "pop",
    "POST /topics/{topic}/check": "pop",
    "POST /topics/{topic}/return": "pop",
    "POST /jobs/{topic}/{id}/finish": "pop",
    "POST /jobs/{topic}/{id}/release": "pop",
    "POST /jobs/{topic}/{id}/touch": "pop",
    "POST /jobs/{topic}/{id}/bury": "pop",
    "PUT /topics/{topic}": "admin",
    "PUT /topics/{topic}/push": "admin",
    "GET /topics/{topic}/push": "admin",
    "DELETE /topics/{topic}/push": "admin",
    "POST /topics/{topic}/push/test": "admin",
    "DELETE /topics/{topic}": "admin",
    "POST /topics/{topic}/pause": "admin",
    "POST /topics/{topic}/resume": "admin",
    "POST /topics/{topic}/redrive": "admin",
    "GET /topics/{topic}/audit": "admin",
    "POST /topics/{topic}/repair": "admin",
    "GET /audit": "admin",
    "POST /repair": "admin",
    "PUT /schedules/{name}": "put",
    "GET /schedules": "read",
    "GET /schedules/{name}": "read",
    "DELETE /schedules/{name}": "put",
    "POST /schedules/{name}/pause": "put",
    "POST /schedules/{name}/resume": "put",
    "POST /schedules/{name}/run": "put",
    "GET /schedules/{name}/preview": "read",
    "POST /schedules/preview": "read",
    "GET /testing/clock": "admin",
    "POST /testing/clock": "admin",
    "GET /healthz": None,
    "GET /readyz": None,
}


def key(*patterns: str) -> Key:
    return Key("k", b"", frozenset(Scope), TopicPatterns(patterns))


def denied_topic(name: str, arguments: dict[str, Any], *patterns: str) -> str | None:
    return OPERATIONS[name].permission.denied_topic(key(*patterns), arguments)


def test_every_operation_requires_its_scope() -> None:
    assert {name: operation.permission.scope for name, operation in OPERATIONS.items()} == TABLE


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

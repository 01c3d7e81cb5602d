"""Every call says what key it needs: this is the whole table."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import Route

from deferd.api.app import create_app
from deferd.api.auth.api_keys import Key, Scope, TopicPatterns
from deferd.api.auth.permissions import Need
from deferd.api.operation import Operation
from deferd.contract.model import PutBatch, PutJob
from deferd.settings import Settings

ROUTES = create_app(Settings(test_clock=True), "").routes
OPERATIONS = {operation.what: operation for operation in ROUTES if isinstance(operation, Operation)}
TABLE = {
    "POST /jobs": "put",
    "POST /jobs/batch": "put",
    "PATCH /jobs/{topic}/{id}": "put",
    "DELETE /jobs/{topic}/{id}": "cancel",
    "GET /jobs/{topic}/{id}": "read",
    "GET /topics": "read",
    "GET /topics/{topic}": "read",
    "GET /topics/{topic}/jobs": "read",
    "GET /metrics": "read",
    "GET /topics/{topic}/pop": "pop",
    "POST /topics/{topic}/pop": "pop",
    "POST /topics/{topic}/finish": "pop",
    "POST /jobs/{topic}/{id}/finish": "pop",
    "POST /jobs/{topic}/{id}/release": "pop",
    "POST /jobs/{topic}/{id}/touch": "pop",
    "POST /jobs/{topic}/{id}/bury": "pop",
    "PUT /topics/{topic}": "admin",
    "DELETE /topics/{topic}": "admin",
    "POST /topics/{topic}/pause": "admin",
    "POST /topics/{topic}/resume": "admin",
    "POST /topics/{topic}/redrive": "admin",
    "GET /topics/{topic}/audit": "admin",
    "POST /topics/{topic}/repair": "admin",
    "GET /audit": "admin",
    "POST /repair": "admin",
    "GET /testing/clock": "admin",
    "POST /testing/clock": "admin",
    "GET /healthz": None,
    "GET /readyz": None,
}


def key(*patterns: str) -> Key:
    return Key("k", b"", frozenset(Scope), TopicPatterns(patterns))


def out_of_reach(what: str, given: dict[str, Any], *patterns: str) -> str | None:
    return OPERATIONS[what].need.topic_out_of_reach(key(*patterns), given)


def test_every_call_has_its_scope() -> None:
    assert {what: operation.need.scope for what, operation in OPERATIONS.items()} == TABLE


def test_what_is_no_operation_is_a_page() -> None:
    """The gate takes each of them for a page, which needs scope read."""
    pages = {route.path for route in ROUTES if isinstance(route, Route) and not isinstance(route, Operation)}
    assert {path.partition("/docs")[0] or "/docs" for path in pages} == {"/openapi.json", "/docs"}


def test_a_call_that_says_nothing_is_none() -> None:
    async def nothing_said() -> None: ...

    with pytest.raises(TypeError, match="say what key it needs"):
        Operation("/x", nothing_said)


def test_a_path_with_a_topic_needs_a_key_for_it() -> None:
    for what, operation in OPERATIONS.items():
        if "{topic}" in what:
            assert operation.need.topic_out_of_reach(key("a.*"), {"topic": "b"}) == "b", what
            assert operation.need.topic_out_of_reach(key("a.*"), {"topic": "a.b"}) is None, what


def test_a_pop_needs_a_key_for_each_of_its_topics() -> None:
    assert out_of_reach("GET /topics/{topic}/pop", {"topic": "a,b,c"}, "a", "c") == "b"
    assert out_of_reach("GET /topics/{topic}/pop", {"topic": "a,c"}, "a", "c") is None


def test_a_put_needs_a_key_for_the_topic_of_each_job() -> None:
    jobs = [PutJob(topic="a"), PutJob(topic="b")]
    assert out_of_reach("POST /jobs", {"job": jobs[1]}, "a") == "b"
    assert out_of_reach("POST /jobs", {"job": jobs[0]}, "a") is None
    assert out_of_reach("POST /jobs/batch", {"batch": PutBatch(jobs=jobs)}, "a") == "b"
    assert out_of_reach("POST /jobs/batch", {"batch": PutBatch(jobs=jobs)}, "a", "b") is None


@pytest.mark.parametrize("what", ["GET /metrics", "GET /audit", "POST /repair"])
def test_what_tells_of_all_topics_needs_a_key_for_them(what: str) -> None:
    assert out_of_reach(what, {}, "a*") == "*"
    assert out_of_reach(what, {}, "*") is None


def test_a_key_for_everything_reaches_everything() -> None:
    assert Need(Scope.READ).topic_out_of_reach(key("a", "*"), {"topic": "b"}) is None

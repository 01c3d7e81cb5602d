"""The HTTP API is what clients of the previous release use: nothing of its OpenAPI document has gone or has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from deferd.api.openapi.document import SERVERS
from tests.openapi_compatibility import incompatibilities
from tests.openapi_document import fields_that_may_be_null, openapi_document
from tests.previous_release import needs_history, openapi_document_of

_KINDS = "{'exponential': '#/components/schemas/ExponentialBackoff', 'fixed': '#/components/schemas/FixedBackoff', "
_KINDS += "'schedule': '#/components/schemas/ScheduleBackoff'}"
_WAS = f"discriminator is None, and was {{'propertyName': 'kind', 'mapping': {_KINDS}}}"
_IN_RUST = "in Rust a discriminator takes `kind` out of the object that needs it; what is sent stays the same"
IN_BACKOFFS = [
    f"{where} in {direction}{field}"
    for where, field in (("Backoff", ""), ("ScheduledJob", ", backoff"), ("TopicSettings", ", backoff"))
    for direction in ("requests", "responses")
]
ALLOWED: dict[str, str] = {
    **{f"{where}: {_WAS}": _IN_RUST for where in IN_BACKOFFS},
    f"document: servers is {SERVERS}, and was None": "generators warn without; each client still sets its own",
}
"""Changes since the previous release that break clients, as they are reported, each with the reason why it is made."""

Document = dict[str, Any]
Change = Callable[[Document], Any]


def operation(document: Document, name: str) -> Any:
    """The operation with this operationId."""
    return next(
        one
        for methods in document["paths"].values()
        for one in methods.values()
        if isinstance(one, dict) and one["operationId"] == name
    )


def schema(document: Document, name: str) -> Any:
    return document["components"]["schemas"][name]


def field(document: Document, of: str, name: str) -> Any:
    return schema(document, of)["properties"][name]


def parameter(document: Document, of: str, name: str) -> Any:
    return next(one for one in operation(document, of)["parameters"] if one["name"] == name)


def ok(document: Document, of: str) -> Any:
    return operation(document, of)["responses"]["200"]


def offer_null_as_now(previous: Document) -> None:
    """Remove null from optional fields of requests for which the document offers it no more: it is read all the same.

    There it means the same as to leave the field out, and each such field was an option in an option in Rust.
    """
    for of, name in fields_that_may_be_null():
        before = previous["components"]["schemas"].get(of, {"properties": {}})["properties"].get(name, {})
        kinds = [one for one in before.get("anyOf", ()) if one != {"type": "null"}]
        if len(kinds) == 1 and "anyOf" not in field(openapi_document(), of, name):
            before |= kinds[0]
            del before["anyOf"]


@needs_history
def test_a_client_of_the_previous_release_can_use_this_one() -> None:
    previous = openapi_document_of()
    offer_null_as_now(previous)
    found = incompatibilities(previous, openapi_document())
    assert sorted(found) == sorted(ALLOWED)


def nullable(of: str, name: str) -> Change:
    def change(document: Document) -> None:
        schema(document, of)["properties"][name] = {"anyOf": [field(document, of, name), {"type": "null"}]}

    return change


BREAKING: dict[str, tuple[Change, str]] = {
    "a path is removed": (lambda new: new["paths"].pop("/dead"), "/dead: the path is gone"),
    "a method is removed": (
        lambda new: new["paths"]["/jobs/{topic}/{id}"].pop("patch"),
        "PATCH /jobs/{topic}/{id}: the method is gone",
    ),
    "an operation of generated clients gets another name": (
        lambda new: operation(new, "put_job").update(operationId="put"),
        "POST /jobs: operationId is put, and was put_job",
    ),
    "a parameter is removed": (
        lambda new: operation(new, "list_dead_errors")["parameters"].pop(0),
        "GET /dead, query parameter topics: it is gone",
    ),
    "a parameter becomes required": (
        lambda new: parameter(new, "list_dead_errors", "topics").update(required=True),
        "GET /dead: the query parameter topics is required now",
    ),
    "a new parameter is required": (
        lambda new: operation(new, "list_dead_errors")["parameters"].append(
            {"in": "query", "name": "zone", "required": True, "schema": {"type": "string"}}
        ),
        "GET /dead: the query parameter zone is required now",
    ),
    "a request body becomes required": (
        lambda new: operation(new, "finish_job")["requestBody"].update(required=True),
        "POST /jobs/{topic}/{id}/finish: the request body is required now",
    ),
    "a field of a request is removed": (
        lambda new: schema(new, "PutJob")["properties"].pop("ttr"),
        "PutJob in requests: ttr is gone",
    ),
    "a field of a request may no longer be null": (
        lambda new: field(new, "PutJob", "ttl")["anyOf"].pop(),
        "PutJob in requests, ttl: the type is number, and was null",
    ),
    "a field of a request becomes required": (
        lambda new: schema(new, "PutJob")["required"].append("ttr"),
        "PutJob in requests: ttr is required now",
    ),
    "a field of a request gets another type": (
        lambda new: field(new, "CancelSelected", "limit").update(type="string"),
        "CancelSelected in requests, limit: the type is string, and was integer",
    ),
    "a bound of a request is tightened": (
        lambda new: field(new, "CancelSelected", "limit").update(maximum=1000),
        "CancelSelected in requests, limit: maximum is 1000, and was 100000",
    ),
    "a request gets a bound": (
        lambda new: field(new, "CancelItem", "id").update(maxLength=10),
        "CancelItem in requests, id: maxLength is 10, and was None",
    ),
    "a value of a request is removed": (
        lambda new: field(new, "CancelItem", "if_reserved")["enum"].remove("refuse"),
        "CancelItem in requests, if_reserved: the value 'refuse' is gone",
    ),
    "a field of a response is removed": (
        lambda new: schema(new, "Job")["properties"].pop("attempts"),
        "Job in responses: attempts is gone",
    ),
    "a field of a response may be absent": (
        lambda new: schema(new, "Job")["required"].remove("state"),
        "Job in responses: state may be absent now",
    ),
    "a field of a response may be null": (
        nullable("Job", "attempts"),
        "Job in responses, attempts: the type is null, and was integer",
    ),
    "a field of a response gets another type": (
        lambda new: field(new, "Job", "attempts").update(type="number"),
        "Job in responses, attempts: the type is number, and was integer",
    ),
    "a field of a response gets another format": (
        lambda new: field(new, "Job", "created_at").update(format="unix-time"),
        "Job in responses, created_at: format is unix-time, and was date-time",
    ),
    "an error code gets another name": (
        lambda new: schema(new, "ProblemCode")["x-extensible-enum"].remove("job_not_found"),
        "ProblemCode in responses: the value 'job_not_found' is gone",
    ),
    "a status is removed": (
        lambda new: operation(new, "put_job")["responses"].pop("200"),
        "POST /jobs: status 200 is gone",
    ),
    "a header of a response is removed": (
        lambda new: operation(new, "put_job")["responses"]["201"]["headers"].pop("Location"),
        "POST /jobs, 201: the header Location is gone",
    ),
    "a media type is removed": (
        lambda new: ok(new, "get_metrics")["content"].pop("text/plain"),
        "GET /metrics, 200: text/plain is gone",
    ),
    "what is not known here changes": (
        lambda new: field(new, "CancelItem", "id").update({"x-signed": True}),
        "CancelItem in requests, id: x-signed is True, and was None",
    ),
}


@pytest.mark.parametrize("what", BREAKING)
def test_a_change_that_breaks_clients_is_found(what: str) -> None:
    change, report = BREAKING[what]
    new = copy.deepcopy(openapi_document())
    change(new)
    assert report in incompatibilities(openapi_document(), new)


COMPATIBLE: dict[str, Change] = {
    "nothing": lambda new: None,
    "texts": lambda new: field(new, "Job", "attempts").update(description="How often it was handed out.", examples=[7]),
    "a new path": lambda new: new["paths"].update({"/new": new["paths"]["/dead"]}),
    "a new method": lambda new: new["paths"]["/dead"].update(post=new["paths"]["/dead"]["get"]),
    "a new optional parameter": lambda new: operation(new, "list_dead_errors")["parameters"].append(
        {"in": "query", "name": "zone", "schema": {"type": "string"}}
    ),
    "a new optional field of a request": lambda new: schema(new, "PutJob")["properties"].update(new={"type": "string"}),
    "a field of a request is optional now": lambda new: schema(new, "PutJob")["required"].remove("topic"),
    "a looser bound": lambda new: field(new, "CancelSelected", "limit").update(maximum=1_000_000),
    "a field of a request may be null": nullable("CancelItem", "id"),
    "a new field of a response": lambda new: schema(new, "Job")["properties"].update(new={"type": "string"}),
    "a field of a response is always there now": lambda new: schema(new, "Problem")["required"].append("topic"),
    "a new error code": lambda new: schema(new, "ProblemCode")["x-extensible-enum"].append("new_code"),
    "a new status": lambda new: operation(new, "put_job")["responses"].update(
        {"418": operation(new, "put_job")["responses"]["409"]}
    ),
}


@pytest.mark.parametrize("what", COMPATIBLE)
def test_a_change_that_no_client_notices_is_not_reported(what: str) -> None:
    new = copy.deepcopy(openapi_document())
    COMPATIBLE[what](new)
    assert incompatibilities(openapi_document(), new) == []

"""The OpenAPI document: its general texts, the error responses of each operation, and the schemas of responses.

The document is generated from the routes; `python -m deferd.api.openapi` writes it to `openapi/openapi.yaml`, and its
part that one needs first to `openapi/core.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from starlette.routing import BaseRoute

from deferd import __version__
from deferd.api import problem_details
from deferd.api.operation import OperationRoute
from deferd.api.problem_details import BY_CODE
from deferd.contract import limits
from deferd.contract.errors import TooLate
from deferd.contract.fields import NULL_IS_NONE
from deferd.contract.model import JobState, Labelled
from deferd.contract.operations.response import PROBLEM_CODE, UNLISTED, Response
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel

VERSION = __version__
TITLE = "deferd"
SUMMARY = "A delayed-job service: put a job now, pop it when it is due."
DESCRIPTION = f"""
A producer puts a **job** on a **topic** with a delay. Until the job is due, any client can cancel or reschedule it by
its id. When it is due, exactly one consumer gets it under a lease. The consumer finishes the job; otherwise the lease
ends and the job is handed out again.

## Life of a job

| state | meaning | leaves by |
|---|---|---|
| `delayed` | waits for its due time | due -> ready; cancel; reschedule |
| `ready` | due, waits for a consumer | pop -> reserved; cancel; reschedule; ttl, deadline -> dead |
| `reserved` | a consumer holds it until `reserved_until` | finish; release -> delayed or dead; bury -> dead; cancel; \
lease end -> ready, or dead after the last attempt or the deadline |
| `dead` | failed for good, with `reason` and `last_error` | redrive -> ready; cancel; retention end |
| `finished` | done, kept for `retain` seconds | retention end |

A job is always in exactly one state, and every transition is atomic. Delivery is **at least once**: a job whose lease
ends is handed out again. Two consumers never hold live leases on the same job, and the **receipt** of an earlier
delivery cannot change it.

## Conventions

- Durations are numbers of seconds, with millisecond precision. Instants are RFC 3339 timestamps; in responses they are
  in UTC with milliseconds: `2026-11-21T07:26:58.123Z`. A leap second, `23:59:60Z`, is read as the next second,
  `00:00:00Z`. All times are those of the store's clock.
- Topics match `{limits.TOPIC_PATTERN}`; ids match the same pattern with up to {limits.ID_LENGTH} characters.
- Request bodies are JSON (`application/json`, or no Content-Type). By default a body has at most \
{limits.BODY_DEFAULT_BYTES} bytes; it is nested at most {limits.JSON_DEPTH_MAX} levels deep, and the body
  or the result of a job in it at most {limits.VALUE_DEPTH_MAX}. A body without required fields may be omitted or
  `null`.
- Unknown fields and unknown query parameters are refused.
- Errors are `application/problem+json` (RFC 9457). Programs should decide by `code`. Responses with status 429 and 503
  have a `Retry-After` header in seconds. After a 503 the request may or may not have been carried out;
  it is not carried out later (docs/durability.md says what that relies on).
- A request may name the instant at which its sender gives it up: `Deferd-Not-After`, in milliseconds since 1970, by the
  clock of the store. From then on it does nothing, however late it arrives, and gets 408 `too_late`. Responses to such
  requests tell in `Deferd-Time` what that clock shows.
- A service with keys requires one: send `Authorization: Bearer <token>`. Each operation names the scope that the key
  needs; the key must also match the topics of the request. `/healthz` and `/readyz` need no key.
- A service without keys responds with 403 `forbidden` to requests that a browser makes for pages of other sites, to
  requests with effects that a browser opens as an address or a link or loads into a page, and to requests for a public
  host name that `--allowed-host` does not list.
- A key may have limits: its request rate, its waiting pops, and the jobs, bytes and topics it may have in the store
  (429 `rate_limited`); the live jobs in one topic (429 `topic_full`); how long its jobs are kept (422); and the size,
  number of jobs and nesting of a request body (413, 422).
- When clients have left too many bytes of earlier responses unread, a large response is replaced by 503
  `too_many_unsent_bytes`, or by 429 `rate_limited` if those clients use the same key. Jobs that the response would have
  handed out return to their topics.
- A malformed HTTP request, or one with a missing or repeated Host header, gets 400 `bad_request`; a transfer coding
  other than `chunked` 501 `unsupported_transfer_coding`; one that does not arrive in time 408 `request_timeout`; a URL
  longer than {limits.URL_MAX_BYTES} bytes 414 `uri_too_long`; a head that is too large or has more than
  {limits.HEADERS_MAX} headers 431 `request_header_fields_too_large`; a connection over the limit 503
  `too_many_connections`. The connection is then closed.
- An unknown path gets 404 `not_found`. A known path with another method gets 405 `method_not_allowed` with an `Allow`
  header. HEAD is GET without the body, for every path but that of a pop.
"""
TAGS = [
    {"name": "jobs", "description": "For producers: put jobs, and act on them by id, tag or state."},
    {"name": "consumers", "description": "For consumers: pop jobs, then say what became of them."},
    {"name": "topics", "description": "Settings, lists, pause, dead jobs and consistency checks of topics."},
    {"name": "push", "description": "Jobs that the service sends to a URL as signed requests."},
    {"name": "batches", "description": "Jobs that are counted under a name: one job is put when all have ended."},
    {"name": "schedules", "description": "Recurring jobs: when they run, and what became of their runs."},
    {"name": "calendars", "description": "Opening hours under names."},
    {
        "name": "inspection",
        "description": "Why a job has not run, dead jobs by error, what comes due and what happened, who consumes, "
        "relays of outboxes, and who changed what.",
    },
    {"name": "tasks", "description": "Actions on many jobs that run in the background: progress, stop."},
    {"name": "operations", "description": "Health, metrics, and the consistency check of the whole store."},
]
SERVERS = [{"url": "/", "description": "The service from which this document comes. Clients are given the URL of one."}]

_DETAILS = {
    "validation": "query.count must be at most 1000",
    "payload_too_large": f"the request body is larger than {limits.BODY_DEFAULT_BYTES} bytes",
    "unsupported_media_type": "Content-Type is 'text/plain' and must be application/json",
    "job_not_found": "topic 'orders.close' has no job 'order-1042'",
    "topic_not_found": "there is no topic 'orders.close'",
    "schedule_not_found": "there is no schedule 'nightly'",
    "schedule_exists": "there is a schedule 'nightly' already",
    "calendar_not_found": "there is no calendar 'office'",
    "batch_not_found": "there is no batch 'import-42': put it first with PUT /batches/import-42",
    "batch_sealed": "batch 'import-42' is sealed and takes no more jobs: put them into a batch of another name",
    "push_not_found": "the jobs of topic 'orders.close' are not pushed: set it with PUT /topics/orders.close/push",
    "topic_pushed": "the jobs of topic 'orders.close' are pushed, so they cannot be popped: remove its push first",
    "task_not_found": "there is no task '5f0c9a3be7d2481c'",
    "job_exists": "topic 'orders.close' already has a job 'order-1042'",
    "job_reserved": "a consumer holds job 'order-1042' of topic 'orders.close'",
    "receipt_stale": "nobody holds job 'order-1042' of topic 'orders.close': it is delayed",
    "job_cancelled": "job 'order-1042' of topic 'orders.close' was cancelled",
    "durability_unavailable": "durability 'replicated:1' is not available: the embedded store has no replicas; this "
    "store offers memory, fsync; nothing was stored",
    "different_shard": "topic 'mail' is in another shard of the store than topic 'orders.close'; nothing was done",
    "not_yet_available": "this service is of deferd 0.1.0, which knows no format of the store above 1; let a service "
    "of a later release do it, such as process 4711 on deferd-7c9f-x2x4, deferd 0.2.0",
    "too_late": str(TooLate()),
    "topic_full": "topic 'orders.close' holds 100000 live jobs, which is its max_jobs",
    "store_unavailable": "the store did not respond in time",
    "unauthorized": "a key is required: send its token as `Authorization: Bearer`",
    "forbidden": "key 'shop' does not have scope pop for topic 'orders.close'",
    "rate_limited": "key 'shop' exceeds its rate limit",
    "too_many_streams": "this process serves 100 streams of events already",
}
_JOB_FACTS = {"topic": "orders.close", "id": "order-1042"}
_FACTS: dict[str, dict[str, Any]] = {
    "validation": {"errors": [{"field": "query.count", "message": "must be at most 1000", "value": "1001"}]},
    "payload_too_large": {"limit_bytes": limits.BODY_DEFAULT_BYTES},
    "topic_not_found": {"topic": "orders.close"},
    "schedule_not_found": {"schedule": "nightly"},
    "schedule_exists": {"schedule": "nightly"},
    "calendar_not_found": {"calendar": "office"},
    "batch_not_found": {"batch": "import-42"},
    "batch_sealed": {"batch": "import-42"},
    "push_not_found": {"topic": "orders.close"},
    "topic_pushed": {"topic": "orders.close"},
    "task_not_found": {"task": "5f0c9a3be7d2481c"},
    "durability_unavailable": {"durability": "replicated:1", "available": ["memory", "fsync"]},
    "different_shard": {"topic": "mail"},
    "topic_full": {"topic": "orders.close", "max_jobs": 100_000},
    **dict.fromkeys(("job_not_found", "job_exists", "job_reserved", "receipt_stale", "job_cancelled"), _JOB_FACTS),
}
_BODY_CODES = ("payload_too_large", "unsupported_media_type")
_READING_METHODS = {"GET", "HEAD"}
_KEY_CODES = ("unauthorized", "forbidden", "rate_limited")
_SECURITY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "The token of a key made by `deferd key new`. Required only if the service has keys.",
}
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which the same request may succeed.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_RATE_LIMIT = {
    "RateLimit-Policy": {
        "description": "With `rate_limited`: `q` requests in `w` seconds are allowed (IETF draft ratelimit-headers).",
        "schema": {"type": "string", "examples": ['"requests";q=200;w=2']},
    },
    "RateLimit": {
        "description": "With `rate_limited`: `r` requests are left, and all of them again in `t` seconds.",
        "schema": {"type": "string", "examples": ['"requests";r=0;t=2']},
    },
}
_ANY_PROBLEM = {
    "description": "Any other error, for example a malformed HTTP request or an internal error.",
    "content": {problem_details.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_WWW_AUTHENTICATE = {
    "WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string", "examples": ["Bearer"]}}
}


def error_responses(*codes: str, body: bool = False) -> dict[int | str, dict[str, Any]]:
    """The error responses of an operation; `body` adds those of every operation that reads a body."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *(_BODY_CODES if body else ())):
        by_status.setdefault(problem_details.BY_CODE[code].status, []).append(code)
    return {status: _error_response(status, by_status[status]) for status in sorted(by_status)}


def _error_response(status: int, codes: list[str]) -> dict[str, Any]:
    meanings = [f"`{code}`: {_lower_first(problem_details.BY_CODE[code].title)}" for code in codes]
    response: dict[str, Any] = {
        "description": "; ".join(meanings) + ".",
        "content": {
            problem_details.MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in codes},
            }
        },
    }
    if status in (429, 503):
        response["headers"] = dict(_RETRY_AFTER)
    if "rate_limited" in codes:
        response["headers"] |= _RATE_LIMIT
    if "unauthorized" in codes:
        response["headers"] = _WWW_AUTHENTICATE
    return response


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of `routes`."""
    operations = [route for route in routes if isinstance(route, OperationRoute)]
    generated = get_openapi(
        title=TITLE,
        version=VERSION,
        summary=SUMMARY,
        description=DESCRIPTION.strip(),
        contact={"name": "the deferd authors"},
        license_info={"name": "MIT", "identifier": "MIT"},
        tags=TAGS,
        servers=SERVERS,
        routes=[_for_fastapi(route) for route in operations],
        separate_input_output_schemas=False,
    )
    for route in operations:
        if route.include_in_schema:
            method = route.operation.method
            operation = generated["paths"][route.path][method.lower()]
            if method not in _READING_METHODS:
                _add_error(operation, "too_late")
            _add_security(operation, route.permission.scope)
            operation["responses"]["default"] = _ANY_PROBLEM
    schemas = generated["components"]["schemas"]
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"), Problem=problem)
    _postprocess(generated)
    # FastAPI drops nulls from examples, so these are added last.
    for name, examples in schema_examples().items():
        schemas[name]["examples"] = examples
    generated["components"] = {
        "schemas": dict(sorted(schemas.items())),
        "examples": {
            code: {"value": problem_details.document(code, detail, **_FACTS.get(code, {}))}
            for code, detail in _DETAILS.items()
        },
        "securitySchemes": {"key": _SECURITY_SCHEME},
    }
    return generated


def _for_fastapi(route: OperationRoute) -> APIRoute:
    """The route as one of FastAPI's, for the document alone: to make all of them at the start took a quarter of it."""
    operation = route.operation
    responses = {
        status: response | ({"model": model_of(response["model"])} if "model" in response else {})
        for status, response in route.responses.items()
    }
    return APIRoute(
        operation.path,
        route.endpoint,
        methods=[operation.method],
        operation_id=operation.id,
        tags=[operation.tag],
        summary=operation.summary,
        description=operation.description,
        response_model=None if operation.response is None else model_of(operation.response),
        response_description=operation.response_description,
        status_code=operation.status,
        responses=responses | error_responses(*operation.all_errors, body=operation.has_body),
        **route.options,
    )


CORE = frozenset(
    (
        *("put_job", "get_job", "change_job", "cancel_job", "cancel_selected_jobs"),
        *("pop_jobs_by_get", "touch_job", "release_job", "finish_job"),
        *("set_topic", "get_topic"),
    )
)
"""The operations of docs/ten-calls.md."""
CORE_DESCRIPTION = """
The calls that one needs first, for generators: a small part of `openapi.yaml`, which describes all calls and what they
have in common. `docs/ten-calls.md` shows them one by one.
"""


def core_of(document: dict[str, Any]) -> dict[str, Any]:
    """The part of the document with the operations of CORE and what they refer to."""
    paths = {
        path: {method: operation for method, operation in methods.items() if operation["operationId"] in CORE}
        for path, methods in document["paths"].items()
    }
    paths = {path: methods for path, methods in paths.items() if methods}
    components: dict[str, Any] = document["components"]
    named = {kind: _referenced(of_kind, [paths]) for kind, of_kind in components.items()}
    named["securitySchemes"] = set(components["securitySchemes"])
    used = {tag for methods in paths.values() for operation in methods.values() for tag in operation["tags"]}
    return document | {
        "info": document["info"] | {"description": CORE_DESCRIPTION.strip()},
        "paths": paths,
        "components": {
            kind: {name: one for name, one in of_kind.items() if name in named[kind]}
            for kind, of_kind in components.items()
        },
        "tags": [tag for tag in document["tags"] if tag["name"] in used],
    }


def schema_examples() -> dict[str, list[dict[str, Any]]]:
    """The examples of all types of the contract that have some, by the name of the schema."""
    return {
        vars(kind).get("schema_name", kind.__name__): list(kind.schema_examples)
        for base in (Response, StrictModel)
        for kind in _subclasses(base)
        if "schema_examples" in vars(kind)
    }


def _subclasses(kind: Any) -> Iterator[Any]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _add_security(operation: dict[str, Any], scope: Scope | None) -> None:
    """Add the required scope and its error responses. The empty requirement stands for a service without keys."""
    if scope is None:
        operation["security"] = []
        return
    operation["security"] = [{"key": [scope.value]}, {}]
    for code in _KEY_CODES:
        _add_error(operation, code)


def _add_error(operation: dict[str, Any], code: str) -> None:
    responses: dict[str, Any] = operation["responses"]
    status = problem_details.BY_CODE[code].status
    content = responses.get(str(status), {}).get("content", {})
    others = content.get(problem_details.MEDIA_TYPE, {}).get("examples", {})
    responses[str(status)] = _error_response(status, [*others, code])
    operation["responses"] = dict(sorted(responses.items()))


@cache
def model_of(struct: type[Response]) -> type[BaseModel]:
    """The model with the fields of a response, for its schema."""
    hints = get_type_hints(struct, include_extras=True)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if UNLISTED not in get_args(hint):
            fields[field.encode_name] = (_modelled(hint), ... if field.required else None)
    config = ConfigDict(extra="allow") if struct.grows else None
    model: type[BaseModel] = create_model(
        struct.schema_name or struct.__name__,
        __doc__=struct.__doc__,
        __module__=__name__,
        __config__=config,
        **fields,
    )
    return model


def _modelled(hint: Any) -> Any:
    """A type with models in place of the responses in it."""
    if isinstance(hint, type) and issubclass(hint, Response):
        return model_of(hint)
    origin = get_origin(hint)
    if origin is None or origin is Literal:
        return hint
    if origin is Annotated:
        bare, *notes = get_args(hint)
        shown = [note.extra["shown_as"] for note in notes if isinstance(note, msgspec.Meta) and note.extra]
        return Annotated[_modelled(shown[0] if shown else bare), *map(_described, notes)]
    inner = tuple(map(_modelled, get_args(hint)))
    return reduce(or_, inner) if origin in {UnionType, Union} else origin[inner]


def _described(note: Any) -> Any:
    if isinstance(note, str):
        return Field(description=note)
    if not isinstance(note, msgspec.Meta):
        return note
    extra = note.extra_json_schema
    if note is PROBLEM_CODE:
        extra = {"enum": sorted(BY_CODE), "x-name": "ProblemCode"}
    given: dict[str, Any] = {"description": note.description, "examples": note.examples, "json_schema_extra": extra}
    field: FieldInfo = Field(**{name: value for name, value in given.items() if value is not None})
    return field


class FieldError(BaseModel):
    """One invalid value."""

    field: str = Field(
        description="Its location: `body`, `query` or `path`, then the names below it, separated by dots."
    )
    message: str = Field(description="What is wrong, with the bound that the value breaks.")
    value: Any = Field(None, description="The value if it is small; a long string is cut.")
    pointer: str | None = Field(None, description="Its location in the request body, as a JSON Pointer fragment.")


class Problem(BaseModel):
    """An error (RFC 9457). Programs should decide by `code`; `title` and `detail` are for people."""

    type: str = Field(description="A URN of the kind of error; it ends in `code`.")
    title: str = Field(description="The kind of error in words.")
    status: int = Field(ge=400, le=599, description="The HTTP status.")
    detail: str = Field(description="What went wrong in this request.")
    code: Annotated[str, _described(PROBLEM_CODE)]
    topic: str | None = Field(None, description="The topic concerned.")
    id: str | None = Field(None, description="The job concerned.")
    batch: str | None = Field(None, description="With `batch_not_found` and `batch_sealed`: the batch concerned.")
    calendar: str | None = Field(None, description="With `calendar_not_found`: the calendar concerned.")
    schedule: str | None = Field(
        None, description="With `schedule_not_found` and `schedule_exists`: the schedule concerned."
    )
    task: str | None = Field(None, description="With `task_not_found`: the task concerned.")
    errors: list[FieldError] | None = Field(None, description="With `validation`: the invalid values, at most 100.")
    limit_bytes: int | None = Field(None, description="With `payload_too_large`: the maximum size of a body.")
    max_jobs: int | None = Field(None, description="With `topic_full`: the maximum number of live jobs in the topic.")
    durability: str | None = Field(
        None,
        description="With `durability_unavailable`: the requested level. With `job_exists` and `job_reserved` of a "
        "put: the level that the existing job has reached.",
    )
    available: list[str] | None = Field(None, description="With `durability_unavailable`: the available levels.")
    state: JobState | None = Field(None, description="With `job_exists`: the state of the job that has the id.")
    until: datetime | None = Field(
        None,
        description="With `job_exists` of a dead or finished job: when its retention, or its `unique_for`, ends.",
    )


_NULL = {"type": "null"}
_DATA = frozenset({"example", "examples", "default", "enum", "const"})
_NAMES_BELOW = frozenset({"properties", "schemas"})
_BOUNDS = frozenset({"minimum", "maximum"})
_CONTAINERS = frozenset({"array", "object"})
_INT32_MAX = 2**31 - 1
_OPEN_ENUM = "x-extensible-enum"
_NULL_IS_A_VALUE: dict[str, Collection[str]] = {
    "PutJob": NULL_IS_NONE,
    "ChangeJob": NULL_IS_NONE | Labelled.model_fields.keys(),
}
"""Fields of requests for which null is something else than to leave them out."""
_SHOWN_WITH_NULL = frozenset({"ScheduledJob", "TopicSettings"})
"""Schemas of requests of which responses show null, too."""
NAME = "x-name"
"""A schema with this key becomes a component of that name: oapi-codegen makes a type for each use of another one."""


def _postprocess(document: dict[str, Any]) -> None:
    """Change the document in place."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    _simplify_schemas(schemas, names_below=True)
    schemas |= _replace_named_schemas(schemas)
    for name, schema in schemas.items():
        _widen_integers(schema)
        kept = set(_NULL_IS_A_VALUE.get(name, ()))
        if schema.get("additionalProperties") is False:
            _describe_defaults(schema)
            kept |= _containers(schema)
        if name not in _SHOWN_WITH_NULL:
            _leave_out_rather_than_null(schema, kept)
    _simplify_schemas(document["paths"], names_below=True)
    _open_enums(document)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                _describe_optional_body(operation["requestBody"])
            for parameter in operation.get("parameters", ()):
                _simplify_parameter(parameter)


def _simplify_schemas(node: Any, *, names_below: bool = False) -> None:
    """Simplify all schemas below `node`; with `names_below` its keys are names, not keywords."""
    if isinstance(node, list):
        for inner in node:
            _simplify_schemas(inner)
    elif isinstance(node, dict):
        if not names_below:
            _simplify_schema(node)
        for key, inner in node.items():
            if names_below or key not in _DATA:
                _simplify_schemas(inner, names_below=not names_below and key in _NAMES_BELOW)


def _simplify_schema(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("title"), str):
        del schema["title"]  # the field's name again, by which openapi-python-client would name types
    if "default" in schema and schema["default"] is None:
        del schema["default"]  # openapi-typescript requires a field that has one
    for bound in _BOUNDS & schema.keys():
        if isinstance(schema[bound], float) and schema[bound].is_integer():
            schema[bound] = int(schema[bound])  # for people: no generator reads it
    if "oneOf" in schema:
        schema.pop("discriminator", None)  # openapi-generator's Rust takes its field away and then misses it
    if schema.get("type") == "number":
        schema["format"] = "double"  # oapi-codegen assumes 32 bits otherwise
    kind = _other_than_null(schema)
    if kind is not None:
        # Move the texts of the only type to the field: oapi-codegen and openapi-typescript show them only there.
        for key in ("description", "examples"):
            if key in kind:
                schema.setdefault(key, kind[key] if NAME in kind else kind.pop(key))


def _widen_integers(schema: dict[str, Any]) -> None:
    """Give integer fields that can exceed 32 bits the format int64: an `int` of oapi-codegen may have 32."""
    for field in schema.get("properties", {}).values():
        kind = _other_than_null(field) or field
        if kind.get("type") == "integer" and "enum" not in kind and kind.get("maximum", math.inf) > _INT32_MAX:
            kind["format"] = "int64"


def _describe_defaults(schema: dict[str, Any]) -> None:
    """Move the defaults of a request's fields into their descriptions.

    openapi-typescript requires a field with a `default` in requests, since it is always present.
    """
    for field in schema["properties"].values():
        if "default" in field:
            default = field.pop("default")
            shown = f"`{default}`" if isinstance(default, str) else str(default)
            field["description"] = f"{field['description']} Default: {shown}."


def _containers(schema: dict[str, Any]) -> set[str]:
    """The fields that are lists or maps or null. Without null, openapi-generator's Java sends an empty one for none."""
    properties: dict[str, Any] = schema.get("properties", {})
    return {name for name, field in properties.items() if (_other_than_null(field) or {}).get("type") in _CONTAINERS}


def _leave_out_rather_than_null(schema: dict[str, Any], kept: set[str]) -> None:
    """Remove null from the optional fields that are not in `kept`: to leave one out is the same.

    The service omits such a field of a response, and goes on reading null in one of a request. With null,
    openapi-typescript gives a field a value that never comes, oapi-codegen no type for an enum, and openapi-generator
    an option in an option in Rust.
    """
    properties: dict[str, Any] = schema.get("properties", {})
    for name in properties.keys() - set(schema.get("required", ())) - kept:
        properties[name] = _without_null(properties[name])


def _open_enums(document: dict[str, Any]) -> None:
    """Leave the enums of responses open: later versions may add values. Those of requests stay closed.

    Generated clients in Java, Python and Rust cannot read a response that has another value than the enum lists.
    """
    schemas: dict[str, Any] = document["components"]["schemas"]
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    sent = [operation.get(part) for operation in operations for part in ("parameters", "requestBody")]
    requested = _referenced(schemas, sent)
    closed = {name: dict(schemas[name]) for name in requested if "enum" in schemas[name]}
    for used in (*sent, *(schemas[name] for name in requested)):
        _inline(used, closed)
    for name, schema in schemas.items():
        if name in closed or name not in requested:
            _open_enums_below(schema)


def _referenced(components: dict[str, Any], nodes: Iterable[Any]) -> set[str]:
    """The names of the components of a kind that the nodes refer to, directly or through others of the kind."""
    found: set[str] = set()
    left = list(nodes)
    while left:
        new = {reference["$ref"].rpartition("/")[2] for reference in _nodes(left.pop()) if "$ref" in reference}
        new = (new & components.keys()) - found
        found |= new
        left += [components[name] for name in new]
    return found


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """All objects in a document, the outer one first."""
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _nodes(inner)


def _inline(node: Any, named: dict[str, Any]) -> None:
    """Put copies of the schemas `named` in place of the references to them."""
    for reference in _nodes(node):
        name = str(reference.get("$ref")).rpartition("/")[2]
        if name in named:
            del reference["$ref"]
            reference |= {**named[name], **reference}


def _open_enums_below(schema: dict[str, Any]) -> None:
    for node in list(_nodes(schema)):
        values = node.get("enum")
        if isinstance(values, list):
            del node["enum"]
            shown = ", ".join(f"`{value}`" for value in values)
            node["description"] = f"{node.get('description', '')} Values so far: {shown}.".strip()
            node[_OPEN_ENUM] = values


def _describe_optional_body(body: dict[str, Any]) -> None:
    """Describe an optional body in words, in place of a default.

    From a schema that allows null, openapi-python-client generates a function that fails without a body.
    """
    if not body.get("required", False):
        body["description"] = "Optional; `null` means the same as no body."
    for content in body["content"].values():
        content["schema"].pop("default", None)


def _simplify_parameter(parameter: dict[str, Any]) -> None:
    """Remove null from the types of an optional parameter: a URL cannot contain it, and oapi-codegen finds no type."""
    parameter["schema"] = _without_null(parameter["schema"])
    if "description" in parameter:
        parameter["schema"].pop("description", None)  # a duplicate


def _replace_named_schemas(node: Any) -> dict[str, Any]:
    """Replace all schemas below `node` that have a NAME by references; return them by name."""
    found: dict[str, Any] = {}
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found |= _replace_named_schemas(inner)
        if isinstance(inner, dict) and NAME in inner:
            name = inner.pop(NAME)
            found[name] = inner
            node[key] = {"$ref": f"#/components/schemas/{name}"}
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kind = _other_than_null(schema)
    if kind is None:
        return schema
    return kind | {key: value for key, value in schema.items() if key != "anyOf"}


def _other_than_null(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The type in a schema that allows one type or null; None for other schemas."""
    kinds = schema.get("anyOf")
    if not isinstance(kinds, list) or len(kinds) != 2 or _NULL not in kinds:
        return None
    other: dict[str, Any] = kinds[0] if kinds[1] == _NULL else kinds[1]
    return other

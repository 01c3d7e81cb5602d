"""The OpenAPI document: its texts, the error answers of each call, and what is tidied up in what FastAPI draws.

The document is generated from the routes; `python -m deferd.api.openapi` writes it to `openapi/openapi.yaml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from deferd.api import problem_details
from deferd.api.auth.api_keys import Scope
from deferd.api.openapi.examples import EXAMPLES
from deferd.api.openapi.postprocess import tidy
from deferd.api.openapi.schemas import Problem
from deferd.api.operation import Operation
from deferd.contract import limits

VERSION = "1.0.0"
TITLE = "deferd"
SUMMARY = "A delayed-job service: put a job now, get it when it is due."
DESCRIPTION = f"""
Any service puts a **job** on a **topic** with a delay. Until the job is due anyone can cancel or reschedule it by its
own id. When it is due exactly one consumer gets it, with a lease; the consumer finishes it, or the job comes back.

## Life of a job

| state | meaning | leaves by |
|---|---|---|
| `delayed` | waits for its due time | due -> ready; cancel; reschedule |
| `ready` | due, waits for a consumer | pop -> reserved; cancel; reschedule; ttl -> dead |
| `reserved` | a consumer holds it until `reserved_until` | finish; release -> delayed or dead; bury -> dead; cancel; \
lease end -> ready |
| `dead` | given up, with its `reason` and `last_error` | redrive -> ready; cancel; retention end |
| `finished` | done, kept for `retain` seconds | retention end |

A job is in exactly one of them at any instant, and every step is atomic. Delivery is **at least once**: a job whose
lease ends is handed out again. Two consumers never hold live leases on one job, and the **receipt** of an earlier
delivery can change nothing.

## Conventions

- Durations are seconds (numbers, kept to the millisecond). Instants are RFC 3339; in answers they are UTC with
  milliseconds, such as `2026-11-21T07:26:58.123Z`. A leap second, `23:59:60Z`, is the second after it, `00:00:00Z`.
  All times are the store's clock.
- Topics match `{limits.TOPIC_PATTERN}`; ids are the same with up to {limits.ID_LENGTH} characters.
- Bodies are JSON (`application/json` or no Content-Type at all), by default at most \
{limits.BODY_DEFAULT_BYTES} bytes and nested at most {limits.JSON_DEPTH_MAX} levels. A body whose every field may be
  left out may be left out itself, or be `null`.
- Unknown fields and unknown query parameters are refused.
- Errors are `application/problem+json` (RFC 9457). Decide by `code`. Answers with status 429 and 503 carry
  `Retry-After` in seconds. After a 503 it is not known whether the call was carried out.
- Where the service has keys, a call needs one: `Authorization: Bearer` and its token. What scope a call needs is
  said with it; the key must also be for the topics of the call. `/healthz` and `/readyz` are open.
- Where it has none, these answer 403 `forbidden`: calls that a browser makes for pages of other sites; calls with
  effects that a browser opens as an address or a link, or loads into a page; and calls for a host with a public name
  that `--allowed-host` does not give.
- A key may be bounded in how often it asks, how many of its pops wait, how many jobs, bytes and topics it may leave in
  the store (429 `rate_limited`), how many live jobs one topic may hold (429 `topic_full`), for how long its jobs are
  kept (422), and in the size, number of jobs and the nesting of its requests (413, 422).
- A large response for which there is no room, since clients have not read those that they asked for before, is
  replaced by 503 `too_many_unsent_bytes`, or by 429 `rate_limited` when they are clients of the same key. Jobs that it
  would have handed out go back.
- Before a request is a call it must be one: what is no HTTP, or names no host or several, answers 400 `bad_request`,
  what does not come in time 408 `request_timeout`, a URL over {limits.URL_MAX_BYTES} bytes 414 `uri_too_long`, a head
  larger than the service allows, or with more than {limits.HEADERS_MAX} headers, 431
  `request_header_fields_too_large`, and a connection too many 503 `too_many_connections`; then the connection is
  closed.
- On every path: a method that it does not have answers 405 `method_not_allowed` with `Allow`; a path that does not
  exist answers 404 `not_found`.
"""
TAGS = [
    {"name": "jobs", "description": "Put, look at, change and cancel jobs: the producer's side."},
    {"name": "consumers", "description": "Pop jobs and say what became of them: the consumer's side."},
    {"name": "topics", "description": "Look after topics: defaults, pausing, lists, dead jobs."},
    {"name": "operations", "description": "Whether the service is well, and its metrics."},
]

_DETAILS = {
    "validation": "query.count must be at most 1000",
    "payload_too_large": f"the request body is larger than {limits.BODY_DEFAULT_BYTES} bytes",
    "unsupported_media_type": "Content-Type is 'text/plain' and must be application/json",
    "job_not_found": "topic 'orders.close' has no job 'order-1042'",
    "topic_not_found": "there is no topic 'orders.close'",
    "job_exists": "topic 'orders.close' already has a job 'order-1042'",
    "job_reserved": "a consumer holds job 'order-1042' of topic 'orders.close'",
    "receipt_stale": "nobody holds job 'order-1042' of topic 'orders.close': it is delayed",
    "job_cancelled": "job 'order-1042' of topic 'orders.close' was cancelled",
    "durability_unavailable": "durability 'replicated:1' is not to be had: the embedded store has no replicas; this "
    "store gives memory, fsync; nothing was stored",
    "topic_full": "topic 'orders.close' holds 100000 live jobs, which is its max_jobs",
    "store_unavailable": "the store did not answer in time",
    "unauthorized": "a key is needed, as `Authorization: Bearer` and its token",
    "forbidden": "key 'shop' does not have scope pop for topic 'orders.close'",
    "rate_limited": "key 'shop' asks more often than it may",
}
_JOB_FACTS = {"topic": "orders.close", "id": "order-1042"}
_FACTS: dict[str, dict[str, Any]] = {
    "validation": {"errors": [{"field": "query.count", "message": "must be at most 1000", "value": "1001"}]},
    "payload_too_large": {"limit_bytes": limits.BODY_DEFAULT_BYTES},
    "topic_not_found": {"topic": "orders.close"},
    "durability_unavailable": {"durability": "replicated:1", "available": ["memory", "fsync"]},
    "topic_full": {"topic": "orders.close", "max_jobs": 100_000},
    **dict.fromkeys(("job_not_found", "job_exists", "job_reserved", "receipt_stale", "job_cancelled"), _JOB_FACTS),
}
_BODY_CODES = ("payload_too_large", "unsupported_media_type")
_KEY_CODES = ("unauthorized", "forbidden", "rate_limited")
_SECURITY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key that `deferd key new` made. Needed only where the service has keys.",
}
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which the same call may succeed.",
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
    "description": "Any other error, such as a request that is not valid HTTP or an error inside the service.",
    "content": {problem_details.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_WWW_AUTHENTICATE = {
    "WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string", "examples": ["Bearer"]}}
}


def error_responses(*codes: str, body: bool = False) -> dict[int | str, dict[str, Any]]:
    """The error answers of a call for its `responses`; `body` adds those of every call that reads a body."""
    by_status: dict[int, list[str]] = {}
    for code in (*codes, *(_BODY_CODES if body else ())):
        by_status.setdefault(problem_details.BY_CODE[code].status, []).append(code)
    return {status: _error_response(status, by_status[status]) for status in sorted(by_status)}


def _error_response(status: int, codes: list[str]) -> dict[str, Any]:
    told = [f"`{code}`: {_lower_first(problem_details.BY_CODE[code].title)}" for code in codes]
    answer: dict[str, Any] = {
        "description": "; ".join(told) + ".",
        "content": {
            problem_details.MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {code: {"$ref": f"#/components/examples/{code}"} for code in codes},
            }
        },
    }
    if status in (429, 503):
        answer["headers"] = dict(_RETRY_AFTER)
    if "rate_limited" in codes:
        answer["headers"] |= _RATE_LIMIT
    if "unauthorized" in codes:
        answer["headers"] = _WWW_AUTHENTICATE
    return answer


def _lower_first(text: str) -> str:
    return text[0].lower() + text[1:]


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of `routes`."""
    drawn = get_openapi(
        title=TITLE,
        version=VERSION,
        summary=SUMMARY,
        description=DESCRIPTION.strip(),
        license_info={"name": "MIT", "identifier": "MIT"},
        tags=TAGS,
        routes=routes,
        separate_input_output_schemas=False,
    )
    for route in routes:
        if isinstance(route, Operation) and route.include_in_schema:
            for method in route.methods or ():
                operation = drawn["paths"][route.path][method.lower()]
                _say_what_key_is_needed(operation, route.permission.scope)
                operation["responses"]["default"] = _ANY_PROBLEM
    schemas = drawn["components"]["schemas"]
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"), Problem=problem)
    tidy(drawn)
    # FastAPI drops the nulls of examples that it draws, so they come last.
    for name, examples in EXAMPLES.items():
        schemas[name]["examples"] = examples
    drawn["components"] = {
        "schemas": dict(sorted(schemas.items())),
        "examples": {
            code: {"value": problem_details.document(code, detail, **_FACTS.get(code, {}))}
            for code, detail in _DETAILS.items()
        },
        "securitySchemes": {"key": _SECURITY_SCHEME},
    }
    return drawn


def _say_what_key_is_needed(operation: dict[str, Any], scope: Scope | None) -> None:
    """Add to a call its scope and the refusals; the empty requirement stands for a service that has no keys."""
    if scope is None:
        operation["security"] = []
        return
    operation["security"] = [{"key": [scope.value]}, {}]
    answers: dict[str, Any] = operation["responses"]
    for code in _KEY_CODES:
        status = problem_details.BY_CODE[code].status
        told = answers.get(str(status), {}).get("content", {}).get(problem_details.MEDIA_TYPE, {}).get("examples", {})
        answers[str(status)] = _error_response(status, [*told, code])
    operation["responses"] = dict(sorted(answers.items()))

"""Errors as RFC 9457 problem documents. This is the only place where an error gets its HTTP face.

Every leaf of `DeferdError` has a row in `ROWS`; tests hold that. Errors that exist only because there is HTTP
(an unknown path, a method that a path does not have, a body that is no JSON) are leaves too and are defined here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from deferd.api.responses import Header, JsonResponse
from deferd.api.unsent_bytes import TooManyUnsentBytes
from deferd.contract import errors

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:problem-type:deferd:"
VALUE_SHOWN_BYTES = 100
FAULTS_SHOWN = 100
_PATH_SHOWN = 200
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)

_log = logging.getLogger(__name__)


class UnknownPath(errors.NotFound):
    """No call has this path."""

    code = "not_found"

    def __init__(self, path: str) -> None:
        super().__init__(f"there is nothing at {path[:_PATH_SHOWN]}")


class MethodNotAllowed(errors.DeferdError):
    """The path is known and has no such method; `allowed` are those it has."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: list[str]) -> None:
        self.allowed = allowed
        super().__init__(f"{method[:20]} is not among the methods of this path: {', '.join(allowed)}")


class UnsupportedMediaType(errors.DeferdError):
    """The request has a body that does not say it is JSON, or that is compressed."""

    code = "unsupported_media_type"


class BadRequest(errors.DeferdError):
    """What came is no HTTP. Nothing behind it on the connection can be read."""

    code = "bad_request"


class RequestTimeout(errors.DeferdError):
    """A part of a request came, and the rest of it not in time. It was not carried out."""

    code = "request_timeout"


class UriTooLong(errors.DeferdError):
    """The request's URL is longer than any that a call of the contract can have."""

    code = "uri_too_long"


class HeadTooLarge(errors.DeferdError):
    """The request line and the headers together are over the limit, or the headers are too many."""

    code = "request_header_fields_too_large"


class TooManyConnections(errors.TryLater):
    """The process has as many connections open as it may. The request was not read."""

    code = "too_many_connections"


@dataclass(frozen=True)
class Row:
    """The HTTP face of one error: its status, and a title that is the same for every occurrence."""

    status: int
    title: str


ROWS: dict[type[errors.DeferdError], Row] = {
    errors.InvalidInput: Row(422, "A value is missing, unknown or outside its bounds"),
    errors.PayloadTooLarge: Row(413, "The request body is too large"),
    errors.Unauthorized: Row(401, "A key is needed"),
    errors.Forbidden: Row(403, "This call is not allowed"),
    errors.JobNotFound: Row(404, "There is no such job"),
    errors.TopicNotFound: Row(404, "There is no such topic"),
    errors.JobExists: Row(409, "The id is taken"),
    errors.JobReserved: Row(409, "A consumer holds the job"),
    errors.ReceiptStale: Row(409, "The receipt is not that of the live delivery"),
    errors.JobCancelled: Row(410, "The job was cancelled"),
    errors.DurabilityUnavailable: Row(422, "The store cannot make the job that durable"),
    errors.TopicFull: Row(429, "The topic is full"),
    errors.RateLimited: Row(429, "Too many requests"),
    errors.StoreUnavailable: Row(503, "The store does not answer"),
    UnknownPath: Row(404, "There is no such path"),
    MethodNotAllowed: Row(405, "The path does not have this method"),
    UnsupportedMediaType: Row(415, "The body must be JSON"),
    BadRequest: Row(400, "This is no valid HTTP request"),
    RequestTimeout: Row(408, "The request did not come in time"),
    UriTooLong: Row(414, "The URL is too long"),
    HeadTooLarge: Row(431, "The request's head is too large"),
    TooManyConnections: Row(503, "Too many connections are open"),
    TooManyUnsentBytes: Row(503, "Too many responses wait for clients that do not read them"),
}
INTERNAL = Row(500, "Something went wrong inside the service")
INTERNAL_CODE = "internal_error"

BY_CODE: dict[str, Row] = {kind.code: row for kind, row in ROWS.items()} | {INTERNAL_CODE: INTERNAL}

_FACTS = {
    "topic": "topic",
    "job_id": "id",
    "limit_bytes": "limit_bytes",
    "max_jobs": "max_jobs",
    "durability": "durability",
    "available": "available",
}


def document(code: str, detail: str, **facts: Any) -> dict[str, Any]:
    """The members of the problem document for `code`; `facts` are added as members of their own."""
    row = BY_CODE[code]
    return {
        "type": TYPE_PREFIX + code,
        "title": row.title,
        "status": row.status,
        "detail": detail,
        "code": code,
        **facts,
    }


def response(error: errors.DeferdError) -> JsonResponse:
    """The answer that tells of `error`, with the headers its status asks for."""
    headers: list[Header] = []
    facts = {shown: fact for name, shown in _FACTS.items() if (fact := getattr(error, name, None)) is not None}
    detail = str(error) or BY_CODE[error.code].title
    if isinstance(error, errors.InvalidInput):
        facts["errors"] = [_fault_json(fault) for fault in error.faults[:FAULTS_SHOWN]]
        detail = _summary(error.faults)
    elif isinstance(error, errors.TryLater):
        headers.append((b"retry-after", b"%d" % max(1, error.retry_after_s)))
    elif isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    elif isinstance(error, errors.Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return _problem(document(error.code, detail, **facts), headers)


def internal_error_response(error: Exception) -> JsonResponse:
    """The answer for an error that nobody raised on purpose: it is logged whole, and nothing of it is shown."""
    _log.error("unexpected error while answering a request", exc_info=error)
    return _problem(document(INTERNAL_CODE, "the service's log says more"), [])


def leaves(root: type[errors.DeferdError] = errors.DeferdError) -> Iterator[type[errors.DeferdError]]:
    """All errors below `root` that have no errors below them."""
    below = root.__subclasses__()
    if not below:
        yield root
    for kind in below:
        yield from leaves(kind)


def _problem(members: dict[str, Any], headers: list[Header]) -> JsonResponse:
    return JsonResponse(members, members["status"], headers, MEDIA_TYPE.encode())


def _summary(faults: list[errors.FieldFault]) -> str:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{_dotted(first.path)} {first.message}{more}"


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(_printable(str(part)) for part in path)


def _fault_json(fault: errors.FieldFault) -> dict[str, Any]:
    shown: dict[str, Any] = {"field": _dotted(fault.path), "message": fault.message}
    if fault.value is not None:
        small = _small(fault.value)
        if small is not None:
            shown["value"] = small
    if fault.path[0] == "body":
        steps = (_printable(str(part)).replace("~", "~0").replace("/", "~1") for part in fault.path[1:])
        shown["pointer"] = "#" + "".join(f"/{step}" for step in steps)
    return shown


def _small(value: Any) -> Any:
    """The value itself when it is small, the beginning of a long text, else None."""
    if isinstance(value, str):
        return value if len(value) <= VALUE_SHOWN_BYTES else value[:VALUE_SHOWN_BYTES] + "…"
    written = ""
    try:
        for piece in _ENCODER.iterencode(value):  # stops early: a refused value can be as large as the body
            written += piece
            if len(written) > VALUE_SHOWN_BYTES:
                return None
    except ValueError:  # NaN or an infinity
        return None
    return orjson.Fragment(written)


def _printable(text: str) -> str:
    """A field name as the caller wrote it, shortened: unknown fields can have names of any length."""
    return text if len(text) <= VALUE_SHOWN_BYTES else text[:VALUE_SHOWN_BYTES] + "…"

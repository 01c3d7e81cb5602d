"""Errors as RFC 9457 problem documents: the only place that maps an error to its HTTP status and title.

Every leaf of `DeferdError` has a row in `ROWS`, which a test checks. Errors of HTTP itself, such as an unknown path or
an unsupported media type, are leaves too and are defined here.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from deferd.api.responses import Header, JsonResponse
from deferd.api.unsent_bytes import TooManyUnsentBytes
from deferd.contract import errors
from deferd.engine.event_streams import TooManyStreams
from deferd.engine.scripts import WrongType

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:problem-type:deferd:"
VALUE_SHOWN_BYTES = 100
FIELD_ERRORS_SHOWN = 100
_PATH_SHOWN = 200

_log = logging.getLogger(__name__)


class UnknownPath(errors.NotFound):
    """No operation or page has this path."""

    code = "not_found"

    def __init__(self, path: str) -> None:
        super().__init__(f"the path {path[:_PATH_SHOWN]} does not exist")


class MethodNotAllowed(errors.DeferdError):
    """The path exists but not with this method; `allowed` are its methods."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: list[str]) -> None:
        self.allowed = allowed
        super().__init__(f"this path does not support {method[:20]}, only {', '.join(allowed)}")


class UnsupportedMediaType(errors.DeferdError):
    """The body is declared as something other than JSON, or is compressed."""

    code = "unsupported_media_type"


class BadRequest(errors.DeferdError):
    """The request is malformed, so nothing after it on the connection can be read."""

    code = "bad_request"


class UnsupportedTransferCoding(errors.DeferdError):
    """The body is encoded in another way than in chunks, so where it ends cannot be known."""

    code = "unsupported_transfer_coding"


class RequestTimeout(errors.DeferdError):
    """The rest of a request did not arrive in time. It was not carried out."""

    code = "request_timeout"


class HalfClosed(errors.DeferdError):
    """The client has closed its side of the connection, or all of it, while its request waited."""

    code = "half_closed"

    def __init__(self) -> None:
        super().__init__(
            "the client closed its side of the connection while the request waited, as if it had disconnected: jobs "
            "that were popped for it have returned to their topics; keep the connection open until the response"
        )


class UriTooLong(errors.DeferdError):
    """The URL is longer than that of any valid request."""

    code = "uri_too_long"


class HeadTooLarge(errors.DeferdError):
    """The request line and headers exceed their size limit, or there are too many headers."""

    code = "request_header_fields_too_large"


class TooManyConnections(errors.TryLater):
    """The process has its maximum number of connections. The request was not read."""

    code = "too_many_connections"


@dataclass(frozen=True)
class Row:
    """The status of an error, and its title, which is the same for every occurrence."""

    status: int
    title: str


ROWS: dict[type[errors.DeferdError], Row] = {
    errors.InvalidInput: Row(422, "A value is missing, unknown or outside its bounds"),
    errors.PayloadTooLarge: Row(413, "The request body is too large"),
    errors.Unauthorized: Row(401, "A key is required"),
    errors.Forbidden: Row(403, "The request is not allowed"),
    errors.JobNotFound: Row(404, "There is no such job"),
    errors.TopicNotFound: Row(404, "There is no such topic"),
    errors.ScheduleNotFound: Row(404, "There is no such schedule"),
    errors.ScheduleExists: Row(412, "The schedule exists"),
    errors.CalendarNotFound: Row(404, "There is no such calendar"),
    errors.BatchNotFound: Row(404, "There is no such batch"),
    errors.BatchSealed: Row(409, "The batch is sealed"),
    errors.TaskNotFound: Row(404, "There is no such task"),
    errors.PushNotFound: Row(404, "The topic is not pushed"),
    errors.TopicPushed: Row(409, "The topic is pushed"),
    errors.JobExists: Row(409, "The id is taken"),
    errors.JobReserved: Row(409, "A consumer holds the job"),
    errors.ReceiptStale: Row(409, "The receipt does not belong to the current delivery"),
    errors.JobCancelled: Row(410, "The job was cancelled"),
    errors.DurabilityUnavailable: Row(422, "The store cannot provide this durability"),
    errors.DifferentShard: Row(422, "The topics are in different shards of the store"),
    errors.NotYetAvailable: Row(409, "An earlier release still uses the store"),
    errors.TooLate: Row(408, "The request came too late"),
    errors.TopicFull: Row(429, "The topic is full"),
    errors.RateLimited: Row(429, "Too many requests"),
    errors.StoreUnavailable: Row(503, "The store is unavailable"),
    UnknownPath: Row(404, "There is no such path"),
    MethodNotAllowed: Row(405, "The path does not have this method"),
    UnsupportedMediaType: Row(415, "The body must be JSON"),
    BadRequest: Row(400, "The request is not valid HTTP"),
    UnsupportedTransferCoding: Row(501, "The transfer coding is not supported"),
    RequestTimeout: Row(408, "The request did not arrive in time"),
    HalfClosed: Row(400, "The client closed its side of the connection"),
    UriTooLong: Row(414, "The URL is too long"),
    HeadTooLarge: Row(431, "The request's head is too large"),
    TooManyConnections: Row(503, "Too many connections are open"),
    TooManyStreams: Row(503, "Too many streams of events are open"),
    TooManyUnsentBytes: Row(503, "Clients have left too many responses unread"),
}
INTERNAL = Row(500, "Something went wrong inside the service")
INTERNAL_CODE = "internal_error"
_WRONG_TYPE = "another program has damaged a key of the store that this call needs; `deferd audit` finds those of jobs"

BY_CODE: dict[str, Row] = {kind.code: row for kind, row in ROWS.items()} | {INTERNAL_CODE: INTERNAL}

_FACTS = (
    *("topic", "calendar", "batch", "job_id", "schedule", "task", "limit_bytes", "max_jobs", "durability", "available"),
    *("state", "until"),
)
"""The attributes of errors that their documents show."""


def document(code: str, detail: str, **facts: Any) -> dict[str, Any]:
    """The members of the problem document for `code`, with `facts` as further members."""
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
    """The response for `error`, with the headers of its status."""
    headers: list[Header] = []
    found = ((name, getattr(error, name, None)) for name in _FACTS)
    facts = {"id" if name == "job_id" else name: fact for name, fact in found if fact is not None}
    if isinstance(until := facts.get("until"), datetime):
        facts["until"] = until.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    detail = str(error) or BY_CODE[error.code].title
    if isinstance(error, errors.InvalidInput):
        facts["errors"] = [_field_error_json(one) for one in error.field_errors[:FIELD_ERRORS_SHOWN]]
        detail = _summary(error.field_errors)
    elif isinstance(error, errors.TryLater):
        headers.append((b"retry-after", b"%d" % max(1, error.retry_after_s)))
    elif isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    elif isinstance(error, errors.Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
    return _problem(document(error.code, detail, **facts), headers)


def internal_error_response(error: Exception) -> JsonResponse:
    """The response for an unexpected error: it is logged with its traceback, and the client sees nothing of it.

    A key of the wrong type says enough without a traceback.
    """
    if isinstance(error, WrongType):
        _log.error("another program has damaged a key of the store that a call needs: %s", error)
        return _problem(document(INTERNAL_CODE, _WRONG_TYPE), [])
    _log.error("unexpected error while handling a request", exc_info=error)
    return _problem(document(INTERNAL_CODE, "the log of the service has the details"), [])


def _problem(members: dict[str, Any], headers: list[Header]) -> JsonResponse:
    return JsonResponse(members, members["status"], headers, MEDIA_TYPE.encode())


def _summary(field_errors: list[errors.FieldError]) -> str:
    first = field_errors[0]
    more = f" (and {len(field_errors) - 1} more)" if len(field_errors) > 1 else ""
    return f"{_dotted(first.path)} {first.message}{more}"


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(_printable(str(part)) for part in path)


def _field_error_json(error: errors.FieldError) -> dict[str, Any]:
    shown: dict[str, Any] = {"field": _dotted(error.path), "message": error.message}
    if error.value is not None:
        small = _small(error.value)
        if small is not None:
            shown["value"] = small
    if error.path[0] == "body":
        steps = (_printable(str(part)).replace("~", "~0").replace("/", "~1") for part in error.path[1:])
        shown["pointer"] = "#" + "".join(f"/{step}" for step in steps)
    return shown


def _as_text(value: Any) -> str:
    if isinstance(value, orjson.Fragment):
        raise ValueError("it is large")  # noqa: TRY004 (as orjson raises for invalid JSON)
    return str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_text)


def _small(value: Any) -> Any:
    """The value if it is small, the beginning of a long string, None for any other."""
    if isinstance(value, str):
        return value if len(value) <= VALUE_SHOWN_BYTES else value[:VALUE_SHOWN_BYTES] + "…"
    written = ""
    try:
        for piece in _ENCODER.iterencode(value):  # stops early: an invalid value can be as large as the body
            written += piece
            if len(written) > VALUE_SHOWN_BYTES:
                return None
    except ValueError:  # NaN, an infinity, or a large value of which only the JSON was kept
        return None
    return orjson.Fragment(written)


def _printable(text: str) -> str:
    """A field name, shortened: unknown fields can have names of any length."""
    return text if len(text) <= VALUE_SHOWN_BYTES else text[:VALUE_SHOWN_BYTES] + "…"

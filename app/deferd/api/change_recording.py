"""Records what people and keys change, for `GET /activity`.

Requests of the console come from within the process. Those of the command line have the header `Deferd-Via: cli`. All
others count as programs of the `api`. The header is no proof: a program that sends it has more of its calls recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from pydantic import BaseModel

from deferd.api.auth.api_keys import Recorded
from deferd.api.auth.audit_log import reporting
from deferd.api.context import RequestContext
from deferd.api.incoming_request import IncomingRequest
from deferd.api.operation import OperationRoute
from deferd.api.recorded_values import changed_fields
from deferd.engine.activity_list import Change

VIA_HEADER = b"deferd-via"
Via = Literal["console", "cli", "api"]
_API: Via = "api"
_FILTER_SHOWN_BYTES = 500
_NO_FILTER = {"request_id", "dry_run", "as_task"}


def is_recorded(recorded: Recorded, request: IncomingRequest) -> bool:
    """Whether the request is recorded. It is called for each put."""
    return _API in recorded.via or via_of(request) in recorded.via


@contextlib.contextmanager
def recording(operation: OperationRoute, request: RequestContext, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Around the call of an operation: record the change, and write admin actions to the audit log.

    A call that was refused, or that changed nothing, is not recorded.
    """

    def record(outcome: str) -> None:
        if request.changed != 0 and not any(getattr(one, "dry_run", False) for one in arguments.values()):
            request.engine.activity.record(_change(operation, request, arguments, outcome))

    audit: AbstractContextManager[None] = nullcontext()
    if operation.permission.is_audited:
        audit = request.app.gate.recording(operation.permission, request.incoming, request.admission, arguments)
    with audit, reporting(record):
        yield


def _change(operation: OperationRoute, request: RequestContext, arguments: Mapping[str, Any], outcome: str) -> Change:
    recorded = operation.permission.recorded or Recorded()
    via = via_of(request.incoming)
    selector = None if recorded.filter is None else arguments[recorded.filter]
    return Change(
        operation=operation.operation_id or "",
        by=who_of(request),
        via=via,
        outcome=outcome,
        topic=request.changed_topic or _topic(operation, arguments),
        subject=_subject(arguments),
        filter=None if selector is None else filter_text(selector),
        count=request.changed,
        fields=changed_fields(request.was, request.now) if outcome == "done" else (),
        joins=recorded.joins and via != "console",
        by_admin=request.admission.is_of_admin,
    )


def who_of(request: RequestContext) -> str | None:
    """The name of the key, without keys the client's address."""
    return request.admission.key_name or request.incoming.client_address()


def _topic(operation: OperationRoute, arguments: Mapping[str, Any]) -> str | None:
    """The topic that a request concerns; None when it may concern several."""
    topics = operation.permission.topics(arguments)
    call = arguments.get("call")
    if len(topics) != 1 or (call is not None and call.select.patterns):
        return None
    return next(iter(topics))


def _subject(arguments: Mapping[str, Any]) -> str | None:
    """The name of the job, schedule, calendar or group in a request."""
    for name in ("id", "name", "group"):
        if name in arguments:
            return str(arguments[name])
    subject: str | None = getattr(arguments.get("job"), "id", None)
    return subject


def filter_text(selector: BaseModel) -> str | None:
    """The selection of jobs, as it was given; None if there is none."""
    text = selector.model_dump_json(exclude_unset=True, exclude=_NO_FILTER)
    if text == "{}":
        return None
    shown = text.encode()[:_FILTER_SHOWN_BYTES].decode(errors="ignore")
    return text if text == shown else shown + "\N{HORIZONTAL ELLIPSIS}"


def via_of(request: IncomingRequest) -> Via:
    """How a request came: `console`, `cli` or `api`."""
    if request.is_of_console:
        return "console"
    return "cli" if (VIA_HEADER, b"cli") in request.headers else _API

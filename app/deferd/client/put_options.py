"""The options of a put.

`Client.put`, `AsyncClient.put` and the `put` of a bound job definition all take `PutOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from deferd.client.policy_options import PolicyOptions
from deferd.client.request_body import Seconds, refuse_unknown
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.fields import NULL_IS_NONE
from deferd.contract.model import DurabilityLevel, PutJob

Body = TypeVar("Body", bound=BaseModel)


class PutDefaults(PolicyOptions, total=False):
    """The options of a put that a job definition may set for all its jobs. Durations are seconds or a timedelta.

    An option that is left out or None has its default; for the policy see PolicyOptions.
    """

    delay: Seconds | None
    """Time from now until the job is due, 0 to 10 years. Left out: the job is due at once."""
    on_conflict: Literal["reject", "keep", "replace", "append"]
    """What happens if the id is taken: `reject` (the default) raises JobExists, `keep` returns the existing job,
    `replace` replaces it, or raises JobReserved if a consumer holds it; `append` adds this body to the array that the
    consumer gets. An append whose response was lost is not repeated: it raises NoAnswer."""
    conflict_with: Literal["any", "live"]
    """Which jobs of the id are in the way: `any` (the default), also a dead or finished one that is still kept, or only
    a `live` one."""
    if_reserved: Literal["refuse", "after"]
    """What happens if a consumer holds the job that is in the way: `refuse` (the default) raises JobReserved, `after`
    (with `keep`, `replace` or `append`) makes this put its follow-up, which becomes the job when that has ended."""
    max_wait: Seconds | None
    """With `replace` or `append`: each put moves the due time, but never beyond this time after the first put."""
    max_items: int | None
    """With `on_conflict` `append`: the job is due at once when it has this many items, 1 to 10,000."""
    unique_for: Seconds | None
    """How long the id stays taken after the job is finished: puts raise JobExists meanwhile. A cancel frees it."""
    tags: Sequence[str] | None
    """Up to 8 tags, by which the jobs of several topics can be cancelled or rescheduled together."""
    headers: Mapping[str, str] | None
    """Up to 16 names with texts, 4 KiB together, which the consumer gets beside the body."""
    group: str | None
    """The group of the job, such as the customer that it is for. The groups of a topic take turns."""
    priority: int | None
    """0 to 9: of the ready jobs of a topic, those of a higher priority are handed out first. Left out: 0."""
    durability: DurabilityLevel | None
    """The durability level that the put must reach before it returns: `memory`, `fsync` or `replicated:N`."""


class PutOptions(PutDefaults, total=False):
    """The options of a put, all keyword-only."""

    id: str | None
    """The producer's own id for the job, unique within its topic. Left out: the client makes one."""
    run_at: datetime | None
    """When the job is due, instead of `delay`: a datetime with a zone, at most 10 years ahead. The past means now."""
    batch: str | None
    """The batch that the job is part of (see `Client.set_batch`), which must exist and not be sealed. It has the tag
    ``batch:NAME`` as well."""
    traceparent: str | None
    """The W3C trace context of the put. Left out inside a worker's handler: that of the handler's job."""


def set_options(options: Mapping[str, Any], known: type[PolicyOptions] = PutOptions) -> dict[str, Any]:
    """The options that are set: None means "left out", except where it is a value.

    Raises:
        TypeError: an option is not a key of `known`.
    """
    refuse_unknown(options, known)
    return {name: value for name, value in options.items() if value is not None or name in NULL_IS_NONE}


def put_fields(topic: str, body: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a put as the JSON object of the contract. Raises TypeError for an unknown option."""
    fields = {"topic": topic, "body": body, **set_options(options)}
    if fields.get("on_conflict") == "reject":  # the default; `with_id` replaces it by `keep`
        del fields["on_conflict"]
    return fields


def check_put(fields: Mapping[str, Any]) -> PutJob:
    """Validate a job to put, in its JSON form, as the service does. Raises InvalidInput."""
    return check_body(PutJob, fields)


def check_body(model: type[Body], fields: Mapping[str, Any]) -> Body:
    """Validate the JSON object of a request as the service does. Raises InvalidInput."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(body_errors(error)) from None


def body_errors(error: ValidationError) -> list[FieldError]:
    """The errors that pydantic found, with paths that begin with ``"body"``."""
    return [
        FieldError(("body", *details["loc"]), message_of(details), details["input"])
        for details in error.errors(include_url=False, include_context=False)
    ]


def message_of(details: ErrorDetails) -> str:
    """What pydantic found, without its words before what a validator of the contract says."""
    return details["msg"].removeprefix("Value error, ")

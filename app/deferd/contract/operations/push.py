"""How the jobs of a topic are pushed: set, show, remove and test a push."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from deferd.contract import limits
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response, one_of
from deferd.contract.push_targets import target_of
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel, seconds_field
from deferd.contract.webhook_signature import SECRET_PREFIX, secret_key

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_RESERVED_NAMES = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection"),
        *("keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "upgrade", "expect"),
        *("accept-encoding", "traceparent", "tracestate", "cookie"),
    }
)
_RESERVED_PREFIXES = ("webhook-", "deferd-")

Mode = Literal["job", "batch"]
CircuitState = Literal["closed", "open", "half_open"]


class HiddenSecret(str):
    """A secret. What shows values, such as an error or `repr`, shows asterisks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"


def _url(url: str) -> str:
    target_of(url)
    return url


def _secret(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 (pydantic's own)
    secret_key(value)
    return HiddenSecret(value)


def _different(secrets: list[str]) -> list[str]:
    if len(set(secrets)) < len(secrets):
        raise ValueError("must not repeat a secret")
    return secrets


def _fitting(headers: dict[str, str]) -> dict[str, str]:
    for number, name in enumerate(headers, start=1):
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):  # which may be `authorization: Bearer ...` as a whole
            raise ValueError(f"must have names of HTTP headers, of at most 100 characters: name {number} is not one")
        if lower in _RESERVED_NAMES or lower.startswith(_RESERVED_PREFIXES):
            raise ValueError(f"must not have {name!r}, which the service sets itself or does not send")
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("must not repeat a name")
    size = sum(len(text) for pair in headers.items() for text in pair)
    if size > limits.PUSH_HEADERS_BYTES:
        raise ValueError(f"must have at most {limits.PUSH_HEADERS_BYTES} bytes of names and values, has {size}")
    return headers


HEADER_VALUE_PATTERN = r"^[!-~]([ -~]*[!-~])?$"
Url = Annotated[
    str,
    StringConstraints(min_length=1, max_length=limits.PUSH_URL_MAX),
    AfterValidator(_url),
    Field(
        description="Where the jobs are sent: https, or http where `--push-allow` says so.",
        examples=["https://shop.example.com/hooks/close"],
    ),
]
Secret = Annotated[
    str,
    BeforeValidator(_secret),
    Field(
        description=f"`{SECRET_PREFIX}` and the base64 of {limits.PUSH_SECRET_BYTES_MIN} to "
        f"{limits.PUSH_SECRET_BYTES_MAX} random bytes. No response ever shows it.",
        examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    ),
]


class SetPush(StrictModel):
    """How the jobs of a topic are pushed. Unknown fields are refused."""

    FIELDS_THAT_ERRORS_QUOTE: ClassVar[frozenset[str]] = frozenset({"timeout", "max_in_flight", "rate", "mode"})
    """All other fields may hold a secret: a URL, a header, and a field whose name is mistyped."""

    url: Url
    secrets: Annotated[
        list[Secret],
        AfterValidator(_different),
        Field(
            min_length=1,
            max_length=limits.PUSH_SECRETS_MAX,
            description="The secret that signs the requests; two while it is rotated: each request then has both "
            "signatures. Leave it out to keep those that are stored.",
        ),
    ] = Field(default_factory=list)
    timeout: Annotated[
        float,
        seconds_field(
            limits.PUSH_TIMEOUT_MIN_S,
            limits.PUSH_TIMEOUT_MAX_S,
            "How long the target may take to respond, in seconds, with the connection.",
        ),
    ] = limits.PUSH_TIMEOUT_DEFAULT_S
    max_in_flight: int = Field(
        limits.PUSH_IN_FLIGHT_DEFAULT,
        strict=True,
        ge=1,
        le=limits.PUSH_IN_FLIGHT_MAX,
        description=f"Most requests under way at a time, of all processes together, 1 to {limits.PUSH_IN_FLIGHT_MAX}.",
    )
    rate: float | None = Field(
        None,
        strict=True,
        ge=limits.PUSH_RATE_MIN,
        le=limits.PUSH_RATE_MAX,
        allow_inf_nan=False,
        description="Most requests a second, of all processes together; without it there is no limit.",
    )
    headers: Annotated[
        dict[str, Annotated[str, StringConstraints(pattern=HEADER_VALUE_PATTERN)]], AfterValidator(_fitting)
    ] = Field(
        default_factory=dict,
        max_length=limits.PUSH_HEADERS_MAX,
        description=f"Up to {limits.PUSH_HEADERS_MAX} further headers of each request, {limits.PUSH_HEADERS_BYTES} "
        "bytes together. Responses show their names only.",
        examples=[{"authorization": "Bearer 3f9a"}],
    )
    mode: Mode = Field(
        "job",
        description=f'`job`: the request body is the body of one job. `batch`: it is `{{"jobs": [...]}}`, up to '
        f"{limits.PUSH_BATCH_MAX} jobs as a pop returns them.",
    )

    @property
    def jobs_per_request(self) -> int:
        """Most jobs of one request."""
        return limits.PUSH_BATCH_MAX if self.mode == "batch" else 1

    schema_examples = (
        {"url": "https://shop.example.com/hooks/close", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]},
        {
            "url": "https://shop.example.com/hooks/close",
            "timeout": 10,
            "max_in_flight": 50,
            "rate": 100,
            "mode": "batch",
        },
    )


class Push(Response, frozen=True, kw_only=True):
    """How the jobs of a topic are pushed."""

    topic: str
    url: Annotated[str, "Where the jobs are sent."]
    secret_count: Annotated[int, "How many secrets sign the requests. The secrets are never shown."]
    timeout: Annotated[float, "How long the target may take to respond, in seconds."]
    max_in_flight: Annotated[int, "Most requests under way at a time, of all processes together."]
    rate: Annotated[float | None, "Most requests a second; `null`: there is no limit."]
    header_names: Annotated[list[str], "The names of the further headers. Their values are never shown."]
    mode: Annotated[str, one_of(*get_args(Mode)), "`job`: one job a request. `batch`: up to 100."]

    schema_examples = (
        {
            "topic": "orders.close",
            "url": "https://shop.example.com/hooks/close",
            "secret_count": 1,
            "timeout": 30,
            "max_in_flight": 10,
            "rate": None,
            "header_names": [],
            "mode": "job",
        },
    )


class PushTarget(Response, frozen=True, kw_only=True):
    """The state of the target of a pushed topic."""

    circuit: Annotated[
        str,
        one_of(*get_args(CircuitState)),
        "`closed`: jobs are pushed. `open`: the target failed, and nothing is sent until `open_until`. "
        "`half_open`: one request tests whether the target is back.",
    ]
    failures: Annotated[int, "Failures in a row."]
    in_flight: Annotated[int, "Requests under way, as the processes last reported."]
    open_until: Annotated[datetime | None, "Until when the circuit is open; `null` unless it is."]
    last_error: Annotated[str | None, "The last failure; `null` after a success."]
    last_error_at: Annotated[datetime | None, "When that was."]


class RemovedPush(Response, frozen=True, kw_only=True):
    """A push that was removed."""

    topic: str
    removed: Annotated[bool, "`true`."]

    schema_examples = ({"topic": "orders.close", "removed": True},)


class TestedPush(Response, frozen=True, kw_only=True):
    """How a target responded to a test."""

    message_id: Annotated[str, "The `webhook-id` of the request."]
    took: Annotated[float, "Seconds from the beginning of the request to the end of the response."]
    status: Annotated[int | None, "The status of the response; `null` without one."]
    response: Annotated[str, "The first 200 bytes of the response's body, on one line."]
    error: Annotated[str | None, "Why there is no response; `null` if there is one."]

    schema_examples = (
        {
            "message_id": "msg_test_5f0c9a3be7d2481c",
            "took": 0.042,
            "status": 200,
            "response": '{"ok": true}',
            "error": None,
        },
    )


SET_PUSH = Operation(
    "set_push",
    "PUT",
    "/topics/{topic}/push",
    tag="push",
    scope=Scope.ADMIN,
    summary="Push a topic's jobs",
    description=(
        "From now on the service sends each ready job of the topic to `url` as a POST that is signed as in Standard "
        "Webhooks, and nobody can pop them: waiting and new pops of the topic get 409 `topic_pushed`. Status 2xx "
        "finishes the job; a JSON response of at most 64 KiB is its result. 202 leaves it to the receiver, which "
        "finishes it by its receipt before its `ttr` ends. 429 and 503 with Retry-After snooze it, 410 buries it, "
        "and anything else releases it with an error. The target must be allowed by the service's `--push-allow`. A "
        "push that is set again is replaced; without `secrets` it keeps those that it has."
    ),
    response=Push,
    response_description="The topic was not pushed before.",
    status=201,
    done="set the push of",
)
GET_PUSH = Operation(
    "get_push",
    "GET",
    "/topics/{topic}/push",
    tag="push",
    scope=Scope.ADMIN,
    summary="Get a topic's push",
    description=(
        "Returns how the jobs of the topic are pushed, without secrets and without the values of headers. The "
        "state of its target is in `GET /topics/{topic}`."
    ),
    response=Push,
    response_description="The push.",
    errors=("push_not_found",),
)
REMOVE_PUSH = Operation(
    "remove_push",
    "DELETE",
    "/topics/{topic}/push",
    tag="push",
    scope=Scope.ADMIN,
    summary="Stop pushing a topic's jobs",
    description="Consumers can pop the jobs again. Requests under way end as they would.",
    response=RemovedPush,
    response_description="The jobs are not pushed any more.",
    errors=("push_not_found",),
    repeatable=False,
    done="stopped the push of",
)
TEST_PUSH = Operation(
    "test_push",
    "POST",
    "/topics/{topic}/push/test",
    tag="push",
    scope=Scope.ADMIN,
    summary="Send a test to a topic's target",
    description=(
        'Sends a signed request with the header `deferd-test: true` and the body `{"test": true, '
        '"topic": ...}`, and returns what the target responded. It concerns no job, and does not count for the circuit.'
    ),
    response=TestedPush,
    response_description="What the target responded.",
    errors=("push_not_found",),
    repeatable=False,
    done="tested the push of",
)

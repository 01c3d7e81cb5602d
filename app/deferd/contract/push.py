"""How the jobs of a topic are pushed: the request of `PUT /topics/{topic}/push`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from deferd.contract import limits
from deferd.contract.constraints import seconds_field
from deferd.contract.push_targets import target_of
from deferd.contract.strict_model import StrictModel
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
            raise ValueError(f"must have names of HTTP headers, of at most 100 characters: name {number} is none")
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

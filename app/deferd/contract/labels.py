"""Tags and headers of jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from deferd.contract import limits
from deferd.contract.strict_model import StrictModel


def _all_different(tags: list[str]) -> list[str]:
    if len(set(tags)) < len(tags):
        raise ValueError("must not repeat a tag")
    return tags


def _fitting(headers: dict[str, str]) -> dict[str, str]:
    for name in headers:
        if not name or any(character < " " or "\x7f" <= character <= "\x9f" for character in name):
            raise ValueError(f"must have names without control characters and not empty: {name!r:.100}")
    size = sum(len(text.encode()) for pair in headers.items() for text in pair)
    if size > limits.HEADERS_OF_JOB_BYTES:
        raise ValueError(f"must have at most {limits.HEADERS_OF_JOB_BYTES} bytes of names and values, has {size}")
    return headers


Tag = Annotated[
    str, StringConstraints(pattern=limits.TAG_PATTERN), Field(description="A tag.", examples=["order-1042"])
]
Tags = Annotated[
    list[Tag],
    AfterValidator(_all_different),
    Field(
        max_length=limits.TAGS_MAX,
        description=f"Up to {limits.TAGS_MAX} tags, by which the jobs of several topics can be cancelled or "
        "rescheduled together.",
        examples=[["order-1042", "customer:7"]],
    ),
]
_HeaderText = Annotated[str, StringConstraints(pattern=limits.HEADER_TEXT_PATTERN)]
Headers = Annotated[
    dict[str, _HeaderText],
    AfterValidator(_fitting),
    Field(
        max_length=limits.HEADERS_OF_JOB_MAX,
        description=f"Up to {limits.HEADERS_OF_JOB_MAX} names with texts, {limits.HEADERS_OF_JOB_BYTES} bytes "
        "together, without control characters; passed to the consumer beside the body.",
        examples=[{"tenant": "acme"}],
    ),
]


class Labelled(StrictModel):
    """What a producer notes on a job, for selections and for its consumer."""

    tags: Tags | None = None
    headers: Headers | None = None

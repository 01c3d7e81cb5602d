"""The query parameters that several operations have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from deferd.contract import limits
from deferd.contract.strict_model import StrictModel

_ONE = limits.TOPIC_OR_PATTERN.removeprefix("^").removesuffix("$")
TOPICS_PATTERN = f"^{_ONE}(,{_ONE}){{0,{limits.POP_TOPICS_MAX - 1}}}$"
"""Names of topics, or patterns, with commas between them."""


def distinct(topics: str) -> str:
    """The same. Raises ValueError if one is named twice."""
    names = topics.split(",")
    if len(set(names)) < len(names):
        raise ValueError("must name each topic once")
    return topics


TopicsFilter = Annotated[str, StringConstraints(pattern=TOPICS_PATTERN), AfterValidator(distinct)]
Cursor = Annotated[
    str | None,
    Field(max_length=limits.CURSOR_MAX, description="`next_cursor` of the previous page; omitted for the first."),
]
WithBodies = Annotated[
    bool,
    Field(
        description="`false`: leave out `body` and `result`, and say how long they are: `body_bytes`, `result_bytes`."
    ),
]


class TopicsQuery(StrictModel):
    """The topics that a read of several covers."""

    topics: TopicsFilter | None = Field(
        None,
        description=f"Only these topics: up to {limits.POP_TOPICS_MAX} names or patterns, such as `orders.*`, with "
        "commas between them; by default all that the key sees.",
    )

    @property
    def names(self) -> list[str]:
        """The names and patterns; none for all topics."""
        return [] if self.topics is None else self.topics.split(",")


def page_limit(things: str, *, default: int = limits.PAGE_DEFAULT, which: str = "") -> Any:
    """The field `limit`: how many a response lists at most, 1 to 1000. `which` says which ones."""
    about = f"Maximum number of {things}, 1 to {limits.PAGE_MAX}{which and f': {which}'}."
    return Field(default, strict=True, ge=1, le=limits.PAGE_MAX, description=about)

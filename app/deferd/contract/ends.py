"""The end of a job, and the job that it puts.

A job ends when it is finished, becomes dead, or is cancelled. In the same step of the store it may put a job into
another topic, which says what became of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, StringConstraints

from deferd.contract import limits
from deferd.contract.strict_model import StrictModel

Outcome = Literal["finished", "dead", "cancelled"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


def _each_once(outcomes: list[Outcome]) -> list[Outcome]:
    if len(set(outcomes)) < len(outcomes):
        raise ValueError("must not repeat an outcome")
    return [outcome for outcome in OUTCOMES if outcome in outcomes]


class OnEnd(StrictModel):
    """The job that the end of a job puts, in the same step of the store. Its own end puts none."""

    topic: Annotated[str, StringConstraints(pattern=limits.TOPIC_PATTERN)] = Field(
        description="Topic of the job that is put. It must be in the same shard of the store (422 `different_shard`), "
        "and have one partition.",
        examples=["orders.ended"],
    )
    on: Annotated[list[Outcome], AfterValidator(_each_once)] | None = Field(
        default=None,
        min_length=1,
        max_length=len(OUTCOMES),
        description="Which ends put it: `finished`, `dead`, `cancelled`. Default: all. A redrive, or the undo of a "
        "cancel, brings the job back, so that it may end once more.",
    )
    id: Annotated[str, StringConstraints(pattern=limits.END_ID_PATTERN, max_length=limits.END_ID_MAX)] | None = Field(
        default=None,
        description="Id of the job that is put, with the places `{topic}`, `{id}` and `{outcome}`. A job with that id "
        "that is there already stays as it is. Default: a new id. The job has a new id also when this one would be "
        "too long, or when the store cannot see in one step that it is free: while the topic has jobs on the shelf, "
        "or several partitions.",
        examples=["ended-{id}"],
    )
    body: bool = Field(
        default=False, strict=True, description="Whether its body has the `body` of the job that has ended."
    )

    schema_examples = (
        {"topic": "orders.ended"},
        {"topic": "orders.ended", "on": ["dead", "cancelled"], "id": "ended-{id}", "body": True},
    )

    def to_store(self) -> dict[str, Any]:
        """As the store and responses have it: what is as by default is left out."""
        return self.model_dump(exclude_defaults=True)

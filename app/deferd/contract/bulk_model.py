"""Typed models of calls on many jobs: which jobs are meant, and what happens to them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from deferd.contract import limits
from deferd.contract.flow import Group
from deferd.contract.model import AsTask, Cutoff, Delay, DueInstant, IfReserved, Instant, JobId, Tag, Topic
from deferd.contract.strict_model import StrictModel


class JobName(StrictModel):
    """The name of one job."""

    topic: Topic
    id: JobId


TopicSelector = Annotated[
    str,
    StringConstraints(pattern=limits.TOPIC_SELECTOR_PATTERN),
    Field(description="A topic, or a pattern in which `*` stands for any characters.", examples=["orders.*"]),
]


class Select(StrictModel):
    """The selected jobs: exactly one of `ids`, `tag`, `group` and `state`.

    Jobs put after the call began are not selected.
    """

    ids: list[JobName] | None = Field(
        default=None, min_length=1, max_length=limits.SELECT_IDS_MAX, description="1 to 1000 jobs by their names."
    )
    tag: Tag | None = Field(default=None, description="The jobs with this tag, in all topics.")
    group: Group | None = Field(
        default=None,
        description="The jobs of this group, in the topics of `topics`. They are searched state by state: a job that "
        "changes its state during the search may be missed.",
    )
    state: Literal["delayed", "ready"] | None = Field(
        default=None, description="The jobs in this state, in the topics of `topics`."
    )
    due_after: Instant | None = Field(default=None, description="Only with `state`: jobs due at this instant or later.")
    due_before: Instant | None = Field(default=None, description="Only with `state`: jobs due before this instant.")
    topics: list[TopicSelector] | None = Field(
        default=None,
        min_length=1,
        max_length=limits.SELECT_TOPICS_MAX,
        description="Only jobs of these topics, 1 to 100 names or patterns. Required with `state` and `group`.",
    )

    cutoff: Cutoff | None = None

    @model_validator(mode="after")
    def _one_selector(self) -> Select:
        given = [name for name in ("ids", "tag", "group", "state") if getattr(self, name) is not None]
        if len(given) != 1:
            named = f": it has {' and '.join(f'`{name}`' for name in given)}" if given else ": it has none"
            raise ValueError(f"must have exactly one of `ids`, `tag`, `group` and `state`{named}")
        if (self.state is not None or self.group is not None) and self.topics is None:
            raise ValueError(f"must have `topics` with `{given[0]}`")
        if self.state is None and (self.due_after is not None or self.due_before is not None):
            raise ValueError("must have `due_after` and `due_before` only with `state`")
        return self

    @property
    def patterns(self) -> set[str]:
        """The patterns of topics."""
        return {topic for topic in self.topics or () if "*" in topic}

    @property
    def named_topics(self) -> set[str]:
        """The topics that are named without a pattern, in `ids` too."""
        of_ids = {job.topic for job in self.ids or ()}
        return of_ids | {topic for topic in self.topics or () if "*" not in topic}

    schema_examples = (
        {"tag": "order-1042"},
        {"state": "delayed", "topics": ["orders.*"], "due_before": "2030-01-31T09:30:00.000Z"},
    )


RequestId = Annotated[
    str,
    StringConstraints(pattern=limits.ID_PATTERN),
    Field(
        description="Makes the call safe to repeat, for an hour: a call with the same `request_id` continues the first "
        "one. It acts on no job twice and on none put since, and its numbers cover all attempts."
    ),
]


class _BulkCall(StrictModel):
    select: Select
    limit: int = Field(
        default=limits.BULK_DEFAULT,
        strict=True,
        ge=1,
        le=limits.BULK_MAX,
        description="Most jobs to act on, 1 to 100000.",
    )
    dry_run: bool = Field(default=False, strict=True, description="Only count the jobs.")
    samples: int = Field(
        default=0,
        strict=True,
        ge=0,
        le=limits.SAMPLES_MAX,
        description="Only with `dry_run`: how many of the jobs to name, 0 to 100. With samples the response has a "
        "`cutoff` too: with that in `select`, a call acts on nothing that was not counted.",
    )
    request_id: RequestId | None = None

    as_task: AsTask = False

    @property
    def is_remembered(self) -> bool:
        """Whether the store keeps a note of what the call does: for a repetition, or so that it moves no job twice."""
        return not self.dry_run and (self.request_id is not None or isinstance(self, RescheduleSelected))

    @model_validator(mode="after")
    def _task_for_many(self) -> Self:
        if self.as_task and (self.dry_run or self.select.ids is not None):
            raise ValueError("must have `as_task` only without `dry_run` and `ids`")
        return self

    @model_validator(mode="after")
    def _samples_of_a_dry_run(self) -> Self:
        if self.samples and not self.dry_run:
            raise ValueError("must have `samples` only with `dry_run`")
        return self


class CancelSelected(_BulkCall):
    """Jobs to cancel together."""

    if_reserved: Annotated[
        IfReserved,
        Field(
            description="What to do with jobs that a consumer holds: `cancel` them too (the consumer's next request "
            "for one gets 410 `job_cancelled`), or leave them: `refuse`."
        ),
    ] = "cancel"
    undo: bool = Field(
        default=False,
        strict=True,
        description="Keep the jobs that waited for ten minutes, as far as there is room: until then `POST /jobs/undo` "
        "puts them back. Only with `request_id`. Also a task then acts on 100000 jobs at most.",
    )

    @model_validator(mode="after")
    def _undo_by_name(self) -> Self:
        if self.undo and (self.request_id is None or self.dry_run):
            raise ValueError("must have `undo` only with `request_id`, and without `dry_run`")
        return self

    schema_examples = (
        {"select": {"tag": "order-1042"}},
        {"select": {"ids": [{"topic": "orders.close", "id": "order-1042"}, {"topic": "payments", "id": "payment-7"}]}},
    )


class UndoCancel(StrictModel):
    """A cancel to undo."""

    request_id: RequestId = Field(description="The `request_id` of the cancel, which had `undo`.")

    schema_examples = ({"request_id": "campaign-9"},)


def _not_zero(seconds: float) -> float:
    if round(seconds * 1000) == 0:
        raise ValueError("must be at least 0.001 seconds away from 0")
    return seconds


By = Annotated[
    float,
    Field(
        strict=True,
        ge=-limits.DELAY_MAX_S,
        le=limits.DELAY_MAX_S,
        allow_inf_nan=False,
        description="Seconds by which each due time is moved, negative for earlier; not 0. No job becomes due before "
        "now. A job that would become due more than 10 years ahead stays as it is: it is in `matched` and not in "
        "`done`.",
    ),
    AfterValidator(_not_zero),
]


Spread = Annotated[
    float,
    Field(
        strict=True,
        ge=0.001,
        le=limits.SPREAD_MAX_S,
        allow_inf_nan=False,
        description="Seconds over which the jobs are spread: each is due later by a part of this that depends on its "
        "id.",
    ),
]


class RescheduleSelected(_BulkCall):
    """Jobs to reschedule together: exactly one of `by`, `delay` and `run_at`, maybe with a `spread`."""

    by: By | None = None
    delay: Delay | None = None
    run_at: DueInstant | None = None
    spread: Spread | None = None

    @model_validator(mode="after")
    def _one_time(self) -> RescheduleSelected:
        if sum(value is not None for value in (self.by, self.delay, self.run_at)) != 1:
            raise ValueError("must have exactly one of `by`, `delay` and `run_at`")
        return self

    schema_examples = (
        {"select": {"tag": "customer:7"}, "by": 3600, "request_id": "outage-17"},
        {"select": {"state": "ready", "topics": ["orders.*"]}, "delay": 600, "dry_run": True},
        {"select": {"tag": "campaign-9"}, "delay": 0, "spread": 3600},
    )

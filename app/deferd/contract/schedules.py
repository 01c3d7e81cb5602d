"""Typed models of schedules: which job is put again and again, and when."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from deferd.contract import limits
from deferd.contract.constraints import constraint, seconds_field
from deferd.contract.labels import Labelled
from deferd.contract.model import Durability, Instant, JobPolicy, JsonValue, Topic, Traceparent
from deferd.contract.strict_model import StrictModel
from deferd.contract.windows import TIME_PATTERN, Days, WindowSpec, ZoneName


def _all_different(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("must not repeat a time")
    return values


ScheduleName = Annotated[
    str,
    StringConstraints(pattern=limits.TOPIC_PATTERN),
    Field(description="Name of the schedule; its jobs have ids such as `NAME:20261122T030000Z`.", examples=["nightly"]),
]
Overlap = Literal["allow", "skip", "replace"]
CatchUp = Literal["none", "last", "all"]


TimesOfDay = Annotated[
    list[Annotated[str, StringConstraints(pattern=TIME_PATTERN)]],
    AfterValidator(_all_different),
    Field(
        min_length=1,
        max_length=limits.TIMES_OF_DAY_MAX,
        description="Local times of day, HH:MM.",
        examples=[["09:00", "17:30"]],
    ),
]


class ScheduledJob(JobPolicy, Labelled):
    """The job of each run: the fields of a put, but those that the schedule decides (topic, id and due time)."""

    body: JsonValue = Field(default=None, description="Any JSON value; passed to the consumer unchanged.")
    traceparent: Traceparent | None = None
    durability: Durability | None = Field(
        default=None,
        description="Level that `POST /schedules/{name}/run` waits for. Nobody waits for the other runs: these are as "
        "durable as the store is.",
    )


class Timing(StrictModel):
    """When a schedule runs: exactly one of `cron`, `every` and `at`."""

    cron: Annotated[str, StringConstraints(max_length=limits.CRON_LENGTH)] | None = Field(
        default=None,
        description="A cron expression of five fields (minute, hour, day of month, month, day of week; names, ranges, "
        "steps, `L`, `#`), six with seconds first, or a nickname such as `@daily`.",
        examples=["*/5 9-17 * * mon-fri"],
    )
    every: (
        Annotated[
            float,
            seconds_field(
                limits.EVERY_MIN_S,
                limits.TEN_YEARS_S,
                "Seconds from one run to the next, counted from `start_at`, else from when the schedule was created.",
            ),
        ]
        | None
    ) = None
    at: TimesOfDay | None = None
    days: Days | None = Field(default=None, description="Only with `at`: days of the week. Default: all.")
    zone: ZoneName = "UTC"
    start_at: Instant | None = Field(default=None, description="No run is earlier than this instant.")
    end_at: Instant | None = Field(default=None, description="No run is later than this instant.")

    @model_validator(mode="after")
    def _one_rule(self) -> Timing:
        given = [name for name in ("cron", "every", "at") if getattr(self, name) is not None]
        if len(given) != 1:
            named = f": it has {' and '.join(f'`{name}`' for name in given)}" if given else ": it has none"
            raise ValueError(f"must have exactly one of `cron`, `every` and `at`{named}")
        if self.days is not None and self.at is None:
            raise ValueError("must have `days` only with `at`")
        if self.start_at is not None and self.end_at is not None and self.end_at < self.start_at:
            raise ValueError("must have an `end_at` that is not before `start_at`")
        return self


class PutSchedule(Timing):
    """A schedule to create or replace."""

    topic: Topic
    job: ScheduledJob = Field(default=ScheduledJob(), description="The fields of the job that each run is.")
    spread: Annotated[float, constraint("spread")] | None = Field(
        default=None,
        description="Each run is due up to this many seconds later; how much depends on the name of the schedule, so "
        "the runs keep their distance. That of `job` depends on the id of each run, so it differs by run.",
    )
    window: WindowSpec | None = None
    max_runs: int | None = Field(
        default=None, strict=True, ge=1, le=limits.RUNS_MAX, description="The schedule ends after this many runs."
    )
    overlap: Overlap = Field(
        default="allow",
        description="What to do when a run is due and the run before it is still live (delayed, ready or reserved): "
        "`allow` both, `skip` the new one, or `replace` the old one, which is cancelled.",
    )
    catch_up: CatchUp = Field(
        default="last",
        description="Which runs to make up for that were missed while everything was down: `none`, the `last` one, or "
        f"`all`, at most the last {limits.CATCH_UP_MAX}.",
    )
    paused: bool = Field(default=False, strict=True, description="Whether it makes no runs.")

    @model_validator(mode="after")
    def _one_window(self) -> PutSchedule:
        if self.window is not None and self.job.window is not None:
            raise ValueError("must have a `window` of its own or in `job`, not both")
        return self

    schema_examples = (
        {
            "topic": "reports",
            "job": {"body": {"report": "sales"}, "max_attempts": 5},
            "cron": "0 3 * * *",
            "zone": "Europe/Berlin",
            "overlap": "skip",
        },
        {"topic": "mail.digest", "at": ["09:00", "17:30"], "days": ["mon", "fri"], "zone": "America/New_York"},
        {"topic": "probe", "every": 30, "job": {"spread": 5}, "catch_up": "none"},
    )

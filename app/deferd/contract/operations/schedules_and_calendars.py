"""Schedules: which job is put again and again, and when. Calendars: opening hours under a name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from deferd.contract import limits
from deferd.contract.model import Durability, Instant, JobPolicy, JsonValue, Labelled, Topic, Traceparent
from deferd.contract.operations.jobs import StoredJob
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response, one_of, shown_as
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel, constraint, seconds_field
from deferd.contract.windows import TIME_PATTERN, Day, Days, Window, Windows, WindowSpec, ZoneName


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


if TYPE_CHECKING:
    _AnyOverlap: TypeAlias = Overlap
    _AnyCatchUp: TypeAlias = CatchUp
else:
    _AnyOverlap = _AnyCatchUp = str  # a client reads the values of later services too


class Schedule(Response, frozen=True, kw_only=True):
    """A schedule as the service returns it. Optional fields of its definition that it does not have are omitted."""

    name: Annotated[str, "Its name."]
    topic: Annotated[str, "The topic of its jobs."]
    job: Annotated[
        Mapping[str, Any], shown_as(ScheduledJob), "The fields of its jobs; not in a list without `jobs`."
    ] = {}
    cron: Annotated[str | None, "The cron expression."] = None
    every: Annotated[float | None, "Seconds from one run to the next."] = None
    at: Annotated[list[str] | None, "Local times of day."] = None
    days: Annotated[list[str] | None, shown_as(list[Day] | None), "Days of the week."] = None
    start_at: Annotated[datetime | None, "No run is earlier."] = None
    end_at: Annotated[datetime | None, "No run is later."] = None
    zone: Annotated[str, "Its time zone."]
    spread: Annotated[float | None, "Seconds within which the runs are spread, by the schedule's name."] = None
    window: Annotated[Any, shown_as(WindowSpec | None), "Opening hours for the runs."] = None
    max_runs: Annotated[int | None, "The schedule ends after this many runs."] = None
    overlap: Annotated[
        _AnyOverlap, one_of(*get_args(Overlap)), "What to do when a run is due and the one before is live."
    ]
    catch_up: Annotated[_AnyCatchUp, one_of(*get_args(CatchUp)), "Which missed runs are made up for."]
    paused: Annotated[bool, "Whether it is paused."]
    ended: Annotated[bool, "Whether it has ended: `end_at` has passed, or `max_runs` is reached."]
    next_run_at: Annotated[datetime | None, "When its next run is due; `null` while paused, and at the end."]
    next_job: Annotated[
        str | None, "The id of the job of its next run; `null` also while the topic has no room for it."
    ]
    last_run_at: Annotated[datetime | None, "When its last run was due; `null` before the first."]
    last_job: Annotated[str | None, "The id of the job of its last run."]
    runs: Annotated[int, "How many runs there were."]
    skips: Annotated[int, "How many were skipped: the run before was live, or the job was cancelled before it was due."]
    missed: Annotated[int, "How many were missed and not made up for."]
    created_at: Annotated[datetime, "When it was created."]
    updated_at: Annotated[datetime, "When it was last put, paused or resumed."]

    @property
    def definition(self) -> dict[str, Any]:
        """The fields that were put, as the JSON object of the contract, without those that are null."""
        fields = self.fields
        return {name: fields[name] for name in PutSchedule.model_fields if name in fields}

    schema_examples = (
        {
            "name": "nightly",
            "topic": "reports",
            "job": {"max_attempts": 5, "body": {"report": "sales"}},
            "cron": "0 3 * * *",
            "zone": "Europe/Berlin",
            "overlap": "skip",
            "catch_up": "last",
            "paused": False,
            "ended": False,
            "next_run_at": "2026-11-23T02:00:00.000Z",
            "next_job": "nightly:20261123T020000Z",
            "last_run_at": "2026-11-22T02:00:00.000Z",
            "last_job": "nightly:20261122T020000Z",
            "runs": 41,
            "skips": 0,
            "missed": 1,
            "created_at": "2026-10-11T06:56:58.123Z",
            "updated_at": "2026-10-11T06:56:58.123Z",
        },
    )


class SchedulePage(Response, frozen=True, kw_only=True):
    """One page of schedules."""

    schedules: list[Schedule]
    next_cursor: Annotated[str | None, "The `cursor` of the next page; `null` on the last page."]

    schema_examples = ({"schedules": [*Schedule.schema_examples], "next_cursor": None},)


class PreviewedRun(Response, frozen=True, kw_only=True):
    """A run to come."""

    at: Annotated[datetime, "When it is due, in the zone of the schedule."]
    utc: Annotated[datetime, "The same instant in UTC."]


class SchedulePreview(Response, frozen=True, kw_only=True):
    """When the next runs are due, in order."""

    schema_name = "Preview"

    runs: list[PreviewedRun]
    tzdata: Annotated[str, "The release of the IANA time zone database that the service uses."]

    schema_examples = (
        {"runs": [{"at": "2026-11-23T03:00:00+01:00", "utc": "2026-11-23T02:00:00Z"}], "tzdata": "2026.3"},
    )


PUT_SCHEDULE = Operation(
    "put_schedule",
    "PUT",
    "/schedules/{name}",
    tag="schedules",
    scope=Scope.PUT,
    summary="Create or replace a schedule",
    description=(
        "Each run of a schedule is a job with an id such as `NAME:20261122T030000Z`. The next run waits in the topic "
        "as a delayed job: cancel that job to skip the run, or change it to change only this run. Counts stay when a "
        "schedule is replaced; a schedule that is put again unchanged is left alone. Without `paused` a paused "
        "schedule stays paused. An `every` counts from `start_at`, else from when the schedule was created."
    ),
    response=Schedule,
    response_description="The schedule was replaced, or is unchanged.",
    errors=("schedule_exists",),
    repeatable=False,
    done="put schedule",
)
LIST_SCHEDULES = Operation(
    "list_schedules",
    "GET",
    "/schedules",
    tag="schedules",
    scope=Scope.READ,
    summary="List schedules",
    description=(
        "Returns the schedules page by page, by name within each shard of the store. About 2000 are looked at "
        "for a page, and it ends after 1 MiB of jobs, so it may be short or empty and yet have a `next_cursor`. A key "
        "for some topics sees only the schedules of those."
    ),
    response=SchedulePage,
    response_description="One page of schedules.",
)
GET_SCHEDULE = Operation(
    "get_schedule",
    "GET",
    "/schedules/{name}",
    tag="schedules",
    scope=Scope.READ,
    summary="Get a schedule",
    description=(
        "Returns the schedule, its next and its last run, and how many runs there were. The next run has no "
        "`next_job` if the one that waited was cancelled."
    ),
    response=Schedule,
    response_description="The schedule.",
    errors=("schedule_not_found",),
)
DELETE_SCHEDULE = Operation(
    "delete_schedule",
    "DELETE",
    "/schedules/{name}",
    tag="schedules",
    scope=Scope.PUT,
    summary="Delete a schedule",
    description=(
        "Deletes the schedule and cancels its next run, and those that were postponed. Runs that are due stay."
    ),
    response=Schedule,
    response_description="The schedule as it was.",
    errors=("schedule_not_found",),
    done="deleted schedule",
)
PAUSE_SCHEDULE = Operation(
    "pause_schedule",
    "POST",
    "/schedules/{name}/pause",
    tag="schedules",
    scope=Scope.PUT,
    summary="Pause a schedule",
    description="Cancels the next run and postponed ones; there are no others until the schedule is resumed.",
    response=Schedule,
    response_description="The schedule in its new state.",
    errors=("schedule_not_found",),
    done="paused schedule",
)
RESUME_SCHEDULE = Operation(
    "resume_schedule",
    "POST",
    "/schedules/{name}/resume",
    tag="schedules",
    scope=Scope.PUT,
    summary="Resume a schedule",
    description="Ends a pause. The next run is the first one from now; none counts as missed.",
    response=Schedule,
    response_description="The schedule in its new state.",
    errors=("schedule_not_found",),
    done="resumed schedule",
)
RUN_SCHEDULE = Operation(
    "run_schedule",
    "POST",
    "/schedules/{name}/run",
    tag="schedules",
    scope=Scope.PUT,
    summary="Run a schedule now",
    description=(
        "Puts the schedule's job now, in addition to its runs: it does not count as a run, and `overlap` and "
        "`max_runs` do not apply to it. Each call puts another job, with an id such as `NAME:20261122T030012.345Z`."
    ),
    response=StoredJob,
    response_description="The job was put.",
    errors=("schedule_not_found", "durability_unavailable", "topic_full"),
    status=201,
    repeatable=False,
    done="ran schedule",
)
PREVIEW_SCHEDULE = Operation(
    "preview_schedule",
    "GET",
    "/schedules/{name}/preview",
    tag="schedules",
    scope=Scope.READ,
    summary="Preview a schedule's runs",
    description="Returns when the next runs are due, as if the schedule was not paused; none when it has ended.",
    response=SchedulePreview,
    response_description="The runs to come.",
    errors=("schedule_not_found", "rate_limited"),
)
PREVIEW_UNSAVED_SCHEDULE = Operation(
    "preview_unsaved_schedule",
    "POST",
    "/schedules/preview",
    tag="schedules",
    scope=Scope.READ,
    summary="Preview a schedule that is not stored",
    description=(
        "Returns when its first runs would be due if it was created now, and stores nothing. With a `spread` the "
        "times depend on the name that the schedule will have."
    ),
    response=SchedulePreview,
    response_description="The runs to come.",
    errors=("rate_limited",),
)


class PutCalendar(StrictModel):
    """Opening hours under a name, for jobs, topics and schedules."""

    windows: Windows = Field(description="It is open while at least one of these windows is.")

    schema_examples = ({"windows": [Window.schema_examples[0]]},)


class Calendar(Response, frozen=True, kw_only=True):
    """Opening hours under a name."""

    name: Annotated[str, "Name of the calendar."]
    windows: Annotated[list[Window], "It is open while at least one of these windows is."]

    schema_examples = ({"name": "office", "windows": [{**Window.schema_examples[0], "except": ["2026-12-24"]}]},)


class CalendarList(Response, frozen=True, kw_only=True):
    """All calendars, by name."""

    calendars: list[Calendar]

    schema_examples = ({"calendars": [*Calendar.schema_examples]},)


class DeletedCalendar(Response, frozen=True, kw_only=True):
    """A calendar that was deleted."""

    name: Annotated[str, "Its name."]
    deleted: Annotated[bool, "`true`."]

    schema_examples = ({"name": "office", "deleted": True},)


PUT_CALENDAR = Operation(
    "put_calendar",
    "PUT",
    "/calendars/{name}",
    tag="calendars",
    scope=Scope.ADMIN,
    summary="Create or replace a calendar",
    description=(
        "Stores opening hours under a name, which the `window` of jobs, topics and schedules may have. A change "
        "counts within a second, for due times that are placed from then on: jobs that wait stay where they are. "
        f"There are at most {limits.CALENDARS_MAX} calendars."
    ),
    response=Calendar,
    response_description="The calendar was created.",
    status=201,
    done="put calendar",
)
LIST_CALENDARS = Operation(
    "list_calendars",
    "GET",
    "/calendars",
    tag="calendars",
    scope=Scope.READ,
    summary="List calendars",
    description="Lists all calendars by name.",
    response=CalendarList,
    response_description="The calendars.",
)
GET_CALENDAR = Operation(
    "get_calendar",
    "GET",
    "/calendars/{name}",
    tag="calendars",
    scope=Scope.READ,
    summary="Get a calendar",
    description="Returns the windows of a calendar.",
    response=Calendar,
    response_description="The calendar.",
    errors=("calendar_not_found",),
)
DELETE_CALENDAR = Operation(
    "delete_calendar",
    "DELETE",
    "/calendars/{name}",
    tag="calendars",
    scope=Scope.ADMIN,
    summary="Delete a calendar",
    description=(
        "Jobs, topics and schedules that still name it are always open from then on; new ones that name it are refused."
    ),
    response=DeletedCalendar,
    response_description="The calendar was deleted.",
    errors=("calendar_not_found",),
    repeatable=False,
    done="deleted calendar",
)

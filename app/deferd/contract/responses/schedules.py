"""The responses about schedules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, get_args

from deferd.contract import schedules as requests
from deferd.contract.responses.response import Response, one_of, shown_as
from deferd.contract.windows import Day, WindowSpec

if TYPE_CHECKING:
    from deferd.contract.schedules import CatchUp, Overlap
else:
    CatchUp = Overlap = str  # a client reads the values of later services too


class Schedule(Response, frozen=True, kw_only=True):
    """A schedule as the service returns it. Optional fields of its definition that it does not have are omitted."""

    name: Annotated[str, "Its name."]
    topic: Annotated[str, "The topic of its jobs."]
    job: Annotated[
        Mapping[str, Any], shown_as(requests.ScheduledJob), "The fields of its jobs; not in a list without `jobs`."
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
        Overlap, one_of(*get_args(requests.Overlap)), "What to do when a run is due and the one before is live."
    ]
    catch_up: Annotated[CatchUp, one_of(*get_args(requests.CatchUp)), "Which missed runs are made up for."]
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
        return {name: fields[name] for name in requests.PutSchedule.model_fields if name in fields}

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


class Preview(Response, frozen=True, kw_only=True):
    """When the next runs are due, in order."""

    runs: list[PreviewedRun]
    tzdata: Annotated[str, "The release of the IANA time zone database that the service uses."]

    schema_examples = (
        {"runs": [{"at": "2026-11-23T03:00:00+01:00", "utc": "2026-11-23T02:00:00Z"}], "tzdata": "2026.3"},
    )

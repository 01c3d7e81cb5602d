"""The schemas of responses about schedules, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from deferd.contract.schedules import CatchUp, Overlap, ScheduledJob
from deferd.contract.windows import Day, WindowSpec


class Schedule(BaseModel):
    """A schedule as the service returns it. Optional fields of its definition that it does not have are omitted."""

    name: str = Field(description="Its name.")
    topic: str = Field(description="The topic of its jobs.")
    job: ScheduledJob | None = Field(None, description="The fields of its jobs; not in a list without `jobs`.")
    cron: str | None = Field(None, description="The cron expression.")
    every: float | None = Field(None, description="Seconds from one run to the next.")
    at: list[str] | None = Field(None, description="Local times of day.")
    days: list[Day] | None = Field(None, description="Days of the week.")
    start_at: datetime | None = Field(None, description="No run is earlier.")
    end_at: datetime | None = Field(None, description="No run is later.")
    zone: str = Field(description="Its time zone.")
    jitter: float | None = Field(None, description="Seconds within which the runs are spread, differently by run.")
    spread: float | None = Field(None, description="Seconds within which the runs are spread, by the schedule's name.")
    window: WindowSpec | None = Field(None, description="Opening hours for the runs.")
    max_runs: int | None = Field(None, description="After so many runs it has ended.")
    overlap: Overlap = Field(description="What to do when a run is due and the one before is live.")
    catch_up: CatchUp = Field(description="Which missed runs are made up for.")
    paused: bool = Field(description="Whether it is paused.")
    ended: bool = Field(description="Whether it has ended: `end_at` has passed, or `max_runs` is reached.")
    next_run_at: datetime | None = Field(description="When its next run is due; `null` while paused, and at the end.")
    next_job: str | None = Field(
        description="The id of the job of its next run; `null` also while the topic has no room for it."
    )
    last_run_at: datetime | None = Field(description="When its last run was due; `null` before the first.")
    last_job: str | None = Field(description="The id of the job of its last run.")
    runs: int = Field(description="How many runs there were.")
    skips: int = Field(
        description="How many were skipped: the run before was live, or the job was cancelled before it was due."
    )
    missed: int = Field(description="How many were missed and not made up for.")
    created_at: datetime = Field(description="When it was created.")
    updated_at: datetime = Field(description="When it was last put, paused or resumed.")


class SchedulePage(BaseModel):
    """One page of schedules."""

    schedules: list[Schedule]
    next_cursor: str | None = Field(description="The `cursor` of the next page; `null` on the last page.")


class PreviewedRun(BaseModel):
    """A run to come."""

    at: datetime = Field(description="When it is due, in the zone of the schedule.")
    utc: datetime = Field(description="The same instant in UTC.")


class Preview(BaseModel):
    """When the next runs are due, in order."""

    runs: list[PreviewedRun]
    tzdata: str = Field(description="The release of the IANA time zone database that the service uses.")

"""Schedules, and calendars, which are opening hours under a name. The methods of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from deferd.client.policy_options import PolicyOptions
from deferd.client.request_body import (
    OneWindow,
    OpeningHours,
    Seconds,
    encode,
    in_rfc_3339,
    in_seconds,
    refuse_unknown,
    set_fields,
    without_none,
)
from deferd.client.requests import ApiRequest, read_nothing, reader_of, request_for
from deferd.client.sender import Sender
from deferd.contract.errors import ScheduleNotFound
from deferd.contract.limits import PREVIEW_DEFAULT
from deferd.contract.model import DurabilityLevel
from deferd.contract.operations import schedules_and_calendars as operations
from deferd.contract.operations.jobs import Job
from deferd.contract.operations.schedules_and_calendars import (
    Calendar,
    CatchUp,
    Overlap,
    PutSchedule,
    Schedule,
    ScheduledJob,
    SchedulePreview,
)
from deferd.contract.operations.schedules_and_calendars import PreviewedRun as Run

_DURATIONS = ("every", "spread")
_INSTANTS = ("start_at", "end_at")


class ScheduledJobOptions(PolicyOptions, total=False):
    """The job of each run: the options of a put but the id and the due time. Durations are seconds or a timedelta."""

    body: Any
    """Any JSON value."""
    tags: Sequence[str] | None
    headers: Mapping[str, str] | None
    group: str | None
    priority: int | None
    traceparent: str | None
    durability: DurabilityLevel | None


class RunOptions(TypedDict, total=False):
    """When a schedule runs, if not by `cron`, and what happens to runs that overlap or were missed. All keyword-only.

    Durations are seconds or a timedelta, instants a datetime with a zone.
    """

    every: Seconds
    """The time from one run to the next, at least 1 s: counted from `start_at`, else from when it was created."""
    at: Sequence[str]
    """Times of day, HH:MM."""
    days: Sequence[str]
    """Only with `at`: days of the week, such as ``["mon", "fri"]``. Left out: all."""
    zone: str
    """The time zone of `cron` and `at`, such as ``Europe/Berlin``. Left out: UTC."""
    start_at: datetime
    """No run is earlier."""
    end_at: datetime
    """No run is later."""
    max_runs: int
    """The schedule ends after this many runs."""
    spread: Seconds
    """Each run is due up to this much later, by the name of the schedule, so that runs keep their distance. That of
    `job` differs by run."""
    window: OpeningHours
    """Opening hours, to which runs move: one window, a list of them, or the name of a calendar."""
    overlap: Overlap
    """When the run before is still live: `allow` both (the default), `skip` the new one or `replace` the old one."""
    catch_up: CatchUp
    """Which missed runs to make up for: `none`, the `last` one (the default), or `all`, at most the last 1000."""


class ScheduleOptions(RunOptions, total=False):
    """The fields of a schedule but its name and topic. One of `cron`, `every` and `at` is required."""

    cron: str
    """A cron expression, such as ``*/5 9-17 * * mon-fri``, or a nickname, such as ``@daily``."""
    job: ScheduledJobOptions
    """The job of each run: its body and its other options."""
    paused: bool
    """Whether it makes no runs. Left out: as it is; a new one is not paused."""


def definition(source: PutSchedule | Mapping[str, Any]) -> dict[str, Any]:
    """A schedule as the JSON object of the contract: durations in seconds, instants in RFC 3339.

    Raises:
        InvalidInput: an instant has no zone.
    """
    fields = in_rfc_3339(in_seconds(set_fields(source), _DURATIONS), _INSTANTS)
    if isinstance(fields.get("job"), Mapping | ScheduledJob):  # the service refuses anything else
        fields["job"] = in_seconds(set_fields(fields["job"]))
    return fields


def definition_of(topic: str, options: Mapping[str, Any], known: type = ScheduleOptions) -> dict[str, Any]:
    """The arguments of a schedule as the JSON object of the contract. Raises TypeError for an unknown one."""
    refuse_unknown(options, known)
    return definition({"topic": topic, **without_none(**options)})


def put_schedule(
    name: str, schedule: PutSchedule | Mapping[str, Any], *, create_only: bool = False
) -> ApiRequest[Schedule]:
    """`PUT /schedules/{name}`: create or replace; with `create_only` only create.

    That is not repeatable: the second of two equal ones would find the first one's schedule.
    """
    return request_for(
        operations.PUT_SCHEDULE,
        name,
        body=encode(definition(schedule)),
        success=(200, 201),
        repeatable=not create_only,
        headers={"if-none-match": "*"} if create_only else None,
    )


def preview_schedule(
    schedule: str | PutSchedule | Mapping[str, Any], *, count: int = PREVIEW_DEFAULT
) -> ApiRequest[SchedulePreview]:
    """`GET /schedules/{name}/preview` for a name, `POST /schedules/preview` for a definition."""
    query = {"count": count}
    if isinstance(schedule, str):
        return request_for(operations.PREVIEW_SCHEDULE, schedule, query=query)
    return request_for(operations.PREVIEW_UNSAVED_SCHEDULE, query=query, body=encode(definition(schedule)))


class ScheduleMethods:
    """The calls for schedules and calendars."""

    _sender: Sender

    async def put_schedule(
        self, name: str, topic: str, *, create_only: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Create or replace the schedule `name`, which puts jobs into `topic`. Returns the stored one.

        ::

            client.put_schedule("nightly", "reports", cron="0 3 * * *", zone="Europe/Berlin", job={"body": "all"})

        The options, all keyword-only, are the keys of ScheduleOptions. Give one of `cron`, `every` and `at`. An option
        that is left out or None has its default, also when a schedule is replaced, but a pause continues without
        ``paused=False``. One that is put again unchanged keeps its next run. A put whose response was lost is repeated,
        unless it has `create_only`.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: a value is invalid, or the schedule would never run.
            ScheduleExists: `create_only`, and there is a schedule of this name.
            NoAnswer: the response to a `create_only` was lost: it may have been created or not.
        """
        return await self._sender.send(put_schedule(name, definition_of(topic, options), create_only=create_only))

    async def schedule(self, name: str) -> Schedule:
        """Get a schedule: its definition, its next and last runs and its counts. Raises ScheduleNotFound."""
        return await self._sender.send(request_for(operations.GET_SCHEDULE, name))

    async def schedules(
        self,
        *,
        topic: str | None = None,
        paused: bool | None = None,
        prefix: str | None = None,
        jobs: bool = True,
    ) -> AsyncIterator[Schedule]:
        """List all schedules, or those of a topic, that are paused, or whose name has a prefix.

        They come in the order of their names within each shard of the store.

        With ``jobs=False`` they come without their `job`, which may be large.
        """
        cursor = None
        while True:
            query = without_none(cursor=cursor, topic=topic, prefix=prefix)
            if paused is not None:
                query["paused"] = "true" if paused else "false"
            if not jobs:
                query["jobs"] = "false"
            page = await self._sender.send(request_for(operations.LIST_SCHEDULES, query=query))
            for view in page.schedules:
                yield view
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule and cancel its next run; jobs of earlier runs stay.

        Raises ScheduleNotFound, but not when it was deleted by an attempt whose response was lost.
        """
        request = request_for(operations.DELETE_SCHEDULE, name).reading(read_nothing)
        outcome = await self._sender.try_to_send(request)
        if not (outcome.doubtful and isinstance(outcome.error, ScheduleNotFound)):
            outcome.result()

    async def pause_schedule(self, name: str) -> Schedule:
        """Make no runs until `resume_schedule`; the next run is cancelled. Raises ScheduleNotFound."""
        return await self._sender.send(request_for(operations.PAUSE_SCHEDULE, name))

    async def resume_schedule(self, name: str) -> Schedule:
        """Make runs again, from now on: none counts as missed. Raises ScheduleNotFound."""
        return await self._sender.send(request_for(operations.RESUME_SCHEDULE, name))

    async def run_schedule(self, name: str) -> Job:
        """Put a job of the schedule now, in addition to its runs. Returns the job.

        It is not repeated when its response is lost, because it would put a second job.

        Raises:
            ScheduleNotFound: there is no such schedule.
            NoAnswer: the response was lost: the job may have been put or not.
        """
        return await self._sender.send(request_for(operations.RUN_SCHEDULE, name).reading(reader_of(Job)))

    async def preview_schedule(
        self, schedule: str | PutSchedule | Mapping[str, Any], *, count: int = PREVIEW_DEFAULT
    ) -> list[Run]:
        """The next `count` runs, 1 to 1000, of a schedule: that of a name, or a definition that is not stored.

        There are fewer if the schedule ends. A definition is a PutSchedule or a mapping, as it is put.

        Raises:
            ScheduleNotFound: there is none of this name.
            InvalidInput: the definition is invalid, or would never run.
        """
        return (await self._sender.send(preview_schedule(schedule, count=count))).runs

    async def put_calendar(self, name: str, windows: Sequence[OneWindow]) -> Calendar:
        """Create or replace a calendar. A change counts for due times that are placed from then on.

        Raises:
            InvalidInput: a window is invalid, or never opens.
        """
        body = encode({"windows": list(windows)})
        return await self._sender.send(request_for(operations.PUT_CALENDAR, name, body=body, success=(200, 201)))

    async def calendar(self, name: str) -> Calendar:
        """Get a calendar. Raises CalendarNotFound."""
        return await self._sender.send(request_for(operations.GET_CALENDAR, name))

    async def calendars(self) -> list[Calendar]:
        """All calendars, by name."""
        return (await self._sender.send(request_for(operations.LIST_CALENDARS))).calendars

    async def delete_calendar(self, name: str) -> None:
        """Delete a calendar: what still names it is always open from then on. Raises CalendarNotFound."""
        await self._sender.send(request_for(operations.DELETE_CALENDAR, name).reading(read_nothing))

"""Schedules and their runs as responses."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from msgspec import Raw

from deferd.api.response_values import instant, instant_or_none, instant_text, whole
from deferd.contract.responses import schedules as responses
from deferd.contract.schedules import PutSchedule
from deferd.engine.schedules.planning import Run
from deferd.engine.schedules.schedules import datetime_of
from deferd.engine.schedules.stored_schedule import StoredSchedule, job_fields
from deferd.engine.timing.zones import TZDATA_VERSION

_OPTIONAL = {"cron", "every", "at", "days", "start_at", "end_at", "jitter", "spread", "window", "max_runs"}


def schedule(stored: StoredSchedule, *, with_job: bool = True) -> responses.Schedule:
    """The schedule, without the optional fields that it does not have."""
    definition, state = stored.definition, stored.state
    given = definition.model_dump(mode="json", by_alias=True, exclude_none=True, include=_OPTIONAL)
    job: dict[str, Any] = {}
    if with_job and stored.body is not None:
        job = {**whole(job_fields(definition.job)), "body": Raw(stored.body)}
    return responses.Schedule(
        name=stored.name,
        topic=definition.topic,
        job=job,
        zone=definition.zone,
        overlap=definition.overlap,
        catch_up=definition.catch_up,
        paused=state.is_paused,
        ended=state.is_ended,
        next_run_at=instant_or_none(stored.next_due_ms),
        next_job=stored.next_id or None,
        last_run_at=instant_or_none(stored.last_due_ms),
        last_job=stored.last_id or None,
        runs=stored.runs,
        skips=stored.skips,
        missed=stored.missed,
        created_at=instant(state.created_ms),
        updated_at=instant(state.updated_ms),
        **whole(given),
    )


def preview(definition: PutSchedule, runs: Iterable[Run]) -> responses.Preview:
    """Runs to come: each in the zone of the schedule, and in UTC."""
    return responses.Preview(
        runs=[
            responses.PreviewedRun(at=_local(run.due_ms, definition.zone), utc=_to_the_second(run.due_ms))
            for run in runs
        ],
        tzdata=TZDATA_VERSION,
    )


def _local(at_ms: int, zone: str) -> datetime:
    text = datetime_of(at_ms, zone).isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds")
    return cast("datetime", text)  # as `instant`


def _to_the_second(at_ms: int) -> datetime:
    return cast("datetime", instant_text(at_ms).replace(".000Z", "Z"))

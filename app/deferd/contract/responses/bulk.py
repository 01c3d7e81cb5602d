"""The responses to actions on many jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from deferd.contract.model import JobId, JobState, Topic
from deferd.contract.responses.response import Response


class SampleJob(Response, frozen=True, kw_only=True):
    """A job that a call on many jobs would act on."""

    topic: Topic
    id: JobId
    state: JobState


class BulkResult(Response, frozen=True, kw_only=True):
    """What a call on many jobs did."""

    matched: Annotated[int, "The jobs that were selected."]
    done: Annotated[
        int,
        "Those of them that were cancelled or rescheduled: 0 in a dry run. A reschedule changes "
        "delayed and ready jobs only, and with `by` none that would be due more than 10 years ahead.",
    ]
    was: Annotated[dict[JobState, int], "The states that the selected jobs were in; states without jobs are left out."]
    complete: Annotated[
        bool,
        "False when the `limit` was reached and there may be more: repeat the call, a reschedule with "
        "the same `request_id`.",
    ]
    cutoff: Annotated[
        datetime | None, "Only with `samples`: only jobs that were there, or dead, by then were counted."
    ] = None
    samples: Annotated[list[SampleJob] | None, "Only with `samples`: some of the jobs."] = None

    schema_examples = ({"matched": 4, "done": 4, "was": {"delayed": 3, "ready": 1}, "complete": True},)


_Matched = Annotated[int | None, "Only of a dry run: how many jobs it would be, 0 of others."]
_Complete = Annotated[bool | None, "Only of a dry run: `false` when the `limit` was reached and there may be more."]
_Cutoff = Annotated[datetime | None, "Only of a dry run: only jobs that were there, or dead, by then were counted."]
_Samples = Annotated[list[SampleJob] | None, "Only of a dry run: up to ten of the jobs."]


class Redriven(Response, frozen=True, kw_only=True):
    """The number of dead jobs that are ready again."""

    redriven: int
    matched: _Matched = None
    complete: _Complete = None
    cutoff: _Cutoff = None
    samples: _Samples = None

    schema_examples = ({"redriven": 3},)


class Removed(Response, frozen=True, kw_only=True):
    """The number of removed jobs."""

    removed: int
    matched: _Matched = None
    complete: _Complete = None
    cutoff: _Cutoff = None
    samples: _Samples = None

    schema_examples = ({"removed": 12},)


class DryRun(Response, frozen=True, kw_only=True):
    """What a redrive, a purge or a call on many jobs would do: each of their dry runs with samples can be read so.

    Given the `cutoff`, the call acts on nothing that was not counted.
    """

    matched: Annotated[int, "On how many jobs it would act."]
    complete: Annotated[bool, "False when a limit was reached."]
    cutoff: Annotated[datetime, "Only jobs that were there, or dead, by then count."]
    samples: Annotated[list[SampleJob], "Some of the jobs."]

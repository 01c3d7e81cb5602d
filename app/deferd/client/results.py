"""What the calls on many jobs return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from deferd.contract.model import JobState


class SampleJob(NamedTuple):
    """One of the jobs that a call would act on, and the state it is in."""

    topic: str
    id: str
    state: JobState


class Preview(NamedTuple):
    """What a redrive, a purge or a call on many jobs would do: act on `matched` jobs, of which `samples` are some.

    Only jobs that were there, or dead, by the `cutoff` count: given to the call, it acts on nothing else. `complete` is
    False when a limit was reached.
    """

    matched: int
    complete: bool
    cutoff: datetime
    samples: Sequence[SampleJob]


class BulkResult(NamedTuple):
    """What a call on many jobs did: `matched` jobs were selected, `done` of them cancelled or rescheduled.

    `was` counts the selected jobs by the state that they were in. `complete` is False when a limit was reached.
    """

    matched: int
    done: int
    was: Mapping[JobState, int]
    complete: bool

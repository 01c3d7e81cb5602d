"""What the calls on jobs return, except for the jobs themselves."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from deferd.contract.model import JobState


class Cancelled(NamedTuple):
    """A cancelled job. `was` is its state before: `reserved` means that a consumer already held it.

    `durability` is the level that the cancel has reached; None if none was asked for.
    """

    topic: str
    id: str
    was: JobState
    durability: str | None = None


class Released(NamedTuple):
    """A released job: delayed until `due_at`, or dead (`due_at` is None) when no attempt was left."""

    state: JobState
    due_at: datetime | None
    attempts: int


class PutResult(NamedTuple):
    """The result for one job of a batch: `status` 201 put, 200 kept or replaced, otherwise `code` names the error.

    413 `payload_too_large`: the job alone is larger than a request may be; `detail` names the limit. 503 `no_answer`:
    it is unknown whether the job was put, because a response was lost and the job that had its id is gone.
    `durability` is the level that the stored job has reached: this job, or with 409 the existing one. `state` is that
    of the job that was kept or is in the way; None for jobs that were put, and from services before 0.2.0.
    `is_follow_up`: a consumer holds the job, and this put waits until that has ended.
    """

    topic: str
    id: str
    status: int
    code: str | None
    detail: str | None = None
    durability: str | None = None
    state: JobState | None = None
    is_follow_up: bool = False


class CancelResult(NamedTuple):
    """The result for one cancel of a batch: `status` 200 cancelled, otherwise `code` names the error.

    `was` is the state that a cancelled job had. 503 `no_answer`: a response was lost and the job is gone, by this
    cancel or before it.
    """

    id: str
    status: int
    was: JobState | None
    code: str | None


class FinishResult(NamedTuple):
    """The result for one delivery of a batch: `status` 200 for success, otherwise `code` names the error."""

    id: str
    status: int
    code: str | None

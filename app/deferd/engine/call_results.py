"""What calls on jobs return."""

from __future__ import annotations

from typing import NamedTuple

from deferd.contract.model import JobState


class FinishResult(NamedTuple):
    """One line of a batch finish's response; `status` as in the HTTP contract, `code` None on success."""

    id: str
    status: int
    code: str | None


class CancelResult(NamedTuple):
    """One line of a batch cancel's response: `was` is the state of a cancelled job, `code` names the error."""

    id: str
    status: int
    was: JobState | None
    code: str | None


class Released(NamedTuple):
    """The state of a job after its release: delayed until `due_at_ms`, or dead (`due_at_ms` None)."""

    state: JobState
    due_at_ms: int | None
    attempts: int

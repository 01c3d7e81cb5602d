"""Pages of a topic's jobs in one state. Delayed ones may be on the shelf: both parts are merged in their one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from deferd.contract.model import JobState
from deferd.engine.shelf import Page

Position = tuple[str, str]
"""The score and the id behind which a page begins; two empty texts for the first one."""


class JobPage(NamedTuple):
    """Jobs as id and what `record.read_reply` reads of each. `end` is where the look at `looked_at` jobs ended."""

    jobs: Sequence[tuple[str, Sequence[Any]]]
    looked_at: int
    end: Position
    has_more: bool

    @property
    def record_bytes(self) -> int:
        """How large the records are together."""
        return sum(len(fields[1]) for _, fields in self.jobs)


def merged(in_store: JobPage, on_shelf: Page, most: int, *, reverse: bool) -> JobPage:
    """The next jobs of both pages, at most `most`, of delayed jobs that are read from the same position on.

    A page that has more ends the merged one: jobs behind its end may follow others that were not read.
    """
    delayed = JobState.DELAYED.value.encode()
    jobs = {_place(int(fields[2]), job_id): (job_id, fields) for job_id, fields in in_store.jobs}
    jobs |= {_place(job.due_ms, job.id): (job.id, (delayed, job.record, job.due_ms, b"")) for job in on_shelf.jobs}
    ends = [_place(int(score), job_id) for score, job_id in [in_store.end] if score]
    ends += [] if on_shelf.end is None else [_place(*on_shelf.end)]
    bounds = [_place(int(score), job_id) for score, job_id in [in_store.end] if score and in_store.has_more]
    bounds += [_place(*on_shelf.end)] if on_shelf.end is not None and on_shelf.has_more else []
    first, last = (max, min) if reverse else (min, max)
    bound = first(bounds) if bounds else None
    within = sorted(
        (place for place in jobs if bound is None or (place >= bound if reverse else place <= bound)), reverse=reverse
    )
    end = bound or (last(ends) if ends else None)
    has_more = bound is not None
    if len(within) > most:
        within = within[:most]
        end, has_more = within[-1], True
    return JobPage(
        [jobs[place] for place in within],
        in_store.looked_at + on_shelf.looked_at,
        in_store.end if end is None else (str(end[0]), end[1]),
        has_more,
    )


def _place(due_ms: int, job_id: str) -> tuple[int, str]:
    return due_ms, job_id

"""What became of the jobs that a task has redriven: which of them wait, run, are dead again, or are gone.

The script that redrives jobs keeps the ids of some in the same atomic step (lua/redrive.lua): those with the lowest
hashes. So they are drawn evenly from all jobs of the task whichever process made the steps, and an id counts once. In
which states they are is looked up when somebody asks, in a few steps however many jobs the task has redriven.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from deferd.contract.model import JobState
from deferd.engine.inspection.normalized_errors import normalized
from deferd.engine.partition_store import PartitionStore
from deferd.engine.record import read_record
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_sweeps import DRAWN, TopicSweeps

_LOOK_AT = 250
_ERRORS_SHOWN = 3


@dataclass(slots=True)
class Became:
    """In which states the jobs are: `looked_at` is their sum. `retrying` are those that wait after a failed attempt.

    Of those that are `gone` nothing is kept: they were finished, cancelled or removed. `errors` are the normalized
    errors of those that are dead or retrying; of dead ones without an error why they are dead.
    """

    looked_at: int = 0
    waiting: int = 0
    retrying: int = 0
    running: int = 0
    finished: int = 0
    dead: int = 0
    gone: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def top_errors(self) -> list[tuple[str, int]]:
        """The most frequent errors, and how many jobs have each."""
        return self.errors.most_common(_ERRORS_SHOWN)


class RedrivenJobs:
    """Looks up redriven jobs."""

    def __init__(self, scripts: Scripts, keys: Keys, partitions: PartitionStore, sweeps: TopicSweeps) -> None:
        self._scripts = scripts
        self._keys = keys
        self._partitions = partitions
        self._sweeps = sweeps

    async def became(self, topic: str, request: str, cutoff_ms: int) -> Became:
        """What became of the jobs of a topic that a redrive with this request has made ready.

        `cutoff_ms` is that of the redrive: a job with such an id that was put later is another one. Raises
        StoreUnavailable.
        """
        keys = await self._sweeps.request_keys(topic, request)
        kept = await asyncio.gather(*(self._scripts.command("ZRANGE", f"{key}/jobs", 0, DRAWN - 1) for key in keys))
        drawn = sorted({job_id for ids in kept for job_id in ids}, key=_hash)[:DRAWN]
        found = Became()
        for at in range(0, len(drawn), _LOOK_AT):
            await self._look_at(topic, [one.decode() for one in drawn[at : at + _LOOK_AT]], cutoff_ms, found)
        return found

    async def _look_at(self, topic: str, ids: Sequence[str], cutoff_ms: int, found: Became) -> None:
        by_home: dict[str, list[str]] = {}
        for job_id in ids:
            for home in self._partitions.known.homes(topic, job_id):
                by_home.setdefault(home, []).append(job_id)
        unread, there = set[str](), set[str]()
        for home, some in by_home.items():
            async with self._partitions.shelf.loaded(home, some):
                looked, *rows = await self._scripts.run("became", self._keys.of_topic(home), (home, cutoff_ms, *some))
            unread.update(some[looked:])
            for job_id, state, raw in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
                there.add(job_id.decode())
                _add(found, topic, job_id.decode(), JobState(state.decode()), raw)
        gone = len(set(ids) - unread - there)
        found.gone += gone
        found.looked_at += len(there) + gone


def _hash(job_id: bytes) -> bytes:
    return hashlib.sha1(job_id, usedforsecurity=False).digest()


def _add(found: Became, topic: str, job_id: str, state: JobState, raw: bytes) -> None:
    had_attempt, error, reason = False, "", ""
    with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError):  # other programs may have written it
        record = read_record(topic, job_id, state, raw)
        had_attempt, reason = record.attempts > 0, record.reason or ""
        # Without an attempt since, it is the error for which the job was redriven.
        error = normalized(record.last_error or "") if had_attempt else ""
    match state:
        case JobState.DEAD:
            found.dead += 1
            error = error or reason
        case JobState.RESERVED:
            found.running += 1
            return
        case JobState.FINISHED:
            found.finished += 1
            return
        case _:
            found.waiting += 1
            found.retrying += had_attempt
    if error:
        found.errors[error] += 1

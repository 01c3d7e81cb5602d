"""Waits for the ends of jobs, and for their progress.

A wait reads its job by `lua/watch.lua`, which notes in the record that somebody waits. From then on the script that
ends the job, or stores its progress, publishes that. Until then the wait costs nothing: no call, no connection.

Messages can be lost. So every few seconds, and whenever messages may have been missed, the store is asked which of the
jobs that somebody waits for have ended, many in one call. A put that replaces a live job hands the note on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, NamedTuple

from msgspec.structs import replace

from deferd.contract.ends import OUTCOMES, Outcome
from deferd.contract.errors import JobNotFound, StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine import metrics
from deferd.engine.group_commit import GroupCommit
from deferd.engine.partition_store import PartitionStore
from deferd.engine.queue import JobQueue
from deferd.engine.record import JobRecord
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType, request_ends_at_s

Until = Literal["end", "progress"]
_CHECK_EVERY_S = 10.0
_JOBS_PER_CHECK = 500
_MESSAGE_WITHIN_S = 1.0
"""How much later than a look that misses the job the message of its end may come."""
_KEPT_BYTES = 16 * 1024
"""The longest body that is kept during a wait, in case that nothing is left of the job at its end."""
_ENDED: dict[JobState, Outcome] = {JobState.FINISHED: "finished", JobState.DEAD: "dead"}


class Waited(NamedTuple):
    """The job at the end of a wait, and its outcome if it has ended.

    If nothing is left of it, `job` is as it was last seen. Then a long body is left out, which had `left_out` bytes.
    """

    job: JobRecord
    outcome: Outcome | None = None
    left_out: int = 0


class _End(NamedTuple):
    """The end of the job that was put at that time."""

    created_at_ms: int
    outcome: Outcome


@dataclass(eq=False, slots=True)
class _Waiter:
    """One wait. `woken`: it is to look at its job again. `ends` are those that messages have told."""

    until: Until
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[_End] = field(default_factory=list)

    def outcome_of(self, job: JobRecord) -> Outcome | None:
        """The outcome of this job, or of one that has replaced it since; None if it has not ended yet."""
        outcomes = [end.outcome for end in self.ends if end.created_at_ms >= job.created_at_ms]
        return outcomes[-1] if outcomes else None


class JobWaits:
    """The waits of this process."""

    def __init__(self, queue: JobQueue, scripts: Scripts, keys: Keys, partitions: PartitionStore) -> None:
        self._queue = queue
        self._scripts = scripts
        self._keys = keys
        self._partitions = partitions
        self._waiters: dict[tuple[str, str], set[_Waiter]] = {}
        self._looks: GroupCommit[tuple[str, str], JobRecord] = GroupCommit(self._look, size=lambda _: 0)
        self._missed_messages = asyncio.Event()
        self._draining = False

    async def wait(
        self, topic: str, job_id: str, wait_ms: int, *, until: Until = "end", after_ms: int | None = None
    ) -> Waited:
        """The job once it has ended, or with `until` progress once it has one from later than `after_ms`.

        `after_ms` None: from later than now. After `wait_ms`, when the request ends, or when the process drains: the
        job as it is then.

        Raises:
            JobNotFound: there is no such job; or it has ended, is not kept, and it is not known how it ended.
            StoreUnavailable
        """
        ends_at_s = min(monotonic() + wait_ms / 1000, request_ends_at_s())
        waiter = _Waiter(until)
        waiters = self._waiters.setdefault((topic, job_id), set())
        waiters.add(waiter)  # before the first look, so that no message is missed
        try:
            return await self._wait(topic, job_id, waiter, ends_at_s, after_ms)
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiters.get((topic, job_id)) is waiters:
                del self._waiters[topic, job_id]

    async def _wait(self, topic: str, job_id: str, waiter: _Waiter, ends_at_s: float, after_ms: int | None) -> Waited:
        job = await self._look_shared(topic, job_id)
        if after_ms is None:
            after_ms = job.progress_at_ms or 0
        is_over = self._draining or ends_at_s <= monotonic()
        while True:
            outcome = _ENDED.get(job.state)
            has_progressed = waiter.until == "progress" and (job.progress_at_ms or 0) > after_ms
            if outcome is not None or has_progressed or is_over:
                return Waited(job, outcome)
            last, left_out = _without_long_body(job)
            del job  # a wait may be long, and a body large
            with metrics.JOB_WAITS.track_inprogress():
                is_over = not await _within(waiter, ends_at_s) or self._draining
            waiter.woken.clear()
            ended = waiter.outcome_of(last)
            try:
                job = await self._look_shared(topic, job_id)
            except JobNotFound:
                ended = ended or await self._outcome_in_time(waiter, last)
                if ended is None:
                    raise
                return Waited(last, ended, left_out)
            if ended is not None and job.state not in _ENDED:  # it was redriven, or another one has its id by now
                is_same = job.created_at_ms == last.created_at_ms
                return Waited(job, ended) if is_same else Waited(last, ended, left_out)

    async def _outcome_in_time(self, waiter: _Waiter, job: JobRecord) -> Outcome | None:
        """The outcome of a job that is gone, whose message may still be on its way."""
        ends_at_s = monotonic() + _MESSAGE_WITHIN_S
        while (outcome := waiter.outcome_of(job)) is None and await _within(waiter, ends_at_s):
            waiter.woken.clear()
        return outcome

    async def _look_shared(self, topic: str, job_id: str) -> JobRecord:
        return await self._looks.submit(f"{topic} {job_id}", (topic, job_id))

    async def _look(self, _key: str, jobs: list[tuple[str, str]]) -> list[JobRecord]:
        job = await self._queue.watch(*jobs[0])
        return [job for _ in jobs]

    def on_message(self, payload: str) -> None:
        """The store published what happened to a job that somebody waits for, maybe here."""
        topic, job_id, created_at, what, *_ = (*payload.split(" "), "", "", "")
        for waiter in self._waiters.get((topic, job_id), ()):
            if what in OUTCOMES and created_at.isdecimal():
                waiter.ends.append(_End(int(created_at), what))
            elif waiter.until != "progress":
                continue
            waiter.woken.set()

    def on_gap(self) -> None:
        """Messages may have been missed: check all jobs at once."""
        self._missed_messages.set()

    def drain(self) -> None:
        """End all waits with their jobs as they are; from now on none waits."""
        self._draining = True
        self.wake_all()

    def wake_all(self) -> None:
        """Have all waits read their jobs again; they fail if no call is sent to the store any more."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.woken.set()

    # Lost messages

    async def run(self) -> None:
        """Check all jobs that somebody waits for, again and again, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_EVERY_S):
                    await self._missed_messages.wait()
            self._missed_messages.clear()
            await self._check_all()

    async def _check_all(self) -> None:
        by_home: dict[str, list[tuple[str, str]]] = {}
        for topic, job_id in self._waiters:
            by_home.setdefault(self._partitions.known.home(topic, job_id), []).append((topic, job_id))
        for home, jobs in by_home.items():
            for at in range(0, len(jobs), _JOBS_PER_CHECK):
                # Other shards and topics go on: one cannot be reached, or another program has damaged its keys.
                with contextlib.suppress(StoreUnavailable, WrongType):
                    await self._check(home, jobs[at : at + _JOBS_PER_CHECK])

    async def _check(self, home: str, jobs: Sequence[tuple[str, str]]) -> None:
        """Wake those who wait for jobs that have ended, or are not in this partition."""
        ids = [job_id for _, job_id in jobs]
        ended = set(await self._scripts.run("ended", self._keys.of_topic(home), (home, *ids)))
        for topic, job_id in jobs:
            if job_id.encode() in ended:
                for waiter in self._waiters.get((topic, job_id), ()):
                    waiter.woken.set()


async def _within(waiter: _Waiter, ends_at_s: float) -> bool:
    """Wait until the waiter is woken; False if that does not happen in time."""
    try:
        async with asyncio.timeout(max(ends_at_s - monotonic(), 0)):
            await waiter.woken.wait()
    except TimeoutError:
        return False
    return True


def _without_long_body(job: JobRecord) -> tuple[JobRecord, int]:
    """The job as it is kept during a wait, and how long the body is that is left out."""
    is_long = len(job.body) > _KEPT_BYTES
    kept = replace(job, followed_by=None, body=b"null" if is_long else job.body)
    return kept, len(job.body) if is_long else 0

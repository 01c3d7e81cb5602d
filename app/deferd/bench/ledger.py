"""The jobs of a load-generating process: each must be delivered exactly once and not early."""

from __future__ import annotations

from deferd.bench.errors import BenchFailed
from deferd.bench.service_clock import ClockOffset, epoch_ms
from deferd.client import Delivery, PutResult
from deferd.contract.timestamps import instant_text

_ROUNDING_MS = 1.0
"""Tolerance for the rounding of both clocks to milliseconds."""


class Ledger:
    """The jobs of one topic, all put and consumed by this process."""

    def __init__(self, topic: str, clock: ClockOffset) -> None:
        self._topic = topic
        self._clock = clock
        self._put: dict[str, int | None] = {}
        self._taken: set[str] = set()

    @property
    def missing(self) -> int:
        """How many jobs were put and not delivered."""
        return len(self._put) - len(self._taken)

    def put(self, job_id: str, due_ms: int | None = None) -> None:
        """Record a put with this id. `due_ms` is the requested instant."""
        if job_id in self._put:
            raise BenchFailed(f"two jobs of topic {self._topic} got the same id {job_id}")
        self._put[job_id] = due_ms

    def put_result(self, result: PutResult, due_ms: int | None) -> None:
        """Record the result of a put in a batch."""
        if result.status != 201 or result.topic != self._topic:
            raise BenchFailed(f"a put into topic {self._topic} returned {result}, not 201")
        self.put(result.id, due_ms)

    def delivered(self, job: Delivery, at_s: float) -> float:
        """Record a delivery at this `time.time()`; returns its lateness in milliseconds.

        With concurrent producers and consumers it may precede the response to its put; `check_complete` then finds jobs
        that were never put.
        """
        job_id, due_ms = job.id, epoch_ms(job.due_at)
        if job_id in self._taken:
            raise BenchFailed(f"job {job_id} of topic {self._topic} was delivered twice")
        if job.topic != self._topic or job.attempt != 1:
            raise BenchFailed(f"a pop of topic {self._topic} returned {job!r} as attempt {job.attempt}")
        if (requested_ms := self._put.get(job_id)) is not None and requested_ms != due_ms:
            raise BenchFailed(
                f"job {job_id} of topic {self._topic} was put for {instant_text(requested_ms)} and delivered as due at "
                f"{instant_text(due_ms)}"
            )
        self._taken.add(job_id)
        late_ms = self._clock.store_ms(at_s) - due_ms
        if late_ms < -(self._clock.error_ms + _ROUNDING_MS):
            raise BenchFailed(f"job {job_id} of topic {self._topic} was delivered {-late_ms:.1f} ms before it was due")
        return late_ms

    def check_complete(self) -> None:
        """Check at the end that the delivered jobs are those that were put."""
        if self.missing or self._put.keys() != self._taken:
            lost, unknown = len(self._put.keys() - self._taken), len(self._taken - self._put.keys())
            raise BenchFailed(
                f"of the jobs put into topic {self._topic}, {lost} were not delivered; {unknown} others were"
            )

"""The jobs of a load-generating process: each must be delivered exactly once and not early."""

from __future__ import annotations

from deferd.bench.errors import BenchFailed
from deferd.bench.service_clock import ClockOffset, epoch_ms
from deferd.client import Delivery, PutResult

_ROUNDING_MS = 1.0
"""Tolerance for the rounding of both clocks to milliseconds."""


class Ledger:
    """The jobs of one topic, all put and consumed by this process."""

    def __init__(self, topic: str, clock: ClockOffset) -> None:
        self._topic = topic
        self._clock = clock
        self._put: dict[str, str | None] = {}
        self._taken: set[str] = set()
        self._last_due = ("", 0.0)

    @property
    def missing(self) -> int:
        """How many jobs were put and not delivered."""
        return len(self._put) - len(self._taken)

    def put(self, job_id: str, due_at: str | None = None) -> None:
        """Record a put with this id. `due_at` is the requested instant in the format of the service."""
        if job_id in self._put:
            raise BenchFailed(f"two jobs of topic {self._topic} got the same id {job_id}")
        self._put[job_id] = due_at

    def put_result(self, result: PutResult, due_at: str | None) -> None:
        """Record the result of a put in a batch."""
        if result.status != 201 or result.topic != self._topic:
            raise BenchFailed(f"a put into topic {self._topic} returned {result}, not 201")
        self.put(result.id, due_at)

    def delivered(self, job: Delivery, at_s: float) -> float:
        """Record a delivery at this `time.time()`; returns its lateness in milliseconds.

        With concurrent producers and consumers it may precede the response to its put; `check_complete` then finds jobs
        that were never put.
        """
        job_id, due_at = job.fields["id"], job.fields["due_at"]
        if job_id in self._taken:
            raise BenchFailed(f"job {job_id} of topic {self._topic} was delivered twice")
        if job.fields["topic"] != self._topic or job.fields["attempt"] != 1:
            raise BenchFailed(f"a pop of topic {self._topic} returned {job!r} as attempt {job.fields['attempt']}")
        if (requested := self._put.get(job_id)) is not None and requested != due_at:
            raise BenchFailed(
                f"job {job_id} of topic {self._topic} was put for {requested} and delivered as due at {due_at}"
            )
        self._taken.add(job_id)
        if self._last_due[0] != due_at:
            self._last_due = (due_at, epoch_ms(due_at))
        late_ms = self._clock.store_ms(at_s) - self._last_due[1]
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

"""What a load-generating process knows of its jobs: each that was put must come exactly once, and not early."""

from __future__ import annotations

from deferd.bench.errors import BenchFailed
from deferd.bench.service_clock import Clock, epoch_ms
from deferd.client import Delivery, PutResult

_EARLY_MS = 1.0
"""What is allowed for the rounding of both clocks to milliseconds."""


class Ledger:
    """The jobs of one topic, all put and taken by this process."""

    def __init__(self, topic: str, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock
        self._put: dict[str, str | None] = {}
        self._taken: set[str] = set()
        self._last_due = ("", 0.0)

    @property
    def missing(self) -> int:
        """How many were put and have not come."""
        return len(self._put) - len(self._taken)

    def put(self, job_id: str, due_at: str | None = None) -> None:
        """A put was answered with this id. `due_at` is the instant that was asked for, as the service writes it."""
        if job_id in self._put:
            raise BenchFailed(f"two jobs of topic {self._topic} were given the same id {job_id}")
        self._put[job_id] = due_at

    def put_answer(self, result: PutResult, due_at: str | None) -> None:
        """A put of a batch was answered."""
        if result.status != 201 or result.topic != self._topic:
            raise BenchFailed(f"a put into topic {self._topic} was answered {result}, not 201")
        self.put(result.id, due_at)

    def took(self, job: Delivery, at_s: float) -> float:
        """A job came, at this `time.time()`; returns how many milliseconds after it was due.

        Its put may be answered later than it comes, where producers and consumers run at the same time; `settle`
        then finds what was wrong with it.
        """
        job_id, due_at = job.fields["id"], job.fields["due_at"]
        if job_id in self._taken:
            raise BenchFailed(f"job {job_id} of topic {self._topic} came twice")
        if job.fields["topic"] != self._topic or job.fields["attempt"] != 1:
            raise BenchFailed(f"a pop of topic {self._topic} gave {job!r} as attempt {job.fields['attempt']}")
        if (asked := self._put.get(job_id)) is not None and asked != due_at:
            raise BenchFailed(f"job {job_id} of topic {self._topic} was put for {asked} and came as due at {due_at}")
        self._taken.add(job_id)
        if self._last_due[0] != due_at:
            self._last_due = (due_at, epoch_ms(due_at))
        late_ms = self._clock.stored_ms(at_s) - self._last_due[1]
        if late_ms < -(self._clock.error_ms + _EARLY_MS):
            raise BenchFailed(f"job {job_id} of topic {self._topic} came {-late_ms:.1f} ms before it was due")
        return late_ms

    def settle(self) -> None:
        """All is over: what was put and what came must be the same jobs."""
        if self.missing or self._put.keys() != self._taken:
            lost, unknown = len(self._put.keys() - self._taken), len(self._taken - self._put.keys())
            raise BenchFailed(f"of the jobs put into topic {self._topic}, {lost} never came; {unknown} others came")

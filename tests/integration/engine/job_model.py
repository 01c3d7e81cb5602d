"""What DESIGN.md sections 2 and 3 promise about the jobs of one topic, as plain Python without a store.

Time is virtual: `now_s`, in whole seconds, which the test advances. Work of the timer is done only in `run_timer`,
because a timer may be late at any time. Puts are in modelled_puts.py.

The verbs have the engine's names and raise the same errors. Where the design leaves a choice to the store (for example,
which of two jobs due in the same millisecond is handed out first), the verb takes the store's choice and asserts that
it is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from deferd.contract.errors import (
    JobCancelled,
    JobNotFound,
    JobReserved,
    ReceiptStale,
    TopicNotFound,
)
from deferd.contract.model import DeadReason, JobState
from deferd.engine.partitions import number_of
from tests.integration.engine.modelled_job import (
    ANY_DELIVERY,
    SOME_TEXT,
    Delivery,
    End,
    ModelJob,
    Policy,
    ReadyPosition,
    backoff_s,
)
from tests.integration.engine.modelled_puts import LIVE_STATES, PutModel

TOMBSTONE_S = 60
"""How long after the end of its lease the holder of a cancelled job gets JobCancelled."""


@dataclass
class _Request:
    deliveries: list[Delivery]
    repeated: bool = False


@dataclass
class JobModel(PutModel):
    """The jobs of one topic."""

    _requests: dict[tuple[str, str], _Request] = field(default_factory=dict)
    """By partition and request id."""
    _returns: int = 0

    # Queries

    def in_state(self, state: JobState) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state is state]

    def counts(self) -> dict[JobState, int]:
        if not self.known:
            raise TopicNotFound(self.topic)
        return {state: len(self.in_state(state)) for state in JobState}

    def may_be_in_order(self, job_ids: Sequence[str]) -> bool:
        """Whether the Ready list may hold these jobs in this order; those of two partitions or flows have none."""
        jobs = [self.jobs[job_id] for job_id in job_ids]
        positions = [((self.place_of(job.id), job.flow), job.position) for job in jobs]
        return not any(
            place == other and later.is_before(earlier)
            for (place, earlier), (other, later) in combinations(positions, 2)
        )

    def is_expired(self, job: ModelJob) -> bool:
        """Whether its ttl or deadline has passed: it may not be handed out; a pop or the timer makes it dead."""
        return job.end_of_waiting is not None and job.end_of_waiting[0] <= self.now_s

    def earlier_deliveries(self, request_id: str | None, place: str | None = None) -> list[Delivery]:
        """The live deliveries of an earlier response to the request, which a repeat returns: those of one partition, or
        of all.
        """
        return [
            delivery
            for (of, one_id), request in self._requests.items()
            if one_id == request_id and place in (None, of)
            for delivery in request.deliveries
            if self._is_live(delivery)
        ]

    # Producers

    def change(self, job_id: str, changes: Policy, *, delay_s: int | None = None) -> None:
        """`changes` may hold a new body as well as the policy."""
        job = self._job(job_id)
        if job.state is JobState.RESERVED:
            raise JobReserved(self.topic, job_id)
        if job.state not in LIVE_STATES:
            raise JobNotFound(self.topic, job_id)
        changes = dict(changes)
        if "body" in changes:
            job.body, job.is_collection, job.is_open = changes.pop("body"), False, False
        former = job.flow
        if job.group != (changes.get("group", job.group) or ""):
            self.flows.leave(job)
        job.policy = job.policy | changes
        if job.flow != former and job.state is JobState.READY:
            self._turns += 1
            job.position = ReadyPosition(self._turns, "came", 0)
        if delay_s is None:
            self._change(job, job.state)
            return
        job.due_s, job.first_due_s = self.now_s + delay_s, None
        self._change(job, self._state_of_waiting(job))

    def cancel(self, job_id: str, *, refuse_reserved: bool, keep_follow_up: bool = False) -> JobState:
        if job_id not in self.jobs and self.is_taken(job_id):
            del self.taken[self.place_of(job_id), job_id]
            return JobState.FINISHED
        job = self._job(job_id)
        if job.state is JobState.RESERVED and refuse_reserved:
            raise JobReserved(self.topic, job_id)
        self._remove(job, keep_follow_up=keep_follow_up)
        return job.state

    def selected(self, tag: str | None, state: JobState | None) -> list[ModelJob]:
        """The jobs that a call on many jobs means, in its order if it goes through a state."""
        jobs = [job for job in self.jobs.values() if tag is None or tag in job.policy["tags"]]
        jobs = [job for job in jobs if state is None or job.state is state]
        return sorted(jobs, key=lambda job: (job.exact_ms if state is JobState.DELAYED else 0, job.id))

    def cancel_all(self, jobs: Iterable[ModelJob], *, refuse_reserved: bool) -> int:
        cancelled = [job for job in jobs if not (refuse_reserved and job.state is JobState.RESERVED)]
        for job in cancelled:
            self._remove(job)
        return len(cancelled)

    def reschedule_all(self, jobs: Iterable[ModelJob], *, by_s: int | None, delay_s: int) -> int:
        moved = [job for job in jobs if job.state in (JobState.DELAYED, JobState.READY)]
        for job in moved:
            if by_s is None:
                job.due_s = self.now_s + delay_s
            else:
                job.due_s = max(job.due_s + by_s, min(job.due_s, self.now_s))
            job.first_due_s = None
            self._change(job, JobState.DELAYED if job.due_s > self.now_s else JobState.READY)
        return len(moved)

    # Consumers

    def pop(
        self,
        count: int,
        handed_out: Sequence[str],
        *,
        ttr_s: int | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
        expired: Collection[str] = (),
        place: str | None = None,
    ) -> list[Delivery]:
        """Hand out `handed_out`, in this order, and bury `expired`: jobs past their ttl that the pop found.
        `place`: the only partition from which it may take jobs.

        A repeated request gets its live deliveries again and changes no others, paused or not.
        """
        before = self.earlier_deliveries(request_id, place)
        if request_id is not None and before:
            before.sort(key=lambda delivery: self._index_of_place(handed_out, delivery))
            assert handed_out == [delivery.job_id for delivery in before]
            assert not expired
            for of in {self.place_of(delivery.job_id) for delivery in before}:
                self._requests[of, request_id].repeated = True
            for delivery in before:  # the consumer that repeats the request becomes the holder
                self.jobs[delivery.job_id].consumer = consumer
                self._change(self.jobs[delivery.job_id], JobState.RESERVED)
            return before
        if self.paused:
            assert not handed_out
            assert not expired
            return []
        self._check_handed_out(count, handed_out, expired, place)
        for job_id in expired:
            self._bury_overdue(self.jobs[job_id])
        deliveries = []
        for job_id in handed_out:
            job = self.jobs[job_id]
            self._check_next(job, place)
            job.is_open = False
            job.live = Delivery(job_id, job.ended + 1, request_id, self.now_s)
            job.consumer = consumer
            limit_s = job.policy["time_limit"]
            ends_s = [end_s for end_s in (job.deadline_s, limit_s and self.now_s + limit_s) if end_s is not None]
            job.latest_lease_end_s = min(ends_s, default=None)
            self._extend_lease(job, ttr_s)
            deliveries.append(job.live)
        self._check_left(count - len(handed_out), place)
        for of in {self.place_of(job_id) for job_id in handed_out if request_id is not None}:
            of_place = [delivery for delivery in deliveries if self.place_of(delivery.job_id) == of]
            self._requests[of, str(request_id)] = _Request(of_place)
        return deliveries

    def _index_of_place(self, handed_out: Sequence[str], delivery: Delivery) -> int:
        """Where in a response its partition comes: partitions may come in any order."""
        return [self.place_of(job_id) for job_id in handed_out].index(self.place_of(delivery.job_id))

    def return_popped(self, deliveries: Sequence[Delivery]) -> int:
        """Return how many were returned: the live ones, unless their request has been repeated."""
        count = 0
        for delivery in reversed(deliveries):
            request = self._requests.get((self.place_of(delivery.job_id), delivery.request_id or ""))
            if self._is_live(delivery) and not (request and request.repeated):
                self._return(self.jobs[delivery.job_id])
                count += 1
        return count

    def return_one(self, job_id: str, delivery: Delivery, consumer: str | None) -> None:
        """Of several in a call, the last one is returned first."""
        job = self._held(job_id, delivery)
        if consumer not in {None, job.consumer}:
            raise ReceiptStale(self.topic, job_id)
        job.snoozes += delivery is ANY_DELIVERY
        self._return(job)

    def _return(self, job: ModelJob) -> None:
        self._returns += 1
        released = self._release(job, counted=False)
        self._change(released, JobState.READY, ReadyPosition(-self._returns, "returned", 0))
        self.flows.keep_place(job)

    def finish(self, job_id: str, delivery: Delivery, result: Any = None) -> None:
        job = self.jobs.get(job_id)
        if job is not None and job.was_finished_by(delivery):
            return
        job = self._held(job_id, delivery)
        job.finished_by = job.live
        self._release(job)
        self._end(job, "finished", {} if result is None else {"result": result})
        if job.follow_up is not None:
            self._start_follow_up(job, self.now_s, None)
            job.follow_up.took_place_of = job.finished_by
            return
        if job.policy["unique_for"] is not None:
            self.taken[self.place_of(job_id), job_id] = self.now_s + job.policy["unique_for"]
        if job.policy["retain"] == 0:
            del self.jobs[job_id]
            return
        job.result = result
        job.finished_at_s = self.now_s
        job.retention_end_s = self.now_s + job.policy["retain"]
        self._change(job, JobState.FINISHED)

    def may_finish(self, job_id: str, delivery: Delivery) -> bool:
        """Whether a finish ends a delivery now. Raises the errors of `finish`."""
        job = self.jobs.get(job_id)
        if job is not None and job.was_finished_by(delivery):
            return False
        self._held(job_id, delivery)
        return True

    def release(
        self,
        job_id: str,
        delivery: Delivery,
        *,
        delay_s: int | None = None,
        error: str | None = None,
        counts: bool = True,
    ) -> tuple[JobState, int | None, int]:
        """Returns the state, the due time and the attempts."""
        job = self._held(job_id, delivery)
        if counts:
            self._log(job, "released", error)
        self._release(job, counted=counts)
        job.last_error = job.last_error if error is None else error
        job.snoozes += not counts
        if self._deadline_has_passed(job):
            self._bury(job, DeadReason.DEADLINE)
            return JobState.DEAD, None, job.attempts
        if counts and self._is_used_up(job):
            self._bury(job, DeadReason.ATTEMPTS)
            return JobState.DEAD, None, job.attempts
        wait_s = backoff_s(job.policy["backoff"], job.ended) if delay_s is None else delay_s
        if wait_s is None:
            self._bury(job, DeadReason.SCHEDULE)
            return JobState.DEAD, None, job.attempts
        self._set_retry_due(job, self.now_s + wait_s)
        self._change(job, JobState.DELAYED)
        self.flows.keep_place(job)
        return JobState.DELAYED, job.due_s, job.attempts

    def touch(self, job_id: str, delivery: Delivery, *, ttr_s: int | None = None) -> int:
        job = self._held(job_id, delivery)
        self._extend_lease(job, ttr_s)
        return job.lease_end_s

    def _extend_lease(self, job: ModelJob, ttr_s: int | None) -> None:
        job.lease_end_s = self.now_s + (job.policy["ttr"] if ttr_s is None else ttr_s)
        if job.latest_lease_end_s is not None:
            job.lease_end_s = min(job.lease_end_s, job.latest_lease_end_s)
        self._change(job, JobState.RESERVED)

    def bury(self, job_id: str, delivery: Delivery, *, error: str | None = None) -> None:
        job = self._held(job_id, delivery)
        self._log(job, "buried", error)
        self._release(job)
        job.last_error = job.last_error if error is None else error
        self._bury(job, DeadReason.BURIED)

    # Operators

    def redrive_ids(self, job_ids: Sequence[str]) -> int:
        self.counts()
        chosen = [job for job in self.in_state(JobState.DEAD) if job.id in job_ids]
        self._redrive(chosen, {job.id: job_ids.index(job.id) for job in chosen})
        return len(chosen)

    def redrive_some(self, limit: int, redriven: Collection[str]) -> int:
        """`redriven` are those that the store chose of the dead ones."""
        self.counts()
        dead = self.in_state(JobState.DEAD)
        chosen = [job for job in dead if job.id in redriven]
        assert len(chosen) == min(limit, len(dead))
        left = [job for job in dead if job.id not in redriven]
        last = max((self._turn_of(job) for job in chosen), default=(0, 0))
        assert not [job for job in left if self._turn_of(job) < last], "not the longest dead"
        self._redrive(chosen, {job.id: job.exact_ms for job in chosen})
        return len(chosen)

    def _turn_of(self, job: ModelJob) -> tuple[int, int]:
        """What is dead longest comes first, and one partition after the other."""
        return number_of(self.place_of(job.id)), job.exact_ms

    def purge(self, state: JobState | None) -> int:
        self.counts()
        jobs = list(self.jobs.values()) if state is None else self.in_state(state)
        for job in jobs:
            self._remove(job)
        if state in (None, JobState.FINISHED):
            self.taken.clear()
        if state is None and not (self.settings or self.flows.limits or self.paused) and self.home_of is None:
            self.known = False
            self.flows.forget_turns()
        return len(jobs)

    def set_topic(self, settings: dict[str, Any]) -> None:
        self.known = True
        self.settings = {name: value for name, value in settings.items() if name != "limits"}
        self.flows.set_limits(settings.get("limits", {}), self.now_s)

    def pause(self, paused: bool) -> bool:
        self.known = self.known or paused
        self.counts()
        self.paused = paused
        return paused

    # Time

    def run_timer(self) -> None:
        self._visit()
        while any(job.state is JobState.DELAYED and job.due_s <= self.now_s for job in self.jobs.values()):
            self._visit()  # follow-ups that have just taken their places

    def _visit(self) -> None:
        self._turns += 1
        for job in sorted(self.jobs.values(), key=lambda job: (job.exact_ms, job.id)):
            if self.is_expired(job):
                self._bury_overdue(job)
            elif job.state is JobState.DELAYED and job.due_s <= self.now_s:
                self._change(job, JobState.READY, ReadyPosition(self._turns, "due", job.exact_ms))
            elif job.state is JobState.RESERVED and job.lease_end_s <= self.now_s:
                self._end_lease(job)
            elif job.state in (JobState.DEAD, JobState.FINISHED) and job.retention_end_s <= self.now_s:
                del self.jobs[job.id]
        self.tombstones = {key: until_s for key, until_s in self.tombstones.items() if until_s > self.now_s}
        self.taken = {key: until_s for key, until_s in self.taken.items() if until_s > self.now_s}
        self.flows.timer_came(self.now_s)

    def _end_lease(self, job: ModelJob) -> None:
        latest_s = job.latest_lease_end_s
        how = "lease_ended" if latest_s is None or latest_s > self.now_s else "time_limit"
        self._log(job, "deadline" if self._deadline_has_passed(job) else how, None)
        self._release(job)
        if self._deadline_has_passed(job) or self._is_used_up(job):
            job.last_error = SOME_TEXT if job.last_error is None else job.last_error
            self._bury(job, DeadReason.DEADLINE if self._deadline_has_passed(job) else DeadReason.ATTEMPTS)
        else:
            self._set_retry_due(job, self.now_s)
            position = ReadyPosition(self._turns, "lease ended", job.exact_ms)
            if self.flows.keep_place(job):
                self._returns += 1
                position = ReadyPosition(-self._returns, "lease ended", 0)
            self._change(job, JobState.READY, position)

    # Shared by the verbs

    def _job(self, job_id: str) -> ModelJob:
        if job_id not in self.jobs:
            raise JobNotFound(self.topic, job_id)
        return self.jobs[job_id]

    def _is_live(self, delivery: Delivery) -> bool:
        job = self.jobs.get(delivery.job_id)
        return job is not None and job.live is delivery

    def _held(self, job_id: str, delivery: Delivery) -> ModelJob:
        """The job that a consumer's call names: reserved by `delivery`, or by any if that is ANY_DELIVERY."""
        if job_id not in self.jobs:
            key = job_id if delivery is ANY_DELIVERY else delivery
            if self._is_cancelled(key) and delivery.job_id in ("", job_id):
                raise JobCancelled(self.topic, job_id)
            raise JobNotFound(self.topic, job_id)
        job = self.jobs[job_id]
        if job.live is None or (delivery is not ANY_DELIVERY and delivery is not job.live):
            raise ReceiptStale(self.topic, job_id)
        return job

    def _is_cancelled(self, key: Delivery | str) -> bool:
        return any(of == key and until_s > self.now_s for (_, of), until_s in self.tombstones.items())

    def _release(self, job: ModelJob, *, counted: bool = True) -> ModelJob:
        """End the live delivery."""
        job.ended += counted
        job.live = job.consumer = None
        return job

    def _log(self, job: ModelJob, how: str, error: str | None) -> None:
        job.log = [*job.log, (job.attempts, self.now_s, how, job.consumer or "", error or "")][-10:]

    def _is_used_up(self, job: ModelJob) -> bool:
        return job.policy["max_attempts"] is not None and job.ended >= job.policy["max_attempts"]

    def _deadline_has_passed(self, job: ModelJob) -> bool:
        return job.deadline_s is not None and job.deadline_s <= self.now_s

    @staticmethod
    def _set_retry_due(job: ModelJob, due_s: int) -> None:
        if job.policy["deadline"] is not None and job.first_due_s is None:
            job.first_due_s = job.due_s
        job.due_s = due_s

    def _bury_overdue(self, job: ModelJob) -> None:
        assert job.end_of_waiting is not None
        self._bury(job, job.end_of_waiting[1])

    def _bury(self, job: ModelJob, reason: DeadReason) -> None:
        self.flows.leave(job)
        self._end(job, "dead", {"reason": reason.value})
        if job.follow_up is not None:
            self._start_follow_up(job, self.now_s, job.last_error)
            return
        job.reason = reason
        job.retention_end_s = self.now_s + job.policy["dead_retain"]
        self._change(job, JobState.DEAD)
        if job.policy["dead_retain"] == 0:
            del self.jobs[job.id]

    def _remove(self, job: ModelJob, *, keep_follow_up: bool = False) -> None:
        place = self.place_of(job.id)
        self.flows.leave(job)
        if job.state in LIVE_STATES:
            self._end(job, "cancelled", {})
        del self.jobs[job.id]
        if job.state is JobState.FINISHED:
            self.taken.pop((place, job.id), None)
        if job.live is not None:
            until_s = max(job.lease_end_s, self.now_s) + TOMBSTONE_S
            self.tombstones[place, job.live] = self.tombstones[place, job.id] = until_s
        if keep_follow_up and job.follow_up is not None:
            earliest_s = self.now_s if job.live is None else max(job.lease_end_s, self.now_s)
            self._start_follow_up(job, earliest_s, None)

    def _end(self, job: ModelJob, outcome: str, more: dict[str, Any]) -> None:
        """Put the job that says how this one ended."""
        on_end = job.policy["on_end"]
        if on_end is None or outcome not in on_end.get("on", [outcome]):
            return
        named = {"topic": self.topic, "id": job.id, "outcome": outcome}
        body = {**named, **more, "attempts": job.ended, "tags": job.policy["tags"], "headers": {}}
        if on_end.get("body"):
            body["body"] = job.body
        if outcome != "finished" and job.last_error is not None:
            body["error"] = job.last_error
        job_id = on_end["id"].format(**named) if "id" in on_end else None
        if job_id is None or all(end.id != job_id for end in self.ends):
            self.ends.append(End(job_id, body))

    def _redrive(self, jobs: Iterable[ModelJob], keys: dict[str, int]) -> None:
        self._turns += 1
        for job in jobs:
            job.ended, job.snoozes, job.due_s, job.reason = 0, 0, self.now_s, None
            job.first_due_s = None
            self._change(job, JobState.READY, ReadyPosition(self._turns, "redriven", keys[job.id]))

    def _check_handed_out(
        self, count: int, handed_out: Sequence[str], expired: Collection[str], place: str | None
    ) -> None:
        ready = self.ready_in(place)
        too_late = {job.id for job in ready if self.is_expired(job)}
        good = {job.id for job in ready} - too_late
        assert len(handed_out) == len(set(handed_out))
        assert len(handed_out) <= count
        assert set(handed_out) <= good, "handed out a job that may not be handed out"
        assert set(expired) <= too_late

    def ready_in(self, place: str | None = None) -> list[ModelJob]:
        """The ready jobs, of one partition or of all."""
        return [job for job in self.in_state(JobState.READY) if place in (None, self.place_of(job.id))]

    def _check_next(self, job: ModelJob, place: str | None) -> None:
        """Assert that this job may be handed out next."""
        ready = self.ready_in(place)
        kept_its_place = self.flows.hand_out(job, [one for one in ready if not self.is_expired(one)], self.now_s)
        for other in () if kept_its_place else ready:
            assert other.flow != job.flow or self.may_be_in_order((job.id, other.id)), f"{other.id} was skipped"

    def _check_left(self, missing: int, place: str | None) -> None:
        """Assert that a pop that handed out so many fewer jobs than it was asked for could not have had more."""
        ready = self.ready_in(place)
        assert not missing or not self.flows.can_go(ready, self.now_s)
        self.flows.end_pop([job for job in ready if not self.is_expired(job)], self.now_s)

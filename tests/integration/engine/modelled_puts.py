"""Puts in the model of one topic's jobs, and how they become one job: replaced, kept, appended to, or following."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

import orjson

from deferd.contract.errors import DeferdError, JobExists, JobReserved, PayloadTooLarge, TopicFull
from deferd.contract.model import JobState
from tests.integration.engine.modelled_flows import FlowModel
from tests.integration.engine.modelled_job import SERVICE_DEFAULTS, Delivery, End, ModelJob, Policy, ReadyPosition

MOST_BODY_BYTES = 34
"""The limit of the service in these tests; a few items reach it."""
LIVE_STATES = (JobState.DELAYED, JobState.READY, JobState.RESERVED)


class ModelledPut(NamedTuple):
    """What became of a put, and the job that its response shows."""

    outcome: Literal["created", "kept", "replaced", "appended", "follow_up"]
    job: ModelJob


@dataclass
class PutModel:
    """The jobs of one topic, and puts into it."""

    topic: str
    now_s: int = 0
    known: bool = False
    paused: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    tombstones: dict[tuple[str, Delivery | str], int] = field(default_factory=dict)
    """Until when calls of a delivery, or calls without receipt for an id, raise JobCancelled; with the partition."""
    taken: dict[tuple[str, str], int] = field(default_factory=dict)
    """By partition and id: until when `unique_for` keeps the id taken. What is over stays until the timer comes, also
    while another partition has a job with the id.
    """
    partitions: int = 1
    home_of: Callable[[str], str] | None = None
    """The partition for a new job with an id; None for a topic without partitions."""
    ends: list[End] = field(default_factory=list)
    """What the ends of jobs have put."""
    flows: FlowModel = field(init=False)
    _places: dict[str, str] = field(default_factory=dict)
    _changes: int = 0
    _turns: int = 0

    def __post_init__(self) -> None:
        self.flows = FlowModel(self.jobs)

    def place_of(self, job_id: str) -> str:
        """The partition that holds an id, or that a job with it would be put into."""
        if self.home_of is None:
            return self.topic
        is_held = job_id in self.jobs or self.is_taken(job_id)
        return self._places[job_id] if is_held else self.home_of(job_id)

    def is_taken(self, job_id: str) -> bool:
        """Whether `unique_for` keeps an id taken now."""
        return any(of == job_id and until_s > self.now_s for (_, of), until_s in self.taken.items())

    def put(
        self,
        job_id: str,
        body: Any,
        policy: Policy,
        *,
        delay_s: int = 0,
        on_conflict: str = "reject",
        conflict_with: str = "any",
        unique_for: int | None = None,
        if_reserved: str = "refuse",
        max_wait: int | None = None,
        max_items: int | None = None,
    ) -> ModelledPut:
        self.known = True
        defaults = {name: value for name, value in self.settings.items() if name != "max_jobs"}
        policy = {**SERVICE_DEFAULTS, **defaults, **policy, "unique_for": unique_for}
        new = ModelJob(job_id, body, policy, self.now_s + delay_s, created_s=self.now_s)
        old = self.jobs.get(job_id)
        if old is None and conflict_with == "live":
            self._let_go_of_former(job_id)
        waits = old is not None and old.state is JobState.RESERVED and if_reserved == "after"
        if on_conflict == "append":
            if old is not None and old.state is JobState.RESERVED and not waits:
                raise JobReserved(self.topic, job_id)
            if old is not None and old.state in (JobState.DELAYED, JobState.READY):
                if old.may_collect:
                    return self._append(old, new, max_wait, max_items)
                waits = True  # it was handed out before
            if waits and old is not None and old.follow_up is not None:
                return self._append_to_follow_up(old, old.follow_up, new, max_wait, max_items)
            _begin_collection(new, max_wait, max_items)
            on_conflict = "reject"
        elif max_wait is not None:
            _bound_due_time(new, old.follow_up if waits and old is not None else old, max_wait)
        if waits and old is not None:
            return self._follow(old, new, on_conflict)
        return self._put_in_place(old, new, on_conflict, conflict_with)

    def put_many(self, jobs: Iterable[dict[str, Any]]) -> list[str | None]:
        """The code of each job's error, None on success. Each job holds the arguments of a put."""
        codes: list[str | None] = []
        for arguments in jobs:
            try:
                self.put(**arguments)
            except DeferdError as exc:
                codes.append(exc.code)
            else:
                codes.append(None)
        return codes

    def _put_in_place(self, old: ModelJob | None, new: ModelJob, on_conflict: str, conflict_with: str) -> ModelledPut:
        is_in_the_way = old is not None and (conflict_with == "any" or old.state in LIVE_STATES)
        is_taken = conflict_with == "any" and self.is_taken(new.id)
        if old is None and is_taken:
            raise JobExists(self.topic, new.id)
        if old is not None and is_in_the_way:
            if on_conflict == "reject":
                raise JobExists(self.topic, new.id)
            if on_conflict == "keep":
                return ModelledPut("kept", old)
            if is_taken:
                raise JobExists(self.topic, new.id)
            if old.state is JobState.RESERVED:
                raise JobReserved(self.topic, new.id)
        if old is None or old.state not in LIVE_STATES:
            self._require_room(self.place_of(new.id))
        if old is not None:
            self.flows.leave(old)
        place = self._places[new.id] = self.place_of(new.id)
        self.jobs[new.id] = new
        self.taken.pop((place, new.id), None)
        if old is None:  # one in the partition of an earlier number stays
            self.tombstones.pop((place, new.id), None)
        self._change(new, self._state_of_waiting(new))
        return ModelledPut("replaced" if is_in_the_way else "created", new)

    def _let_go_of_former(self, job_id: str) -> None:
        """A put of which only a live job is a conflict goes where its id belongs. In the partition of an earlier number
        an id that is only taken is free from then on, also if the put is refused.
        """
        former = self.place_of(job_id)
        if self.home_of is not None and former != self.home_of(job_id):
            del self.taken[former, job_id]

    def _follow(self, held: ModelJob, new: ModelJob, on_conflict: str) -> ModelledPut:
        """Wait until the job has ended."""
        if held.follow_up is not None and on_conflict == "keep":
            return ModelledPut("kept", held.follow_up)
        outcome: Literal["follow_up", "replaced"] = "follow_up" if held.follow_up is None else "replaced"
        held.follow_up = new
        self._change(held, held.state)
        return ModelledPut(outcome, new)

    def _append(self, job: ModelJob, new: ModelJob, max_wait: int | None, max_items: int | None) -> ModelledPut:
        """Append the body of `new` to a job that nobody has held."""
        due_s = self._due_after_append(job, new, max_wait, max_items)
        if job.state is JobState.DELAYED:
            job.due_s = due_s
        self._change(job, job.state if job.state is JobState.READY else self._state_of_waiting(job))
        return ModelledPut("appended", job)

    def _append_to_follow_up(
        self, held: ModelJob, follow_up: ModelJob, new: ModelJob, max_wait: int | None, max_items: int | None
    ) -> ModelledPut:
        follow_up.due_s = self._due_after_append(follow_up, new, max_wait, max_items)
        self._change(held, held.state)
        return ModelledPut("appended", follow_up)

    def _due_after_append(self, job: ModelJob, new: ModelJob, max_wait: int | None, max_items: int | None) -> int:
        """Append, and return when the job is due for it."""
        items = [*job.body, new.body] if job.is_open else [job.body, new.body]
        _require_size(items)
        job.body, job.is_collection, job.is_open = items, True, True
        if job.due_by_s is None and max_wait is not None:
            job.due_by_s = job.created_s + max_wait
        if max_items is not None and len(items) >= max_items:
            return self.now_s
        return new.due_s if job.due_by_s is None else max(min(new.due_s, job.due_by_s), self.now_s)

    # Shared by the verbs

    def _start_follow_up(self, ended: ModelJob, earliest_s: int, error: str | None) -> None:
        """Let the follow-up of a job that has ended take its place."""
        job = ended.follow_up
        assert job is not None
        job.due_s = max(job.due_s, earliest_s)
        job.last_error = error
        self.jobs[job.id] = job
        self.tombstones.pop((self.place_of(job.id), job.id), None)
        self._change(job, JobState.DELAYED)  # the timer makes it ready, also if it is due

    def _state_of_waiting(self, job: ModelJob) -> JobState:
        return JobState.DELAYED if job.due_s > self.now_s else JobState.READY

    def _require_room(self, place: str) -> None:
        """Each partition may hold its share of the most jobs."""
        max_jobs = self.settings.get("max_jobs")
        if max_jobs is None:
            return
        live = sum(job.state in LIVE_STATES and self.place_of(job.id) == place for job in self.jobs.values())
        if live >= ceil(max_jobs / self.partitions):
            raise TopicFull(self.topic, max_jobs)

    def _change(self, job: ModelJob, state: JobState, position: ReadyPosition | None = None) -> None:
        self._changes += 1
        job.version = self._changes
        if state is JobState.READY and job.state is not JobState.READY:
            self._turns += position is None
            job.position = position or ReadyPosition(self._turns, "came", 0)
        job.state = state


def _begin_collection(new: ModelJob, max_wait: int | None, max_items: int | None) -> None:
    _require_size([new.body])
    new.body, new.is_collection, new.is_open = [new.body], True, True
    if max_wait is not None:
        new.due_by_s = new.created_s + max_wait
        new.due_s = min(new.due_s, new.due_by_s)
    if max_items == 1:
        new.due_s = new.created_s


def _bound_due_time(new: ModelJob, replaced: ModelJob | None, max_wait: int) -> None:
    """The longest wait counts from the first of the puts that became one job, until that is delivered or ends."""
    if replaced is None or replaced.state not in (JobState.DELAYED, JobState.READY) or replaced.was_delivered:
        new.due_by_s = new.created_s + max_wait
    elif replaced.due_by_s is not None:
        new.due_by_s = replaced.due_by_s
    else:
        new.due_by_s = replaced.created_s + max_wait
    new.due_s = max(min(new.due_s, new.due_by_s), new.created_s)


def _require_size(items: list[Any]) -> None:
    if len(orjson.dumps(items)) > MOST_BODY_BYTES:
        raise PayloadTooLarge(MOST_BODY_BYTES, of_items=True)

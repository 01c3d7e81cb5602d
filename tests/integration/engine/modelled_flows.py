"""Groups, priorities and limits in the model of one topic: the rules by which a pop chooses jobs.

A flow is the jobs of one priority of one group. The order in which flows take turns is left to the store; the model
asserts what is promised of it: how far one may be ahead of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf
from typing import Any

from deferd.contract.model import JobState
from tests.integration.engine.modelled_job import Flow, ModelJob

TOPIC_RATE = "\0topic"
"""Stands for the topic among the names of groups."""


@dataclass
class FlowModel:
    """The limits of a topic, what its groups wait for, and who had turns. `jobs` are those of the topic."""

    jobs: dict[str, ModelJob]
    limits: dict[str, Any] = field(default_factory=dict)
    """As settings have them."""
    holds: dict[str, str] = field(default_factory=dict)
    """By group with strict order: the job that was handed out last and has not ended, while it waits."""
    maybe_blocked: set[str] = field(default_factory=set)
    """Groups that were held back by a rate, or by limits that have changed: they may be until the timer comes."""
    _begun: dict[str, list[int]] = field(default_factory=dict)
    """By group with a rate: when its deliveries began."""
    _ahead: dict[tuple[Flow, Flow], tuple[Fraction, Fraction]] = field(default_factory=dict)
    """How many turns more the first flow had since both have waited, and the least that this was."""

    # What changes

    def set_limits(self, limits: dict[str, Any], now_s: int) -> None:
        waiting = {job.group for job in self._ready()}
        self.maybe_blocked |= {group for group in waiting if group and self.room_of(group, now_s) <= 0}
        self.limits = limits
        self._ahead.clear()

    def timer_came(self, now_s: int) -> None:
        self.maybe_blocked = {group for group in self.maybe_blocked if self._room_of_rate(group, now_s) <= 0}

    def forget_turns(self) -> None:
        self._ahead.clear()

    def leave(self, job: ModelJob) -> None:
        """A job has ended, or leaves its group."""
        if self.holds.get(job.group) == job.id:
            del self.holds[job.group]

    def keep_place(self, job: ModelJob) -> bool:
        """A delivery has ended, but not its job: with strict order nothing else of its group goes before it."""
        if not job.group or self._of(job.group).get("max_in_flight") != 1 or job.group in self.holds:
            return False
        self.holds[job.group] = job.id
        return True

    # What is held back

    def room_in_topic(self, now_s: int) -> float:
        """How many more jobs the limits of the topic allow."""
        reserved = sum(job.state is JobState.RESERVED for job in self.jobs.values())
        most: float = self.limits.get("max_in_flight", inf)
        return max(min(most - reserved, self._room_of_rate(TOPIC_RATE, now_s)), 0)

    def room_of(self, group: str, now_s: int) -> float:
        """How many more jobs of the group its limits allow."""
        reserved = sum(job.state is JobState.RESERVED and job.group == group for job in self.jobs.values())
        most: float = self._of(group).get("max_in_flight", inf)
        room = min(most - reserved, self._room_of_rate(group, now_s))
        kept = self._kept(group)
        return 0 if kept is not None and kept.state is not JobState.READY else max(room, 0)

    def room(self, jobs: Sequence[ModelJob], now_s: int, *, surely: bool = False) -> float:
        """How many of these jobs a pop may hand out; `surely`: must be able to."""
        total: float = 0
        for group in {job.group for job in jobs}:
            of_group = [job for job in jobs if job.group == group]
            kept = self._kept(group)
            if surely and (group in self.maybe_blocked or (kept is not None and kept not in of_group)):
                continue
            total += min(len(of_group), self.room_of(group, now_s))
        return min(total, self.room_in_topic(now_s))

    def can_go(self, jobs: Iterable[ModelJob], now_s: int) -> list[ModelJob]:
        """Those of some ready jobs that nothing holds back."""
        if not self.room_in_topic(now_s):
            return []
        open_groups: dict[str, bool] = {}
        can_go = []
        for job in jobs:
            if job.group not in open_groups:
                has_room = self.room_of(job.group, now_s) > 0
                open_groups[job.group] = has_room and job.group not in self.maybe_blocked
            if open_groups[job.group] and self._kept(job.group) in (None, job):
                can_go.append(job)
        return can_go

    # A pop

    def hand_out(self, job: ModelJob, ready: Collection[ModelJob], now_s: int) -> bool:
        """Assert that this one of some ready jobs may be next, and note that it is. It must not be reserved yet.

        Returns whether it kept its place. Else the caller asserts that it is the first one of its flow.
        """
        assert self.room_in_topic(now_s) > 0, "more than the limits of the topic allow"
        assert self.room_of(job.group, now_s) > 0, "more than the limits of the group allow"
        kept = self._kept(job.group)
        assert kept in (None, job), "handed out before the one that keeps the place"
        can_go = self.can_go(ready, now_s)
        of_group = [one.priority for one in ready if kept is job and one.group == job.group]
        priority = max([job.priority, *of_group])
        assert priority >= max((one.priority for one in can_go), default=0), "before one of a higher priority"
        self._note_turn(job.flow, can_go, is_clear=priority == job.priority)
        self.leave(job)
        for name, limits in ((TOPIC_RATE, self.limits), (job.group, self._of(job.group))):
            if "rate" in limits:
                self._begun.setdefault(name, []).append(now_s)
        return kept is job

    def end_pop(self, ready: Collection[ModelJob], now_s: int) -> None:
        """A pop has returned, and left these ready jobs."""
        self._keep_turns_of(self.can_go(ready, now_s))
        for group in {job.group for job in ready}:
            if self._room_of_rate(group, now_s) <= 0:
                self.maybe_blocked.add(group)

    def _note_turn(self, flow: Flow, can_go: Iterable[ModelJob], *, is_clear: bool) -> None:
        waiting = self._keep_turns_of(can_go)
        if not is_clear or flow not in waiting:
            self._ahead = {pair: ahead for pair, ahead in self._ahead.items() if flow not in pair}
            return
        nothing = Fraction(0), Fraction(0)
        job = Fraction(1, self._weight(flow))
        for other in waiting - {flow}:
            if other[0] != flow[0]:
                continue
            ahead, least = self._ahead.get((flow, other), nothing)
            self._ahead[flow, other] = ahead + job, least
            behind, least_behind = self._ahead.get((other, flow), nothing)
            self._ahead[other, flow] = behind - job, min(least_behind, behind - job)
            lead = ahead + job - least
            assert lead < 1 + job, f"{flow} is more than a turn ahead of {other}"

    def _keep_turns_of(self, can_go: Iterable[ModelJob]) -> set[Flow]:
        """Forget the turns of flows that do not wait, and return those that do."""
        waiting = {job.flow for job in can_go}
        if any(one not in waiting or other not in waiting for one, other in self._ahead):
            self._ahead = {pair: ahead for pair, ahead in self._ahead.items() if waiting.issuperset(pair)}
        return waiting

    # Shared

    def _ready(self) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state is JobState.READY]

    def _of(self, group: str) -> dict[str, Any]:
        """The limits of a group; those of all groups do not concern jobs without one."""
        if not group:
            return {}
        return {**self.limits.get("per_group", {}), **self.limits.get("groups", {}).get(group, {})}

    def _weight(self, flow: Flow) -> int:
        return int(self._of(flow[1]).get("weight", 1))

    def _kept(self, group: str) -> ModelJob | None:
        """The job of a group that must be next."""
        is_strict = self._of(group).get("max_in_flight") == 1
        return self.jobs[self.holds[group]] if is_strict and group in self.holds else None

    def _room_of_rate(self, name: str, now_s: int) -> float:
        rate = (self.limits if name == TOPIC_RATE else self._of(name)).get("rate")
        if rate is None:
            return inf
        span_s: float = rate["per"]
        return float(rate["count"]) - sum(now_s - at_s < span_s for at_s in self._begun.get(name, ()))

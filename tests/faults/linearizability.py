"""Check linearizability: is there an order of the operations on one job in which the model gives every response?

Wing and Gong's search, per job: an operation took effect at one instant between its call and its end; one of unknown
outcome at any instant after its call, or never, but not after it is known to have been given up. If the response shows
when the store executed it, that is the instant.
The model (`job_life`) only requires that something is over by an instant, so the earliest possible instant is always
the best, and only the order is searched. A state that was reached once is not searched again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tests.faults.history import UNKNOWN, Operation, tags_of
from tests.faults.job_life import after
from tests.faults.job_state import Life

MOST_STEPS = 200_000
"""Steps after which a job's history counts as undecided."""


@dataclass(frozen=True)
class StoreClock:
    """Converts the machine's monotonic clock to the store's clock: adds `offset_ms`, to within `uncertainty_ms`."""

    offset_ms: float
    uncertainty_ms: float

    def earliest(self, at_s: float) -> float:
        """The earliest that the store's clock, which counts whole ms, may have shown."""
        return at_s * 1000 + self.offset_ms - self.uncertainty_ms - 1

    def latest(self, at_s: float | None) -> float:
        """The latest that it may have shown; infinity for None."""
        return inf if at_s is None else at_s * 1000 + self.offset_ms + self.uncertainty_ms


class Verdict(NamedTuple):
    """The result of the search. `reached` is the longest order that the model could explain."""

    is_right: bool
    is_decided: bool
    steps: int
    reached: Sequence[Operation]
    life: Life

    def explain(self, operations: Sequence[Operation]) -> str:
        """For people: the operations that could be explained, and the others."""
        left = [operation for operation in operations if operation not in self.reached]
        return "\n".join(
            [
                *(f"  explained   {_shown(operation)}" for operation in self.reached),
                f"  then        {self.life}",
                *(f"  left        {_shown(operation)}" for operation in left),
            ]
        )


def _shown(operation: Operation) -> str:
    """An operation as text, without empty fields."""
    facts = {name: value for name, value in vars(operation).items() if value or name == "end_s"}
    return " ".join(f"{name}={value}" for name, value in facts.items() if name not in {"topic", "job"})


def check_job(
    operations: Sequence[Operation],
    clock: StoreClock,
    pops_without_response_s: Sequence[float] = (),
    *,
    hides_any: bool = False,
    most_steps: int = MOST_STEPS,
) -> Verdict:
    """Search for an order. `pops_without_response_s` are the call times of pops that may have taken this job unseen.

    With `hides_any` there were consumers whose pops were not recorded.
    """
    return _Search(_with_instants(operations), clock, pops_without_response_s, hides_any, most_steps).run()


def _with_instants(operations: Sequence[Operation]) -> list[Operation]:
    """Leave out operations that explain nothing: a touch without a response can only extend a lease."""
    irrelevant = {"touch", "look"}
    return [
        operation for operation in operations if not (operation.kind in irrelevant and operation.outcome == UNKNOWN)
    ]


def _contradicts_itself(one: Operation, clock: StoreClock, created_ms: Mapping[str, int | None]) -> bool:
    """Whether a response shows an impossible time: of its execution, of the job's put or of its due time."""
    shown = one.tag if one.kind == "deliver" else one.shown
    if one.created_ms and created_ms.get(tags_of(shown)[0]) not in {None, one.created_ms}:
        return True
    if one.kind == "change" and one.due_ms:
        return not clock.earliest(one.call_s) <= one.due_ms - one.delay_ms <= clock.latest(one.end_s)
    if one.at_ms is None:
        return False
    if not clock.earliest(one.call_s) <= one.at_ms <= clock.latest(one.over_s):
        return True
    if one.kind != "put" or not one.due_ms:
        return False
    requested_ms = max(one.at_ms, one.run_at_ms) if one.run_at_ms else one.at_ms + one.delay_ms
    if one.max_wait_ms or one.max_items:
        return not one.at_ms <= one.due_ms <= requested_ms
    return one.due_ms != requested_ms


class _Search:
    def __init__(
        self,
        operations: Sequence[Operation],
        clock: StoreClock,
        pops_without_response_s: Sequence[float],
        hides_any: bool,
        most_steps: int,
    ) -> None:
        self._operations = operations
        self._from_ms = [clock.earliest(one.call_s) if one.at_ms is None else one.at_ms for one in operations]
        self._to_ms = [clock.latest(one.over_s) if one.at_ms is None else one.at_ms for one in operations]
        self._pops_ms = [] if hides_any else sorted(clock.earliest(call_s) for call_s in pops_without_response_s)
        self._hides_any = hides_any
        self._most_steps = most_steps
        self._must = sum(1 << at for at, one in enumerate(operations) if one.outcome != UNKNOWN)
        created_ms = {one.tag: one.at_ms for one in operations if one.kind == "put"}
        self._contradictory = [one for one in operations if _contradicts_itself(one, clock, created_ms)]

    def run(self) -> Verdict:
        """Depth first, without recursion."""
        if self._contradictory:  # a response shows a time at which it cannot have been executed
            return Verdict(False, True, 0, [one for one in self._operations if one not in self._contradictory], Life())
        start: tuple[int, Life, float] = (0, Life(), -inf)
        seen = {start}
        open_ends: list[tuple[tuple[int, Life, float], tuple[int, ...]]] = [(start, ())]
        best: tuple[tuple[int, ...], Life] = ((), Life())
        steps = 0
        while open_ends:
            (done, life, now_ms), order = open_ends.pop()
            if len(order) > len(best[0]):
                best = order, life
            if done & self._must == self._must:
                return self._verdict(True, True, steps, order, life)
            if steps > self._most_steps:
                return self._verdict(False, False, steps, *best)
            for at, reached in self._next(done, life, now_ms):
                steps += 1
                if reached not in seen:
                    seen.add(reached)
                    open_ends.append((reached, (*order, at)))
        return self._verdict(False, True, steps, *best)

    def _next(self, done: int, life: Life, now_ms: float) -> list[tuple[int, tuple[int, Life, float]]]:
        """Each operation that may come next, unknown ones first; the last one is tried first."""
        left = [at for at in range(len(self._operations)) if not done >> at & 1]
        must_by_ms = min((self._to_ms[at] for at in left if self._must >> at & 1), default=inf)
        found = []
        for at in sorted(left, key=lambda at: (self._must >> at & 1, -self._from_ms[at])):
            from_ms = max(now_ms, self._from_ms[at])
            if from_ms > must_by_ms:  # another operation had ended before this one was called
                continue
            for reached, at_ms in after(life, self._operations[at], from_ms, self._hidden_from):
                changes_nothing = reached == life and self._operations[at].outcome == UNKNOWN
                if at_ms <= min(must_by_ms, self._to_ms[at]) and not changes_nothing:
                    found.append((at, (done | 1 << at, reached, at_ms)))
        return found

    def _hidden_from(self, count: int) -> float:
        if not count or self._hides_any:
            return -inf
        return self._pops_ms[count - 1] if count <= len(self._pops_ms) else inf

    def _verdict(self, is_right: bool, is_decided: bool, steps: int, order: Sequence[int], life: Life) -> Verdict:
        return Verdict(is_right, is_decided, steps, [self._operations[at] for at in order], life)

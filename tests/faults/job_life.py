"""A plain model of one job's life, one operation after the other: what each may answer, and what it leaves behind.

It is written from the contract (the life of a job), not from the scripts. Instants are ms on the store's clock. All
that happens by itself (a due job becomes ready, a lease runs out) is in how a place is read at an instant: a job whose
lease is over is held by its consumer until somebody else gets it, or waiting, whichever the next answer says.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from tests.faults.history import UNKNOWN, Operation

TOLD_CANCELLED_MS = 60_000
"""How long the holder of a cancelled job is told so after its lease would have ended; then it may be "not found"."""


class Place(Enum):
    """Where a job is. Finished and cancelled jobs are gone (these runs keep none)."""

    GONE = auto()
    WAITING = auto()
    HELD = auto()


class Life(NamedTuple):
    """One job at an instant. `since_ms` is when it is due while it waits, or when its lease ends while it is held.

    `attempts` are deliveries that have ended. `hidden` counts deliveries that were taken by unanswered pops.
    `told` are receipts whose holders are to be told that their job was cancelled, and at least until when.
    """

    place: Place = Place.GONE
    tag: str = ""
    since_ms: float = 0
    ttr_ms: int = 0
    attempts: int = 0
    receipt: str = ""
    hidden: int = 0
    told: frozenset[tuple[str, float]] = frozenset()

    def gone(self) -> Life:
        """Finished."""
        return Life(hidden=self.hidden, told=self.told)

    def cancelled(self, at_ms: float) -> Life:
        """Cancelled while it was held: its holder is told so."""
        until_ms = max(self.since_ms, at_ms) + TOLD_CANCELLED_MS
        return Life(hidden=self.hidden, told=self.told | {(self.receipt, until_ms)})

    def taken_back(self) -> Life:
        """Its lease ran out."""
        return self._replace(place=Place.WAITING, attempts=self.attempts + 1, receipt="")


Step = tuple[Life, float]
"""What an operation left behind, and the instant at which it was carried out, at the earliest."""
HiddenFrom = Callable[[int], float]
"""From when on so many unanswered pops may have taken the job; infinity: never."""


def after(life: Life, operation: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """What may have come of an operation carried out at `at_ms` or later; nothing when no instant gives its answer.

    With an unknown outcome: what came of it when it was carried out.
    """
    match operation.kind:
        case "put":
            return _put(life, operation, at_ms)
        case "cancel":
            return _cancel(life, operation, at_ms, hidden_from)
        case "deliver":
            return _deliver(life, operation, at_ms, hidden_from)
        case "look":
            return [(life, at_ms)] if (operation.outcome == "gone") == (life.place is Place.GONE) else []
        case _:
            return _holder_says(life, operation, at_ms)


def _put(life: Life, put: Operation, at_ms: float) -> list[Step]:
    if life.place is not Place.GONE:
        return [(life, at_ms)] if put.outcome in {"exists", UNKNOWN} else []
    if put.outcome == "exists":
        return []
    due_ms = at_ms + put.delay_ms
    return [(Life(Place.WAITING, put.tag, due_ms, put.ttr_ms, hidden=life.hidden, told=life.told), at_ms)]


def _cancel(life: Life, cancel: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.GONE:
        return [(life, at_ms)] if cancel.outcome in {"not found", UNKNOWN} else []
    over_ms = max(at_ms, life.since_ms)
    steps: list[Step] = []
    if cancel.outcome in {"delayed", UNKNOWN} and life.place is Place.WAITING:
        steps.append((life.gone(), at_ms))
    if cancel.outcome in {"ready", UNKNOWN}:
        steps.append((life.gone(), over_ms))
    if cancel.outcome in {"reserved", UNKNOWN} and life.place is Place.HELD:
        steps.append((life.cancelled(at_ms), at_ms))
    if cancel.outcome == "reserved":  # in hands that nobody knows of
        hidden = life.hidden + 1
        steps.append((life.gone()._replace(hidden=hidden), max(over_ms, hidden_from(hidden))))
    return steps


def _deliver(life: Life, delivery: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.HELD:
        life = life.taken_back()
    if life.place is Place.GONE or life.tag != delivery.tag:
        return []
    # What unanswered pops took came back when its lease had ended, and counts as an attempt.
    between = delivery.attempt - 1 - life.attempts
    hidden = life.hidden + between
    if between < 0:
        return []
    held = life._replace(
        place=Place.HELD,
        since_ms=delivery.lease_end_ms,
        attempts=delivery.attempt - 1,
        receipt=delivery.receipt,
        hidden=hidden,
    )
    return [(held, max(at_ms, hidden_from(hidden), life.since_ms + between * life.ttr_ms))]


def _holder_says(life: Life, said: Operation, at_ms: float) -> list[Step]:
    """Finish, release, touch, of the delivery with a receipt."""
    told_until_ms = max((until_ms for receipt, until_ms in life.told if receipt == said.receipt), default=0.0)
    is_gone = life.place is Place.GONE
    holds = life.place is Place.HELD and life.receipt == said.receipt
    match said.outcome:
        case "cancelled":
            return [(life, at_ms)] if is_gone and told_until_ms else []
        case "not found":
            return [(life, max(at_ms, told_until_ms))] if is_gone else []
        case "stale" if holds:
            return [(life.taken_back(), max(at_ms, life.since_ms))]
        case "stale":
            return [] if is_gone else [(life, at_ms)]
    if not holds:
        return [(life, at_ms)] if said.outcome == UNKNOWN else []
    match said.kind:
        case "finish":
            return [(life.gone(), at_ms)]
        case "release":
            return [(life.taken_back()._replace(since_ms=at_ms + said.delay_ms), at_ms)]
        case _:
            return [(life._replace(since_ms=said.lease_end_ms), at_ms)]

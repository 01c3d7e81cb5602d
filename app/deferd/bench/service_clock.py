"""The service's clock, seen from here: all times of jobs are those of its store, which may run on another host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from deferd.contract.timestamps import format_instant, parse_instant

_STEP_MS = 1.0
"""The store's instants are whole milliseconds, cut off: the instant was up to one later."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What to add to this machine's clock to have the store's, and by how much that may be wrong, in milliseconds."""

    offset_ms: float
    error_ms: float

    @classmethod
    def seen_in(cls, sightings: Iterable[tuple[float, float, float]]) -> Clock:
        """The clock that agrees with all sightings: sent at, the store's instant, answered at; each in milliseconds.

        The store looked at its clock between sending and answer, so each sighting bounds the offset from both sides.
        Where no difference at all is within the bounds, the clocks are taken to agree, as they do on one machine and
        nearly do on machines that are kept in step.
        """
        sightings = list(sightings)
        low = max(stored - answered for _, stored, answered in sightings)
        high = min(stored + _STEP_MS - sent for sent, stored, _ in sightings)
        if low <= 0 <= high:
            return cls(0.0, max(-low, high))
        return cls((low + high) / 2, abs(high - low) / 2)

    def stored_ms(self, here_s: float) -> float:
        """The store's time, milliseconds since the epoch, at a `time.time()` of this machine."""
        return here_s * 1000 + self.offset_ms


def instant(epoch_ms: int) -> str:
    """An instant as the service writes it."""
    return format_instant(datetime.fromtimestamp(epoch_ms / 1000, UTC))


def epoch_ms(instant: str) -> float:
    """Milliseconds since the epoch of an instant that the service wrote."""
    return parse_instant(instant).timestamp() * 1000

"""The clock of the service's store, which gives all times of jobs, compared with the clock of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

_STEP_MS = 1.0
"""Instants of the store are truncated to milliseconds."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Milliseconds by which the store's clock is ahead of this machine's, and the largest error of that."""

    offset_ms: float
    error_ms: float

    @classmethod
    def from_samples(cls, samples: Iterable[tuple[float, float, float]]) -> ClockOffset:
        """The offset from samples: request sent, the store's instant, response received; in milliseconds.

        The store read its clock between request and response, so each sample bounds the offset on both sides. If 0 is
        within the bounds, the clocks are assumed to agree, as on one machine or with synchronized clocks.
        """
        samples = list(samples)
        low = max(stored - received for _, stored, received in samples)
        high = min(stored + _STEP_MS - sent for sent, stored, _ in samples)
        if low <= 0 <= high:
            return cls(0.0, max(-low, high))
        return cls((low + high) / 2, abs(high - low) / 2)

    def store_ms(self, here_s: float) -> float:
        """The store's time in milliseconds since the epoch at this `time.time()`."""
        return here_s * 1000 + self.offset_ms


def epoch_ms(at: datetime) -> int:
    """Milliseconds since the epoch of an instant of the service."""
    return round(at.timestamp() * 1000)

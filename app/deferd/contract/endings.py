"""How attempts end."""

from __future__ import annotations

from deferd.contract.open_enum import OpenEnum


class AttemptEnd(OpenEnum):
    """How an attempt ended without a finish."""

    RELEASED = "released"
    """A consumer released the job."""
    BURIED = "buried"
    """A consumer buried it."""
    LEASE = "lease_ended"
    """Its lease ended."""
    TIME_LIMIT = "time_limit"
    """Its lease ended because the `time_limit` had passed."""
    DEADLINE = "deadline"
    """Its lease ended because the job's `deadline` had passed."""

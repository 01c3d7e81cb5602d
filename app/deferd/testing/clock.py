"""The movable clock of a service for tests."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic_core import to_json

from deferd.client import Client
from deferd.client.requests import request_for
from deferd.contract.operations import test_clock as operations

_MOVE_S = 60.0
"""As in engine/movable_clock.py."""


class ServiceClock:
    """The clock that a service for tests uses for due times, leases, retries, ttl and retention.

    It runs in real time, jumps with `advance`, and never goes back.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def now(self) -> datetime:
        """The time of the service, in UTC."""
        return self._client.send(request_for(operations.READ_CLOCK)).now

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Move the clock forward by `by` plus these days, hours, minutes and seconds; returns the new time.

        The call takes milliseconds. When it returns, due jobs are ready, expired leases have ended and expired records
        are gone, so a pop with `wait=0` returns what is due. Waiting consumers get their jobs at once; the length of
        their wait is real time and not affected.

        All of that happens at the end of the jump. If something must happen in between (a job that is due after an
        hour, is released and is due again after two), advance in steps.

        Raises:
            InvalidInput: a negative duration, or more than ten years at once.
        """
        whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) + (by or timedelta())
        body = to_json({"advance": whole.total_seconds()})
        return self._client.send(request_for(operations.MOVE_CLOCK, body=body, wait_s=_MOVE_S)).now

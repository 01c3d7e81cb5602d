"""The clock of a service for tests: it says what time it is there, and lets time pass."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic_core import from_json, to_json

from deferd.client import Client
from deferd.client.requests import ApiRequest
from deferd.contract.timestamps import parse_instant

_PATH = "/testing/clock"


class ServiceClock:
    """The clock by which a service for tests does everything: due times, leases, retries, ttl, retention.

    It goes on by itself, as clocks do, and by `advance`; never back.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def now(self) -> datetime:
        """The time in the service, in UTC."""
        return self._client.send(ApiRequest("GET", _PATH, _read_now))

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Let time pass: `by`, or so many days, hours, minutes and seconds, or both together; returns the new time.

        It takes milliseconds. When it returns, jobs that have come due are ready, leases that have ended are taken
        back, and what was to be forgotten is gone: a pop with `wait=0` gets what there is. Consumers that wait get
        their jobs at once; for how long they wait is real time, and does not pass by this.

        All of that happens at the end of the jump. Where something is to be done in between (a job that is due after
        an hour, is released and comes again after two), advance in as many steps.

        Raises:
            InvalidInput: less than nothing, or more than ten years at once.
        """
        whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) + (by or timedelta())
        body = to_json({"advance": whole.total_seconds()})
        # Not repeated: after a lost answer nobody knows how far it has moved.
        return self._client.send(ApiRequest("POST", _PATH, _read_now, body=body, repeatable=False))


def _read_now(content: bytes) -> datetime:
    return parse_instant(from_json(content)["now"])

"""The responses about the service as a process: its health, and its clock in tests."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from deferd.contract.responses.response import Response


class Health(Response, frozen=True, kw_only=True):
    """The service is healthy."""

    status: Literal["ok"]

    schema_examples = ({"status": "ok"},)


class Clock(Response, frozen=True, kw_only=True):
    """The clock of a service for tests, and by how many seconds it was advanced so far."""

    now: datetime
    offset: float

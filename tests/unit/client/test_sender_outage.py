"""How long a call is retried in an outage, when a part of its time has passed already."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from deferd.client.errors import Unreachable
from deferd.client.http1 import HttpResponse
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Sender
from deferd.contract.operations.jobs import GET_JOB


class Refusing:
    """A transport to a service that is down."""

    def __init__(self) -> None:
        self.attempts = 0

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        self.attempts += 1
        raise Unreachable("refused")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Nothing is open."""


async def attempts(*, sender_s: float, call_s: float) -> int:
    """How often a call with `call_s` left is sent, half a second after the beginning of an outage."""
    transport = Refusing()
    sender = Sender(transport, ["http://service"], retry_for_s=sender_s)
    sender._circuit.failed(Unreachable("refused"), time.monotonic() - 0.5, None)
    outcome = await sender.try_to_send(request_for(GET_JOB, "t", "a"), retry_for_s=call_s)
    assert isinstance(outcome.error, Unreachable)
    return transport.attempts


async def test_the_rest_of_a_call_counts_from_now_and_the_outage_by_the_time_of_the_client() -> None:
    assert await attempts(sender_s=5, call_s=0.3) >= 1
    assert await attempts(sender_s=0.4, call_s=0.3) == 0
    assert await attempts(sender_s=0, call_s=2) >= 1

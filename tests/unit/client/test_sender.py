"""How often and until when the client sends a request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from deferd.client.errors import NoAnswer, Unreachable
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Sender
from deferd.client.transport import Transport
from deferd.contract.operations.jobs import GET_JOB


class SilentService:
    """A service that accepts connections no more; the response to a call that it has got is lost later."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.lost = asyncio.Event()

    async def exchange(self, _url: str, request: ApiRequest[Any]) -> Any:
        self.sent.append(request.path)
        if len(self.sent) > 1:
            raise Unreachable("no connection")
        await self.lost.wait()
        raise NoAnswer("no response")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def test_a_call_whose_time_is_over_is_not_sent_again_when_a_probe_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another call has opened the circuit meanwhile, so that this one might ask at once whether the service is back."""
    service = SilentService()
    sender = Sender(cast("Transport", service), ["http://service"], retry_for_s=0)
    waiting = asyncio.create_task(sender.send(request_for(GET_JOB, "t", "first")))
    await asyncio.sleep(0)
    with pytest.raises(Unreachable):
        await sender.send(request_for(GET_JOB, "t", "second"))
    assert sender._circuit.is_open
    monkeypatch.setattr(sender._circuit, "_next_probe_s", 0.0)
    sent = len(service.sent)
    service.lost.set()
    with pytest.raises(NoAnswer):
        await waiting
    assert len(service.sent) == sent

"""Addresses that are not public are not connected to, also when a name changes what it resolves to."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest

from deferd.contract.model import JobState
from deferd.contract.operations.push import SetPush
from deferd.engine.engine import Engine
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.push.pushing_engine import SECRET, PushingEngine, pushing_engine
from tests.push_receiver import Receiver

NEVER = {"kind": "fixed", "seconds": 600}


class Names:
    """A DNS whose replies the test decides, one after the other; the last counts for all further ones."""

    def __init__(self, *addresses: Sequence[str]) -> None:
        self.replies = list(addresses)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        self.asked += 1
        addresses = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in addresses
        ]


async def error_of(pushing: PushingEngine, url: str) -> str:
    """Push a job to the URL; the error that it gets."""
    await pushing.engine.push.set(TOPIC, SetPush.model_validate({"url": url, "secrets": [SECRET], "timeout": 2}))
    await pushing.put(backoff=NEVER)
    job = await pushing.until_state(JobState.DELAYED)
    assert job.last_error is not None
    return job.last_error


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["169.254.169.254"], ["8.8.8.8", "127.0.0.1"]],
)
async def test_a_name_with_such_an_address_is_refused(engine: Engine, target: Receiver, addresses: list[str]) -> None:
    allow = ("http://evil.example:*",)
    async with pushing_engine(engine, target, allow=allow, resolve=Names(addresses)) as pushing:
        error = await error_of(pushing, f"http://evil.example:{target.port}/")
    assert "which is not a public address" in error
    assert target.connections == 0


async def test_a_name_that_changes_its_address_between_two_questions_gains_nothing(
    engine: Engine, target: Receiver
) -> None:
    """The first reply is public: it is what is connected to, and the second one is never asked for."""
    names = Names(["192.0.2.1"], ["127.0.0.1"])
    networks = ("192.0.2.0/24",)
    allow = ("http://evil.example:*",)
    async with pushing_engine(engine, target, allow=allow, networks=networks, resolve=names) as pushing:
        error = await error_of(pushing, f"http://evil.example:{target.port}/")
    assert "the target did not respond" in error or "no connection" in error
    assert names.asked == 1
    assert target.connections == 0


async def test_a_name_in_an_allowed_network_is_connected_to_at_the_checked_address(
    engine: Engine, target: Receiver
) -> None:
    names = Names(["127.0.0.1"])
    allow, networks = ("http://orders.internal:*",), ("127.0.0.0/8",)
    async with pushing_engine(engine, target, allow=allow, networks=networks, resolve=names) as pushing:
        await pushing.engine.push.set(
            TOPIC, SetPush(url=f"http://orders.internal:{target.port}/x", secrets=[SECRET], timeout=2)
        )
        await pushing.put()
        await pushing.until_gone()
    assert target.requests[0].headers["host"] == f"orders.internal:{target.port}"


async def test_a_process_that_may_not_push_to_a_url_leaves_it(
    engine: Engine, target: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async with pushing_engine(engine, target, allow=("other.example",)) as pushing:
        await pushing.push()
        await pushing.push("second", url="https://other.example/")
        await pushing.put()
        await pushing.engine.ping()
        assert await pushing.job() is not None
    assert target.connections == 0
    assert "this process does not push the jobs of topic orders.close: its URL is not allowed by --push-allow" in (
        caplog.text
    )

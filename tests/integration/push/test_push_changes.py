"""What holds while a push changes, the service stops, the store is away, or its clock is set back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine import push_store
from deferd.engine.engine import Engine
from deferd.push import topic_pusher
from tests.integration.engine.engine_driver import TOPIC, started_engine
from tests.integration.push.pushing_engine import PushingEngine, pushing_engine, until_async
from tests.integration.store.store_servers import StoreServer
from tests.push_receiver import Received, Receiver, Reply
from tests.waiting import until

NEVER = {"kind": "fixed", "seconds": 600}
STATE = f"deferd:{{0}}:{TOPIC}:push/state"


async def put_many(pushing: PushingEngine, number: int) -> None:
    fields = {"topic": TOPIC, "backoff": NEVER}
    await pushing.engine.puts.put_many([PutJob.model_validate({**fields, "id": f"j{at}"}) for at in range(number)])


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
async def pushing(engine: Engine, target: Receiver) -> AsyncIterator[PushingEngine]:
    """As that of the other tests, but requests that hang delay its end less."""
    async with pushing_engine(engine, target, drain_s=0.1) as one:
        yield one


async def test_requests_from_before_a_change_count_for_the_limit(pushing: PushingEngine) -> None:
    pushing.target.hang()
    await pushing.push(max_in_flight=3, timeout=60)
    await put_many(pushing, 20)
    await pushing.until_received(3)
    await pushing.set_again(max_in_flight=4, timeout=60)
    await pushing.until_received(4)
    await pushing.push("other", timeout=60)
    await pushing.put("of-other", "other")
    await until(lambda: "of-other" in pushing.target.ids, "the other topic is pushed")
    assert len(pushing.target.requests) == 4 + 1
    assert (await pushing.state()).in_flight == 4


async def test_the_end_of_a_request_from_before_a_change_makes_room(pushing: PushingEngine) -> None:
    responding = asyncio.Event()

    async def later(_request: Received) -> Reply:
        await responding.wait()
        return Reply()

    pushing.target.respond = later
    await pushing.push(max_in_flight=1)
    await put_many(pushing, 3)
    await pushing.until_received(1)
    await pushing.set_again(max_in_flight=1, timeout=20)
    pushers = pushing.pushers._pushers
    await until(lambda: pushers[TOPIC].definition.push.timeout == 20, "the change is known")
    responding.set()
    await pushing.until_gone("j2")
    assert pushing.target.most_under_way == 1


async def test_a_cancel_closes_a_request_from_before_a_change(pushing: PushingEngine) -> None:
    pushing.target.hang()
    await pushing.push(timeout=30)
    await pushing.put()
    await pushing.until_received(1)
    await pushing.set_again(timeout=31)
    pushers = pushing.pushers._pushers
    await until(lambda: pushers[TOPIC].definition.push.timeout == 31, "the change is known")
    await pushing.engine.cancels.cancel(TOPIC, "a")
    await until(lambda: pushing.target.closed == 1, "the request was closed")


async def test_a_response_that_arrived_before_the_end_is_settled_before_the_end(
    engine: Engine, server: StoreServer, target: Receiver
) -> None:
    responding = asyncio.Event()

    async def later(_request: Received) -> Reply:
        await responding.wait()
        return Reply()

    target.respond = later
    async with pushing_engine(engine, target) as pushing:
        await pushing.push()
        await pushing.put()
        await pushing.until_received(1)
        server.pause()
        try:
            responding.set()
            (delivery,) = pushing.pushers._under_way[TOPIC].deliveries
            await until(lambda: not delivery.is_sending, "the response has arrived")
            closing = asyncio.create_task(pushing.pushers.close())
            done, _ = await asyncio.wait({closing}, timeout=0.2)  # real time: it must not end yet
            assert not done
        finally:
            server.unpause()
        await closing
        assert await pushing.job() is None


async def test_a_probe_whose_job_was_cancelled_makes_room_for_another(
    pushing: PushingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_store, "FIRST_PAUSE_MS", 500)
    pushing.target.reply_with(Reply(500))
    await pushing.push(max_in_flight=1, timeout=300)
    await put_many(pushing, 20)
    await pushing.until_circuit("open")
    pushing.target.hang()
    await until(lambda: pushing.target.under_way == 1, "the target is tested")
    received, failures = len(pushing.target.requests), (await pushing.state()).failures
    await pushing.engine.cancels.cancel(TOPIC, pushing.target.ids[-1])
    await pushing.until_received(received + 1)
    assert (await pushing.state()).failures == failures


async def test_the_probe_of_a_process_that_is_gone_makes_room_for_another(
    pushing: PushingEngine, server: StoreServer
) -> None:
    await pushing.push()
    server.command("HSET", STATE, "failures", 5, "pause", 1000, "until", now_ms() + 900_000, "probe", "gone")
    await pushing.put()
    await pushing.until_gone()
    assert (await pushing.state()).circuit == "closed"


@pytest.mark.parametrize(
    "state",
    [
        ("next", "{later}"),
        ("failures", 5, "pause", 100, "until", "{later}"),
        ("in/gone", "10 {later}"),
    ],
)
async def test_a_clock_that_is_set_back_does_not_stop_pushing(
    engine: Engine, server: StoreServer, target: Receiver, monkeypatch: pytest.MonkeyPatch, state: tuple[object, ...]
) -> None:
    monkeypatch.setattr(push_store, "COUNTED_MS", 200)
    monkeypatch.setattr(push_store, "LONGEST_PAUSE_MS", 200)
    async with pushing_engine(engine, target) as pushing:
        await pushing.push(rate=100)
        later = str(now_ms() + 3_600_000)
        server.command("HSET", STATE, *(str(one).format(later=later) for one in state))
        await pushing.put()
        await pushing.until_gone()


async def test_requests_count_while_the_rate_or_the_circuit_allows_no_other(
    engine: Engine, target: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_store, "COUNTED_MS", 600)
    monkeypatch.setattr(topic_pusher, "_REPORT_S", 0.2)
    target.hang()
    async with pushing_engine(engine, target, drain_s=0.1) as pushing:
        await pushing.push(rate=0.05, timeout=60)
        await put_many(pushing, 2)
        await pushing.until_received(1)
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:  # real time, longer than a report counts
            assert (await pushing.state()).in_flight == 1
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_request_is_closed_when_its_lease_has_ended_while_the_store_was_away(
    tmp_path: Path, target: Receiver
) -> None:
    """As soon as the store is back, another process may send the job."""
    target.hang()
    with StoreServer(tmp_path) as server:
        async with started_engine(server.url, timeout_s=0.2) as engine, pushing_engine(engine, target) as pushing:
            await pushing.push(timeout=60)
            await pushing.put(ttr=1)
            await pushing.until_received(1)
            server.pause()
            try:
                await until(lambda: target.closed == 1, "the request was closed")
            finally:
                server.unpause()
            await pushing.until_received(2)
            assert target.requests[1].headers["deferd-attempt"] == "2"
            assert target.most_under_way == 1


async def reachable(engine: Engine) -> bool:
    """A call that waits for a connection whose opening began before the start of the store fails with it."""
    try:
        await engine.ping()
    except StoreUnavailable:
        return False
    return True


@pytest.mark.slow
async def test_a_response_during_a_store_outage_finishes_the_job_when_the_store_is_back(
    tmp_path: Path, target: Receiver
) -> None:
    """Longer than a few attempts take, but shorter than the lease."""
    responding = asyncio.Event()

    async def later(_request: Received) -> Reply:
        await responding.wait()
        return Reply()

    target.respond = later
    with StoreServer(tmp_path) as server:
        async with started_engine(server.url, timeout_s=0.2) as engine, pushing_engine(engine, target) as pushing:
            await pushing.push()
            await pushing.put()
            await pushing.until_received(1)
            server.kill()
            responding.set()
            await asyncio.sleep(6)  # real time: longer than the first attempts
            server.start()
            await until_async(lambda: reachable(engine), "the store is back")
            await pushing.until_gone()
        assert len(target.requests) == 1

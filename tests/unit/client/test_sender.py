"""How often and until when the client sends a request."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any, cast

import pytest

from deferd.client import sender as sender_module
from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.http1 import HttpResponse
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Circuit, RetryPolicy, Sender
from deferd.client.transport import Transport
from deferd.contract.errors import DeferdError, JobExists, RateLimited, StoreUnavailable, TopicFull, Unauthorized
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


POLICY = RetryPolicy()


@pytest.mark.parametrize(("failures", "longest_s"), [(0, 0.1), (1, 0.2), (5, 3.2), (6, 5.0), (10**6, 5.0)])
def test_pauses_double_up_to_five_seconds_with_jitter_of_half(failures: int, longest_s: float) -> None:
    random.seed(1)
    pauses = [POLICY.pause_s(failures) for _ in range(1000)]
    assert longest_s / 2 <= min(pauses) < 0.55 * longest_s
    assert 0.95 * longest_s < max(pauses) <= longest_s


def test_a_pause_is_at_least_the_retry_after() -> None:
    pauses = [POLICY.pause_s(0, RateLimited("slow down", 7)) for _ in range(1000)]
    assert min(pauses) >= 7
    assert max(pauses) <= 7 * 1.25


def test_the_retry_after_of_a_proxy_can_be_ignored() -> None:
    error = UnexpectedAnswer(503, "maintenance", 3600)
    assert POLICY.pause_s(0, error) >= 3600
    assert RetryPolicy(heeds_proxies=False).pause_s(0, error) <= 0.1


@pytest.mark.parametrize(
    ("error", "transient", "executed"),
    [
        (Unreachable("no route"), True, False),
        (ClientBusy("all connections are in use"), True, False),
        (TopicFull("orders", 7), True, False),
        (RateLimited("slow down", 1), True, False),
        (UnexpectedAnswer(429, "slow down"), True, False),
        (NoAnswer("time-out"), True, True),
        (StoreUnavailable("the store is loading", 1), True, True),
        *((UnexpectedAnswer(status, "bad gateway"), True, True) for status in (408, 502, 503, 504)),
        (UnexpectedAnswer(500, "internal error"), False, None),
        (ClientClosed("the client is closed"), False, None),
        (JobExists("orders", "a"), False, None),
        (Unauthorized("a key is needed"), False, None),
    ],
    ids=lambda value: f"{value.code} {getattr(value, 'status', '')}" if isinstance(value, DeferdError) else "",
)
def test_which_errors_are_transient_and_may_follow_an_execution(
    error: DeferdError, transient: bool, executed: bool | None
) -> None:
    assert POLICY.is_transient(error) is transient
    if executed is not None:
        assert POLICY.may_have_been_executed(error) is executed


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


class Clock:
    """Replaces the clocks of the circuit."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_s(self) -> float:
        return 1_900_000_000 + self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sender_module, "monotonic_s", clock.monotonic_s)
    monkeypatch.setattr(sender_module, "epoch_s", clock.epoch_s)
    return clock


def failures_until_open(replicas: int, clock: Clock, error: DeferdError, took_s: float) -> int | None:
    circuit = Circuit(replicas)
    for number in range(1, 20):
        clock.now_s += took_s
        circuit.failed(error, clock.now_s - took_s, None, replica=number % replicas)
        if circuit.is_open:
            return number
    return None


@pytest.mark.parametrize(
    ("error", "took_s", "of_one", "of_three"),
    [
        (Unreachable("refused"), 0.001, 1, 3),
        (NoAnswer("time-out"), 5, 1, 3),
        (NoAnswer("reset"), 0.001, 2, 6),
        (UnexpectedAnswer(502, "bad gateway"), 0.001, 2, 6),
        (UnexpectedAnswer(503, "no backend"), 0.001, 2, 6),
        (UnexpectedAnswer(503, "too_many_connections: 50 are open", is_problem=True), 0.001, None, None),
        (UnexpectedAnswer(500, "a bug"), 0.001, None, None),
        (StoreUnavailable("away"), 0.001, None, None),
        (JobExists("t", "a"), 0.001, None, None),
        (ClientBusy("busy"), 5, None, None),
        (ClientClosed("closed"), 0.001, None, None),
    ],
)
def test_how_many_failures_open_the_circuit(
    clock: Clock, error: DeferdError, took_s: float, of_one: int | None, of_three: int | None
) -> None:
    assert failures_until_open(1, clock, error, took_s) == of_one
    assert failures_until_open(3, clock, error, took_s) == of_three


def test_any_number_of_failures_at_one_replica_leaves_the_circuit_closed(clock: Clock) -> None:
    """Such as those of many calls that were under way when it ended."""
    circuit = Circuit(2)
    for _ in range(50):
        circuit.failed(Unreachable("refused"), clock.now_s, None, replica=0)
    states = [circuit.is_open]
    circuit.failed(NoAnswer("reset"), clock.now_s, None, replica=1)
    states.append(circuit.is_open)
    circuit.failed(NoAnswer("reset"), clock.now_s, None, replica=1)
    assert [*states, circuit.is_open] == [False, False, True]


@pytest.mark.parametrize(("took_s", "opens", "down_s"), [(15, False, 0), (20.5, False, 0.5), (25, True, 5)])
def test_a_long_poll_is_late_only_after_its_wait(clock: Clock, took_s: float, opens: bool, down_s: float) -> None:
    """A proxy that ends one after 15 s says nothing about other calls, or about the time before."""
    circuit = Circuit(1)
    circuit.failed(NoAnswer("ended"), clock.now_s - took_s, None, wait_s=20)
    assert circuit.is_open is opens
    assert clock.now_s - circuit.down_since_s == down_s


def test_a_response_closes_it_and_outweighs_requests_that_were_sent_before(clock: Clock) -> None:
    circuit = Circuit(1)
    circuit.failed(Unreachable("refused"), clock.now_s, None)
    states = [circuit.is_open]
    clock.now_s += 1
    circuit.responded()
    states.append(circuit.is_open)
    circuit.failed(NoAnswer("time-out"), clock.now_s - 5, None)
    states.append(circuit.is_open)
    assert states == [True, False, False]


def test_pauses_between_probes_grow_to_a_second(clock: Clock) -> None:
    circuit = Circuit(1)
    circuit.failed(Unreachable("refused"), clock.now_s, None)
    pauses = []
    for _ in range(8):
        began_s = clock.now_s
        while (probe := circuit.begin_probe()) is None:
            clock.now_s += 0.001
        pauses.append(clock.now_s - began_s)
        assert circuit.begin_probe() is None
        circuit.failed(Unreachable("refused"), clock.now_s, probe)
        circuit.end_probe(probe)
    for number, pause_s in enumerate(pauses):
        longest_s = min(0.1 * 2**number, 1)
        assert 0.49 * longest_s <= pause_s <= longest_s + 0.002


def test_a_probe_without_a_result_lets_another_begin_after_five_seconds(clock: Clock) -> None:
    circuit = Circuit(1)
    circuit.failed(Unreachable("refused"), clock.now_s, None)
    clock.now_s += 0.2
    assert circuit.begin_probe() is not None
    clock.now_s += 4.9
    assert circuit.begin_probe() is None
    clock.now_s += 0.2
    assert circuit.begin_probe() is not None


def test_a_long_retry_after_of_a_gateway_delays_a_probe_by_at_most_five_seconds(clock: Clock) -> None:
    circuit, maintenance = Circuit(1), UnexpectedAnswer(503, "maintenance", 86_400)
    for _ in range(2):
        circuit.failed(maintenance, clock.now_s, None)
    for _ in range(3):
        clock.now_s += 4.9
        assert circuit.begin_probe() is None
        clock.now_s += 0.2
        probe = circuit.begin_probe()
        assert probe is not None
        circuit.failed(maintenance, clock.now_s, probe)
        circuit.end_probe(probe)


def test_an_outage_begins_with_its_first_failure_and_is_forgotten_after_five_minutes(clock: Clock) -> None:
    circuit = Circuit(1)
    began_s = clock.now_s
    for _ in range(5):
        circuit.failed(Unreachable("refused"), clock.now_s, None)
        clock.now_s += 200
    assert circuit.down_since_s == began_s
    clock.now_s += 200
    circuit.failed(Unreachable("refused"), clock.now_s, None)
    assert circuit.down_since_s == clock.now_s


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_waits_for_no_lock_of_its_parent() -> None:
    circuit = Circuit(1)
    with circuit._lock:
        child = os.fork()
        if not child:
            circuit.failed(Unreachable("refused"), 1e9, None)
            os._exit(0 if circuit.is_open else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

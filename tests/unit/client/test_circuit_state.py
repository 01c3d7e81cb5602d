"""When a client's circuit opens and closes, and who probes; see also tests/acceptance/client/test_circuit.py."""

from __future__ import annotations

import os

import pytest

from deferd.client import circuit as circuit_module
from deferd.client.circuit import Circuit
from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.contract.errors import DeferdError, JobExists, StoreUnavailable


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
    monkeypatch.setattr(circuit_module, "monotonic_s", clock.monotonic_s)
    monkeypatch.setattr(circuit_module, "epoch_s", clock.epoch_s)
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

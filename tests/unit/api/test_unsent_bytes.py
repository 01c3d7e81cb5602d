"""The budget for responses that clients do not read, with a clock that the test moves."""

from __future__ import annotations

import pytest

from deferd.api.unsent_bytes import LARGE_BYTES, STALLED_S, TooManyUnsentBytes, UnsentBytes
from deferd.contract.errors import RateLimited

MOST = 100 * LARGE_BYTES
LARGE = 2 * LARGE_BYTES


class SlowClient:
    """A client whose unread bytes the test sets."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent
        self.is_cut_off = False

    def unsent_bytes(self) -> int:
        return self.unsent

    def cut_off(self) -> None:
        self.is_cut_off = True


class Budget(UnsentBytes):
    def __init__(self) -> None:
        self.now_s = 1000.0
        super().__init__(MOST, clock=lambda: self.now_s)

    def with_slow(self, part: float, key_name: str | None = None) -> SlowClient:
        """A client that has not read a response of a part of the budget."""
        client = SlowClient(int(part * MOST))
        self.note(client, key_name, client.unsent)
        return client


@pytest.fixture
def budget() -> Budget:
    return Budget()


def test_a_large_response_that_would_exceed_the_budget_is_refused(budget: Budget) -> None:
    client = budget.with_slow(0.9)
    with pytest.raises(TooManyUnsentBytes) as caught:
        budget.claim(int(0.2 * MOST), None)
    assert (
        f"clients have not read {client.unsent} bytes of their responses, and a response of {int(0.2 * MOST)} bytes "
        f"would exceed the {MOST} that this process may hold" == str(caught.value)
    )
    budget.claim(int(0.05 * MOST), None)
    assert not client.is_cut_off


def test_a_small_response_is_never_refused(budget: Budget) -> None:
    budget.with_slow(1.0)
    budget.claim(LARGE_BYTES, None)


def test_a_response_larger_than_the_budget_is_sent_when_nothing_else_is_unsent(budget: Budget) -> None:
    budget.claim(3 * MOST, "key")
    client = budget.with_slow(3.0, "key")
    assert not client.is_cut_off
    with pytest.raises(RateLimited):
        budget.claim(LARGE, "key")
    client.unsent = 0
    budget.claim(3 * MOST, "key")


def test_clients_that_read_nothing_are_cut_off_to_make_room_oldest_first(budget: Budget) -> None:
    first, second, third = (budget.with_slow(0.3) for _ in range(3))
    budget.now_s += STALLED_S
    budget.claim(int(0.5 * MOST), None)
    assert [True, True, False] == [client.is_cut_off for client in (first, second, third)]
    assert budget.total == third.unsent


def test_a_client_that_reads_slowly_is_not_cut_off(budget: Budget) -> None:
    client = budget.with_slow(0.9)
    for _ in range(5):
        budget.now_s += STALLED_S
        client.unsent -= 1
        with pytest.raises(TooManyUnsentBytes):
            budget.claim(int(0.2 * MOST), None)
    assert not client.is_cut_off
    budget.now_s += STALLED_S
    budget.claim(int(0.2 * MOST), None)
    assert client.is_cut_off


def test_a_response_counts_as_a_whole_until_its_end_is_read(budget: Budget) -> None:
    client = budget.with_slow(0.9)
    client.unsent = 1
    with pytest.raises(TooManyUnsentBytes):
        budget.claim(int(0.2 * MOST), None)
    client.unsent = 0
    budget.claim(int(0.2 * MOST), None)
    assert budget.total == 0


def test_a_key_that_has_used_up_its_share_does_not_affect_the_others(budget: Budget) -> None:
    client = budget.with_slow(0.45, "greedy")
    with pytest.raises(RateLimited, match="'greedy' have not read"):
        budget.claim(int(0.1 * MOST), "greedy")
    budget.claim(int(0.5 * MOST), "other")
    budget.claim(int(0.5 * MOST), None)
    budget.now_s += STALLED_S
    budget.claim(int(0.1 * MOST), "greedy")
    assert client.is_cut_off


def test_many_small_responses_that_nobody_reads_are_bounded_too(budget: Budget) -> None:
    clients = [budget.with_slow(0.01, f"key-{number % 3}") for number in range(150)]
    assert [True] * 50 + [False] * 100 == [client.is_cut_off for client in clients]
    assert budget.total <= MOST
    budget.now_s += STALLED_S
    clients[50].unsent -= 1
    budget.claim(int(0.02 * MOST), None)  # measures: this one has read on
    assert [False, True] == [client.is_cut_off for client in clients[50:52]]


def test_a_source_whose_response_was_refused_is_refused_before_the_work_while_there_is_no_room(budget: Budget) -> None:
    client = budget.with_slow(0.9)
    budget.check("topic", None)
    with pytest.raises(TooManyUnsentBytes):
        budget.claim(int(0.2 * MOST), None, "topic")
    with pytest.raises(TooManyUnsentBytes):
        budget.check("topic", None)
    budget.check("another", None)
    budget.forget(client)
    budget.check("topic", None)
    budget.with_slow(0.9)
    budget.check("topic", None)  # it may be smaller this time


def test_a_response_that_waits_for_its_client_counts(budget: Budget) -> None:
    with budget.waiting(int(0.9 * MOST), "key"):
        assert budget.total == int(0.9 * MOST)
        budget.now_s += STALLED_S
        with pytest.raises(TooManyUnsentBytes):
            budget.claim(int(0.2 * MOST), None)
    assert budget.total == 0

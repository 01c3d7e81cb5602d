"""The retry policy of the client and the worker: which errors it retries, and its pauses."""

from __future__ import annotations

import random

import pytest

from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.retry import RetryPolicy
from deferd.contract.errors import DeferdError, JobExists, RateLimited, StoreUnavailable, TopicFull, Unauthorized

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

"""What a method says of its request: whether it may be sent twice, and how long the service may take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from deferd.client.api_methods import ApiMethods
from deferd.client.jobs import JobRef
from tests.kept_requests import request_of

Call = Callable[[ApiMethods], Coroutine[Any, Any, Any] | AsyncIterator[Any]]
HELD, NAMED = JobRef("t", "a", "1.1"), JobRef("t", "a")
REPEATABLE: list[Call] = [
    lambda client: client.change("t", "a", ttr=5),
    lambda client: client.pop("t"),
    lambda client: client.finish_many("t", [HELD]),
    lambda client: client.release(HELD),
    lambda client: client.touch(HELD),
    lambda client: client.bury(HELD),
    lambda client: client.cancel_many("t", ["a"]),
    lambda client: client.cancel_all(tag="x"),
    lambda client: client.reschedule_all(by=5, tag="x"),
    lambda client: client.preview_cancel_all(tag="x"),
    lambda client: client.preview_redrive("t"),
    lambda client: client.preview_purge("t"),
    lambda client: client.audit("t"),
    lambda client: client.put_schedule("s", "t", every=5),
]
NOT_REPEATABLE: list[Call] = [
    lambda client: client.change("t", "a", delay=5),
    lambda client: client.finish_many("t", [HELD, NAMED]),
    lambda client: client.release(NAMED),
    lambda client: client.touch(NAMED),
    lambda client: client.bury(NAMED),
    lambda client: client.redrive("t"),
    lambda client: client.purge("t"),
    lambda client: client.repair("t"),
    lambda client: client.repair_store(),
    lambda client: client.put_schedule("s", "t", every=5, create_only=True),
    lambda client: client.run_schedule("s"),
]
TAKES_MINUTES: list[Call] = [
    lambda client: client.cancel_all(tag="x"),
    lambda client: client.reschedule_all(by=5, tag="x"),
    lambda client: client.preview_cancel_all(tag="x"),
    lambda client: client.redrive("t"),
    lambda client: client.preview_redrive("t"),
    lambda client: client.purge("t"),
    lambda client: client.preview_purge("t"),
    lambda client: client.audit("t"),
    lambda client: client.repair("t"),
    lambda client: client.audit_store(),
    lambda client: client.repair_store(),
]
LOOKS_AT_ALL_TOPICS: list[Call] = [
    lambda client: client.now(),
    lambda client: client.dead_errors(),
    lambda client: client.forecast(),
    lambda client: client.consumers(),
    lambda client: client.overview(),
]


@pytest.mark.parametrize("call", REPEATABLE)
def test_what_does_no_harm_twice_is_sent_again(call: Call) -> None:
    assert request_of(call).repeatable


@pytest.mark.parametrize("call", NOT_REPEATABLE)
def test_what_would_do_more_the_second_time_is_not(call: Call) -> None:
    assert not request_of(call).repeatable


@pytest.mark.parametrize("call", TAKES_MINUTES)
def test_a_call_on_a_million_jobs_may_take_minutes(call: Call) -> None:
    assert request_of(call).wait_s == 600


@pytest.mark.parametrize("call", LOOKS_AT_ALL_TOPICS)
def test_a_look_at_all_topics_may_take_half_a_minute(call: Call) -> None:
    assert request_of(call).wait_s == 30

"""What a method says of its request: whether it may be sent twice, and how long the service may take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

import deferd
from deferd.client.async_client import ApiMethods
from deferd.client.job_requests import with_id
from deferd.client.request_body import JobRef
from deferd.contract.errors import InvalidInput
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
    lambda client: client.return_many("t", [HELD]),
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
    lambda client: client.return_many("t", [HELD, NAMED], consumer="worker-7"),
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


OPTIONS: list[dict[str, Any]] = [
    {"on_conflict": "append"},
    {"on_conflict": "append", "max_items": 3},
    {"on_conflict": "replace", "max_wait": timedelta(seconds=5)},
    {"on_conflict": "keep", "if_reserved": "after"},
    {"unique_for": 5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_client_refuses_such_a_put_without_an_id(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="needs an `id`"):
        with_id({"topic": "orders", "body": object(), **options})
    fields = {"topic": "orders", "body": 1, "id": "a", **options}
    assert with_id(dict(fields)) == fields


@pytest.mark.parametrize("options", [{}, {"on_conflict": "replace"}, {"on_conflict": "keep", "if_reserved": "refuse"}])
def test_the_client_makes_an_id_for_other_puts(options: dict[str, Any]) -> None:
    assert len(with_id({"topic": "orders", **options})["id"]) == 32


@pytest.mark.parametrize("options", OPTIONS)
def test_they_may_be_defaults_of_a_job_definition(options: dict[str, Any]) -> None:
    order = deferd.job("orders", int, **options)
    assert order.fields(1, id="a")["id"] == "a"


def test_a_default_that_is_out_of_its_bounds_is_refused_when_it_is_defined() -> None:
    with pytest.raises(InvalidInput, match="at least the `delay`, 6 seconds"):
        deferd.job("orders", int, on_conflict="replace", max_wait=5, delay=6)

"""Copies and pickles of deliveries: they have the job alone, not the response to the pop."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from deferd.client import Delivery, responses

FIELDS: dict[str, Any] = {
    "topic": "orders.close",
    "id": "order-1042",
    "state": "reserved",
    "body": {"order": 1042},
    "ttr": 60,
    "receipt": "0000075bcd15.3",
    "attempt": 3,
}


class Labelled(Delivery):
    """A subclass with an attribute of its own."""

    label: str


def popped(*others: dict[str, Any]) -> Delivery:
    content = json.dumps({"jobs": [FIELDS, *others]}).encode()
    return responses.read_deliveries(content)[0]


def names_of_slots(job: Delivery) -> set[str]:
    state: Any = job.__reduce_ex__(4)[2]
    return set(state[1])


def test_a_pickle_has_no_other_jobs_of_the_response() -> None:
    job = popped({**FIELDS, "id": "other", "body": "x" * 100_000})
    assert len(pickle.dumps(job)) < 1000


def test_a_deep_copy_does_not_keep_the_response() -> None:
    copied = copy.deepcopy(popped({**FIELDS, "id": "other"}))
    assert copied.fields == FIELDS
    copied.fields["body"] = "changed"  # type: ignore[index]
    assert copied.body == "changed"


def test_clients_without_lazy_fields_can_read_the_state() -> None:
    assert names_of_slots(popped()) == names_of_slots(Delivery(FIELDS)) == {"fields"}


@pytest.mark.parametrize(
    "name", ["topic", "id", "body", "ttr", "time_limit", "traceparent", "receipt", "attempt", "state"]
)
def test_a_delivery_pickled_without_lazy_fields_is_read(name: str) -> None:
    job = Delivery.__new__(Delivery)
    job.fields = FIELDS
    assert getattr(job, name) == getattr(Delivery(FIELDS), name)
    assert job.id_and_receipt() == {"id": "order-1042", "receipt": "0000075bcd15.3"}


def test_a_subclass_keeps_its_attributes() -> None:
    job = Labelled(FIELDS)
    job.label = "mine"
    copied = copy.copy(job)
    assert (copied.label, copied.id, copied.fields) == ("mine", "order-1042", FIELDS)


@pytest.mark.parametrize("time_limit", [None, 1.5])
def test_a_worker_learns_the_time_limit_without_the_rare_fields(time_limit: float | None) -> None:
    job = (
        popped()
        if time_limit is None
        else responses.read_deliveries(json.dumps({"jobs": [{**FIELDS, "time_limit": time_limit}]}).encode())[0]
    )
    assert job.time_limit == time_limit
    assert job._popped is not None
    assert (job.snoozes, job.tags, job.headers, job.attempts_log) == (0, (), {}, [])
    assert job.time_limit == time_limit

"""Jobs in every state, and checks that another store has them unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from deferd import Client, Delivery, JobCancelled, JobRef, ReceiptStale

TOPIC, PAUSED, BIG = "orders.close", "mail:remind", "big.bodies"
"""One with a `:`, as a name may have, and one whose records do not fit into a step."""
REQUEST = "request-of-the-holder"
HOUR_S = 3600
READY = [f"ready-{number:02d}" for number in range(30)]
BIG_BODIES = {f"big-{number}": chr(ord("a") + number) * 400_000 for number in range(5)}


@dataclass(frozen=True)
class StoredJobs:
    """What was put into a service: live deliveries, a cancelled one, and everything that the service shows."""

    held: Delivery
    requested: Delivery
    cancelled: Delivery
    shown: dict[str, Any]


def fill(client: Client) -> StoredJobs:
    """Put jobs into every state."""
    client.set_topic(TOPIC, {"ttr": HOUR_S, "max_jobs": 10_000, "backoff": {"kind": "fixed", "seconds": 7}})
    held = _take(client, "held", consumer="holder-1", time_limit=2 * HOUR_S, deadline=3 * HOUR_S)
    client.release(held, delay=0, error="the first attempt failed")
    [held] = client.pop(TOPIC, wait=5, consumer="holder-2")
    requested = _take(client, "requested", request_id=REQUEST)
    cancelled = _take(client, "cancelled")
    client.cancel(TOPIC, "cancelled")
    client.release(_take(client, "snoozed"), delay=HOUR_S, count=False)
    client.bury(_take(client, "dead", dead_retain=HOUR_S), error="no such order")
    client.finish(_take(client, "finished", retain=HOUR_S), {"closed": True})
    client.finish(_take(client, "gone"))
    for job_id in READY:
        client.put(TOPIC, {"ready": job_id}, id=job_id)
    client.put(TOPIC, id="watched", delay=HOUR_S, ttl=HOUR_S, max_attempts=3, deadline=2 * HOUR_S)
    client.put(TOPIC, {"delayed": True}, id="delayed", delay=HOUR_S, traceparent=f"00-{'1' * 32}-{'2' * 16}-01")
    client.set_topic(PAUSED, {})
    client.pause(PAUSED)
    client.put(PAUSED, ["not", "handed", "out"], id="paused")
    for job_id, body in BIG_BODIES.items():
        client.put(BIG, body, id=job_id, delay=HOUR_S)
    return StoredJobs(held, requested, cancelled, everything_shown_by(client))


def everything_shown_by(client: Client) -> dict[str, Any]:
    """Every job and every topic as the service shows them, without what changes with time."""
    shown: dict[str, Any] = {}
    for view in client.topics():
        shown[view.topic] = {name: view.fields[name] for name in ("counts", "paused", "settings")}
        shown |= {f"{view.topic}/{job.id}": dict(job.fields) for job in client.jobs(view.topic)}
    return shown


def assert_unchanged(client: Client, filled: StoredJobs) -> None:
    """Everything is unchanged, receipts are valid, jobs come in their order, and the audit finds nothing."""
    assert everything_shown_by(client) == filled.shown
    assert_sound(client)
    [again] = client.pop(TOPIC, wait=0, request_id=REQUEST)
    assert (again.id, again.receipt) == (filled.requested.id, filled.requested.receipt)
    assert client.touch(filled.held, ttr=24 * HOUR_S) < filled.held.created_at + timedelta(hours=3)
    client.finish(filled.held)
    with pytest.raises(JobCancelled):
        client.finish(filled.cancelled)
    client.put(TOPIC, id="cancelled")
    popped = client.pop(TOPIC, count=100, wait=0)
    assert [job.id for job in popped] == [*READY, "cancelled"]
    with pytest.raises(ReceiptStale):
        client.finish(JobRef(TOPIC, READY[0], "123456789abc.1"))
    assert client.redrive(TOPIC) == 1
    client.change(TOPIC, "delayed", delay=0)
    assert {job.id for job in client.pop(TOPIC, count=10, wait=5)} == {"dead", "delayed"}
    assert client.pop(PAUSED, wait=0) == []
    client.resume(PAUSED)
    [resumed] = client.pop(PAUSED, wait=5)
    assert resumed.body == ["not", "handed", "out"]
    assert {job_id: client.get(BIG, job_id).body for job_id in BIG_BODIES} == BIG_BODIES
    assert_sound(client)


def assert_sound(client: Client) -> None:
    """The audit finds nothing."""
    assert client.audit_store().clean
    for view in client.topics():
        assert client.audit(view.topic).clean


def _take(
    client: Client, job_id: str, *, consumer: str | None = None, request_id: str | None = None, **put: Any
) -> Delivery:
    client.put(TOPIC, {"id": job_id}, id=job_id, **put)
    [job] = client.pop(TOPIC, wait=5, consumer=consumer, request_id=request_id)
    assert job.id == job_id
    return job

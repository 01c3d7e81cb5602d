"""What responses show of jobs, for the history of a run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from deferd import Delivery
from deferd.contract.model import JobState
from deferd.contract.operations.jobs import Job, PutResult
from tests.faults.history import text_of

CREATED = 201


def shown_facts(job: Job) -> dict[str, Any]:
    """What a response shows of a job, for the history."""
    facts = {"shown": text_of(job.body), "state": str(job.state), "created_ms": ms(job.created_at)}
    return facts | {"result": job.result or ""} if job.state is JobState.FINISHED else facts


def delivery_facts(job: Delivery) -> dict[str, Any]:
    """What a delivery shows, for the history."""
    assert job.reserved_until is not None
    lease_end_ms = ms(job.reserved_until)
    return {
        "topic": job.topic,
        "job": job.id,
        "tag": text_of(job.body),
        "attempt": job.attempt,
        "receipt": job.receipt,
        "lease_end_ms": lease_end_ms,
        "group": job.group or "",
        "created_ms": ms(job.created_at),
        # How long a lease is that ends at the deadline, the response does not show.
        "at_ms": None if job.reserved_until == job.deadline_at else lease_end_ms - _lease_ms(job),
    }


def end_facts(job: Delivery) -> tuple[str, str, str, dict[str, Any]]:
    """What a job that an end has put says: the topic, id and outcome of the one that ended, and more facts."""
    body = job.body
    facts = {"put": f"{job.id} {job.receipt.split('.')[0]}", "at_ms": ms(job.created_at), "tag": text_of(body["body"])}
    return body["topic"], body["id"], body["outcome"], facts | {"result": body.get("result", "")}


def _lease_ms(job: Delivery) -> int:
    return round(min(job.ttr, job.time_limit or job.ttr) * 1000)


def ms(instant: datetime) -> int:
    """Milliseconds since the epoch."""
    return round(instant.timestamp() * 1000)


def put_facts(put: Job, known: dict[str, Any]) -> dict[str, Any]:
    """What the response to a put shows, for the history; `known` is what the history has of the put."""
    appends = known.get("on_conflict") == "append"
    facts: dict[str, Any] = {"level": put.durability, "outcome": _outcome_of_put(put, known)}
    if facts["outcome"] in {"kept", "follow-up kept"}:
        return shown_facts(put) | facts
    facts["due_ms"] = ms(put.due_at)
    if appends:
        facts |= {"items": put.items, "state": str(put.state)}
    return facts if appends and put.items > 1 else facts | {"at_ms": ms(put.created_at)}


def _outcome_of_put(put: Job, known: dict[str, Any]) -> str:
    if known.get("on_conflict") == "append":
        assert put.body == [known["tag"]]
        if put.is_follow_up:
            return "follows" if put.items == 1 else "follow-up appended"
        return "created" if put.items == 1 else "appended"
    if put.body != known["tag"]:
        return "follow-up kept" if put.is_follow_up else "kept"
    if put.is_follow_up:
        return "follows"
    return "stored" if known.get("on_conflict") == "replace" else "created"


def outcome_in_batch(one: PutResult, on_conflict: str) -> str:
    """The outcome of a put without errors in a batch."""
    if one.status == CREATED:
        return "follows" if one.is_follow_up else "created"
    return {
        "keep": ("kept", "follow-up kept"),
        "replace": ("stored", "follows"),
        "append": ("appended", "follow-up appended"),
    }[on_conflict][one.is_follow_up]

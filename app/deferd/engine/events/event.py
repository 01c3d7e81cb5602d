"""An event of a job as the store holds it; `lua/lib/events.lua` describes the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from deferd.contract.model import JobState


class Event(NamedTuple):
    """Something that happened to the job `id` (to several jobs, for the kind `purged`: then `id` is None).

    `number` is its place among the events of its topic, from 1; of a topic with several partitions, among those of its
    partition. `facts` has what `kind` is about: instants in ms are under names that end with `_ms`.
    """

    topic: str
    number: int
    kind: str
    at_ms: int
    id: str | None
    facts: Mapping[str, Any]


def _put(rest: str) -> dict[str, Any]:
    due, _, replaced = rest.partition(" ")
    return {"due_at_ms": int(due), **({"replaced": True} if replaced == "r" else {})}


def _changed(rest: str) -> dict[str, Any]:
    due, state, *follow_up = rest.split(" ")
    if follow_up:
        return {"state": state, "follow_up": {"due_at_ms": int(due)}}
    return {"state": state, "due_at_ms": int(due)}


def _ready(rest: str) -> dict[str, Any]:
    return {"state": JobState.READY, "due_at_ms": int(rest)}


def _popped(rest: str) -> dict[str, Any]:
    attempt, lease_end, consumer = rest.split(" ", 2)
    facts = {"state": JobState.RESERVED, "attempt": int(attempt), "reserved_until_ms": int(lease_end)}
    return {**facts, "consumer": consumer} if consumer else facts


def _waits_again(rest: str) -> dict[str, Any]:
    attempt, due, *error = rest.split(" ", 2)
    facts = {"state": JobState.DELAYED, "attempt": int(attempt), "due_at_ms": int(due)}
    return {**facts, "error": error[0]} if any(error) else facts


def _snoozed(rest: str) -> dict[str, Any]:
    attempts, due = rest.split(" ")
    return {"state": JobState.DELAYED, "attempts": int(attempts), "due_at_ms": int(due)}


def _lease_ended(rest: str) -> dict[str, Any]:
    attempt, why, consumer = rest.split(" ", 2)
    facts = {"state": JobState.READY, "attempt": int(attempt), "reason": why}
    return {**facts, "consumer": consumer} if consumer else facts


def _finished(rest: str) -> dict[str, Any]:
    attempt, _, kept = rest.partition(" ")
    return {**({"state": JobState.FINISHED} if kept else {}), "attempt": int(attempt)}


def _dead(rest: str) -> dict[str, Any]:
    attempts, reason, kept, error = rest.split(" ", 3)
    facts = {"attempts": int(attempts), "reason": reason, **({"error": error} if error else {})}
    return {"state": JobState.DEAD, **facts} if kept == "1" else facts


def _cancelled(rest: str) -> dict[str, Any]:
    was, _, why = rest.partition(" ")
    return {"was": was, **({"reason": why} if why else {})}


def _purged(rest: str) -> dict[str, Any]:
    count, was, why = rest.split(" ")
    return {"count": int(count), "reason": why, **({} if was == "any" else {"was": was})}


def _nothing(state: JobState) -> Callable[[str], dict[str, Any]]:
    return lambda _rest: {"state": state}


_KINDS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "P": ("put", _put),
    "C": ("changed", _changed),
    "R": ("ready", _ready),
    "O": ("popped", _popped),
    "L": ("released", _waits_again),
    "S": ("snoozed", _snoozed),
    "B": ("returned", _nothing(JobState.READY)),
    "E": ("lease_ended", _lease_ended),
    "F": ("finished", _finished),
    "D": ("dead", _dead),
    "X": ("cancelled", _cancelled),
    "V": ("redriven", _nothing(JobState.READY)),
    "Z": ("purged", _purged),
}


def read_event(topic: str, number: int, stored: bytes) -> Event | None:
    """Read an event; None for one that cannot be read: another program has written it."""
    text = stored.decode(errors="ignore")  # an error is cut after so many bytes, which may be within a character
    try:
        kind, read_facts = _KINDS[text[:1]]
        at, job_id, *rest = text[1:].split(" ", 2)
        at_ms = int(at)
        facts = read_facts(rest[0] if rest else "")
        if kind == "put":
            facts = {"state": JobState.DELAYED if facts["due_at_ms"] > at_ms else JobState.READY, **facts}
    except (KeyError, ValueError):
        return None
    return Event(topic, number, kind, at_ms, None if job_id == "-" else job_id, facts)

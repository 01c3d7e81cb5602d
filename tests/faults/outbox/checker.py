"""Compares what deferd has at the end of a run with what was committed: it knows neither the relay nor the schema.

For each id it follows its committed calls in every order that their commits allow, with a plain model of a job, and
deferd must have what one of these orders leaves. Jobs that were due at once are counted by their deliveries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.outbox.journal import Committed, Due


class StoredJob(NamedTuple):
    """A job that deferd has: the number in its body, its state, and for when it is due."""

    number: int
    state: str
    due_ms: float


class Delivered(NamedTuple):
    """A delivery of a job that was due at once."""

    number: int
    attempt: int


@dataclass
class Findings:
    """What the checker has compared, and what is wrong."""

    ids: int = 0
    puts: int = 0
    alive: int = 0
    """Ids that have a job at the end, and must have one."""
    cancelled: int = 0
    """Ids that have none at the end, and must not."""
    either: int = 0
    """Ids of which the commits overlapped so that both would be right."""
    delivered: int = 0
    wrong: list[str] = field(default_factory=list)


class _State(NamedTuple):
    """A job as the model has it."""

    number: int
    tag: str | None
    due: Due


Key = tuple[str | None, str | None]
"""Topic and id."""


def check_waiting_jobs(calls: Sequence[Committed], stored: Mapping[Key, StoredJob]) -> Findings:
    """Compare the jobs that are not yet due with the calls that were committed for them."""
    findings = Findings()
    of_ids = _by_id(calls)
    for key, of_id in of_ids.items():
        ends = possible_ends(of_id)
        job = stored.get(key)
        findings.ids += 1
        findings.puts += sum(call.verb == "put" for call in of_id)
        if ends == {None}:
            findings.cancelled += 1
        elif None not in ends:
            findings.alive += 1
        else:
            findings.either += 1
        if not any(_is(end, job) for end in ends):
            findings.wrong.append(_told(key, job, ends, of_id))
    findings.wrong += [
        f"{key}: a job of which no put was committed: {job}" for key, job in stored.items() if key not in of_ids
    ]
    return findings


def check_delivered_jobs(
    calls: Iterable[Committed],
    delivered: Mapping[Key, Sequence[Delivered]],
    kept: Mapping[Key, StoredJob],
    keeping_topic: str,
) -> Findings:
    """Compare the deliveries of jobs that were due at once with the puts that were committed.

    Each id is one job, however often it was put: no attempt is delivered twice, and all of them are of the same put.
    The jobs of `keeping_topic` are kept when they are finished.
    """
    findings = Findings()
    of_ids = _by_id(calls)
    for key, of_id in of_ids.items():
        findings.ids += 1
        findings.puts += len(of_id)
        deliveries = delivered.get(key, ())
        attempts = [one.attempt for one in deliveries]
        numbers = {one.number for one in deliveries}
        findings.delivered += bool(deliveries)
        if not deliveries:
            findings.wrong.append(f"{key}: a committed put that was never delivered: {of_id}")
        elif len(set(attempts)) < len(attempts):
            findings.wrong.append(f"{key}: more than one job: {deliveries}")
        elif len(numbers) > 1 or not numbers <= {call.number for call in of_id}:
            findings.wrong.append(f"{key}: deliveries of another put: {deliveries}, committed {of_id}")
        if key[0] == keeping_topic and (key not in kept or kept[key].state != "finished"):
            findings.wrong.append(f"{key}: not kept as finished: {kept.get(key)}, delivered {deliveries}")
    findings.wrong += [
        f"{key}: a job of which no put was committed" for key in (*delivered, *kept) if key not in of_ids
    ]
    return findings


def possible_ends(calls: Sequence[Committed]) -> set[_State | None]:
    """What an id may have after these calls, in every order in which they may have taken effect."""
    ordered = sorted(calls, key=lambda call: (call.began_s, call.transaction, call.step))
    ends: set[_State | None] = set()
    begun: tuple[int, frozenset[int], _State | None] = (0, frozenset(), None)
    seen = {begun}
    left = [begun]
    while left:
        first, beyond, state = left.pop()
        if first == len(ordered):
            ends.add(state)
        for index in _next(ordered, first, beyond):
            done = beyond | {index}
            now_first = first
            while now_first in done:
                now_first += 1
            after = (now_first, frozenset(one for one in done if one > now_first), _applied(ordered[index], state))
            if after not in seen:
                seen.add(after)
                left.append(after)
    return ends


def _next(ordered: Sequence[Committed], first: int, beyond: frozenset[int]) -> Iterator[int]:
    """The calls that may be next: all before `first` have taken effect, and those in `beyond`."""
    waiting: list[Committed] = []
    for index in range(first, len(ordered)):
        call = ordered[index]
        if index in beyond:
            continue
        if waiting and call.began_s > min(one.ended_s for one in waiting):
            return
        if not any(one.precedes(call) for one in waiting):
            yield index
        waiting.append(call)


def _applied(call: Committed, state: _State | None) -> _State | None:
    """What a call makes of a job."""
    match call.verb:
        case "put":
            return state if state and not call.replaces else _State(call.number, call.tag, call.due)
        case "reschedule":
            return state and state._replace(due=call.due)
        case "cancel_tag":
            return state if state and state.tag != call.tag else None
        case _:
            return None


def _is(end: _State | None, job: StoredJob | None) -> bool:
    if end is None or job is None:
        return end is None and job is None
    return job.state == "delayed" and end.number == job.number and end.due.has(job.due_ms)


def _by_id(calls: Iterable[Committed]) -> dict[Key, list[Committed]]:
    """The calls of each id; a cancel by tag is one of each id that was ever put with the tag."""
    found: defaultdict[Key, list[Committed]] = defaultdict(list)
    by_tag: list[Committed] = []
    tagged: defaultdict[str | None, set[Key]] = defaultdict(set)
    for call in calls:
        if call.verb == "cancel_tag":
            by_tag.append(call)
            continue
        found[call.topic, call.id].append(call)
        if call.tag is not None:
            tagged[call.tag].add((call.topic, call.id))
    for call in by_tag:
        for key in tagged[call.tag]:
            found[key].append(call)
    return found


def _told(key: Key, job: StoredJob | None, ends: set[_State | None], calls: Sequence[Committed]) -> str:
    first_s = min(call.began_s for call in calls)
    history = "".join(
        f"\n    {call.began_s - first_s:9.3f} to {call.ended_s - first_s:9.3f} s, transaction {call.transaction}: "
        f"{call.verb} {call.number or ''} {call.tag or ''}{' replaces' if call.replaces else ''} {tuple(call.due)}"
        for call in sorted(calls, key=lambda call: (call.began_s, call.transaction, call.step))
    )
    return f"{key}: deferd has {job}, which is none of {sorted(map(str, ends))}, after{history}"

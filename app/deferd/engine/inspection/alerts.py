"""What needs a person: rules over what `attention_reader.py` has read. Pure functions, but for the class at the end.

The bounds are the same for all topics. They are chosen so that an alert is worth a look at 3 a.m., not so that there is
one whenever a queue works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from deferd.contract.responses.now import ALERT_CODES
from deferd.engine.inspection.attention_reader import MANY_DUE, Attention, AttentionReader, TopicState
from deferd.engine.inspection.dead_errors import DeadGroup
from deferd.engine.inspection.shared_reads import SharedReads
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated, name_of, replicas_of

Severity = Literal["critical", "warning"]

NO_CONSUMER_CRITICAL_MS = 60_000
"""A shorter wait may only mean that the consumer is not connected all the time."""
BEHIND_MS = 60_000
"""A ready job that has waited for a minute: consumers that keep up take jobs within seconds."""
BEHIND_CRITICAL_MS = 600_000
BEHIND_WAIT_S = 300.0
"""At the present rate the last ready job waits this long: more jobs become ready than are taken, even though the oldest
is still young."""
LATE_MS = 5_000
"""A timer that works promotes within milliseconds, and takes over from a dead one within 3 seconds."""
LATE_CRITICAL_MS = 60_000
TIMER_OVERDUE_MS = 5_000
"""Work is overdue and no timer holds the lock, which lasts 2.5 seconds."""
TIMER_HELD_OVERDUE_MS = 60_000
"""A timer holds the lock but does not process the due work: it fails, or there is too much."""
FULL_SHARE = 0.9
"""At this part of `max_jobs` there is time left to act before puts fail."""
OVERLOAD_SHARE = 1.2
"""Consumers can usually handle a fifth more than they did."""
OVERLOAD_JOBS = MANY_DUE
"""Fewer due jobs in an hour raise no alert."""
_KEPT_S, _KEPT_LEAST_S = 5.0, 0.5
_TOPICS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that needs a person. `jobs` is the number of jobs concerned, for sorting.

    `facts` are plain values; a name that ends with `_at_ms` is an instant, with `_ms` a duration. `topic` None: it
    concerns the store.
    """

    severity: Severity
    code: str
    topic: str | None = None
    jobs: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Now:
    """The alerts, most urgent first, and what comes next: when jobs are due, and how many in that second."""

    now_ms: int
    alerts: list[Alert]
    next_due_ms: int | None
    next_due_jobs: int
    looked_at: int
    is_complete: bool


async def alerts_of(found: Attention) -> list[Alert]:
    """The alerts of the store and of all topics, the most urgent first. Lets others run in between."""
    alerts = [*_of_shards(found), *_dying(found)]
    timers_down = {alert.facts["shard"] for alert in alerts if alert.code == "timer"}
    stalled = {name for shard in found.shards if shard.shard in timers_down for name in shard.topics}
    for at, state in enumerate(found.topics.values()):
        alerts += _of_topic(found, state, has_timer=state.topic not in stalled)
        if at % _TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)
    alerts.sort(key=lambda one: (one.severity != "critical", ALERT_CODES.index(one.code), -one.jobs, one.topic or ""))
    return alerts


def _of_shards(found: Attention) -> Iterator[Alert]:
    if found.unreadable:
        yield Alert("critical", "shard_unavailable", facts={"shards": sorted(found.unreadable)})
    for shard in found.shards:
        overdue_ms = shard.now_ms - shard.work_due_ms if shard.work_due_ms >= 0 else 0
        if overdue_ms > (TIMER_HELD_OVERDUE_MS if shard.has_timer else TIMER_OVERDUE_MS):
            facts: dict[str, Any] = {"shard": shard.shard, "running": shard.has_timer, "overdue_ms": overdue_ms}
            yield Alert("critical", "timer", facts=facts)
        for schedule, topic, at_ms, missed in shard.missed:
            facts = {"schedule": schedule, "missed": missed, "last_missed_at_ms": at_ms}
            yield Alert("warning", "schedules_missed", topic, missed, facts)


def _dying(found: Attention) -> Iterator[Alert]:
    if found.dead is None:
        return
    of_topic: dict[str, list[DeadGroup]] = {}
    for group in found.dead.groups:  # the largest first
        of_topic.setdefault(group.topic, []).append(group)
    for topic, groups in of_topic.items():
        if topic not in found.topics:
            continue
        top, read = groups[0], sum(group.count for group in groups)
        # Not all dead jobs were read: then their number is that of the retention ends, which a `dead_retain` shifts.
        jobs = read if found.dead.is_complete else max(read, found.topics[topic].recently_dead)
        facts = {
            "dead": jobs,
            "top_error": top.error,
            "top_reason": top.reason,
            "top_dead": round(jobs * top.count / read),
            "exact": found.dead.is_complete,
        }
        yield Alert("warning", "dying", topic, jobs, facts)


def _of_topic(found: Attention, state: TopicState, *, has_timer: bool) -> Iterator[Alert]:
    yield from _durability(found, state)
    if state.max_jobs and state.live >= FULL_SHARE * state.max_jobs:
        severity: Severity = "critical" if state.live >= state.max_jobs else "warning"
        yield Alert(severity, "topic_full", state.topic, state.live, {"jobs": state.live, "max_jobs": state.max_jobs})
    if has_timer and state.first_due_ms >= 0 and (late_ms := found.now_ms - state.first_due_ms) > LATE_MS:
        severity = "critical" if late_ms > LATE_CRITICAL_MS else "warning"
        yield Alert(severity, "late", state.topic, state.overdue, {"jobs": state.overdue, "overdue_ms": late_ms})
    if state.pause is not None:
        if state.ready or state.overdue:
            facts = {"ready": state.ready, "due": state.overdue or None, "by": state.pause.by}
            facts |= {"since_at_ms": state.pause.since_ms, "why": state.pause.reason}
            yield Alert("warning", "paused", state.topic, state.ready + state.overdue, facts)
        return
    if state.ready:
        yield from _waiting(found, state)
    yield from _overload(found, state)


def _waiting(found: Attention, state: TopicState) -> Iterator[Alert]:
    age_ms = max(found.now_ms - state.oldest_ready_due_ms, 0) if state.oldest_ready_due_ms >= 0 else 0
    facts: dict[str, Any] = {"ready": state.ready, "oldest_age_ms": age_ms}
    if state.topic in found.unconsumed and not state.reserved:
        severity: Severity = "critical" if age_ms > NO_CONSUMER_CRITICAL_MS else "warning"
        facts["last_consumer_at_ms"] = found.last_seen.get(state.topic)
        yield Alert(severity, "no_consumer", state.topic, state.ready, facts)
        return
    rate = None if found.popped is None else found.popped.get(state.topic, 0.0)
    wait_s = state.ready / rate if rate else None
    if age_ms > BEHIND_MS or (wait_s is not None and wait_s > BEHIND_WAIT_S):
        facts["rate"] = None if rate is None else round(rate, 3)
        facts["estimated_wait_ms"] = None if wait_s is None else round(wait_s * 1000)
        facts["reserved"] = state.reserved
        severity = "critical" if age_ms > BEHIND_CRITICAL_MS else "warning"
        yield Alert(severity, "behind", state.topic, state.ready, facts)


def _durability(found: Attention, state: TopicState) -> Iterator[Alert]:
    """Puts without a durability level are refused while the store cannot give the level of their topic."""
    asked, given = state.level, found.given.get(state.topic)
    if asked == MEMORY or given is None:
        return
    facts: dict[str, Any] = {"durability": name_of(asked)}
    if is_replicated(asked):
        if given.replicas is None or given.replicas >= replicas_of(asked):
            return
        why = f"{given.replicas} of {replicas_of(asked)} replicas are connected"
    elif asked == FSYNC and given.level < FSYNC:
        why = given.why_not
    else:
        return
    yield Alert("critical", "durability", state.topic, facts={**facts, "available": name_of(given.level), "why": why})


def _overload(found: Attention, state: TopicState) -> Iterator[Alert]:
    """More is due in the next hour than was handled in the last one.

    Consumers that handled nothing tell nothing about their rate.
    """
    if state.due_soon < OVERLOAD_JOBS:
        return
    at_present = (found.popped or {}).get(state.topic, 0.0)
    handled = round(found.finished.get(state.topic, at_present) * 3600)
    if handled > 0 and state.due_soon > OVERLOAD_SHARE * handled:
        facts = {"due": state.due_soon, "handled": handled}
        yield Alert("warning", "overload", state.topic, state.due_soon, facts)


class Alerts:
    """What needs a person now. Reads are shared and cached for up to 5 s; larger reads are cached longer."""

    def __init__(self, reader: AttentionReader) -> None:
        self._reader = reader
        self._reads: SharedReads[tuple[Attention, list[Alert]]] = SharedReads(_KEPT_S, 1, least_s=_KEPT_LEAST_S)

    async def read(self) -> Attention:
        """The data from which alerts are made. Raises StoreUnavailable when no shard of the store can be reached."""
        found, _ = await self._reads.get(None, self._read)
        return found

    async def now(self, is_visible: Callable[[str], bool]) -> Now:
        """The alerts of visible topics and of the store, and when the next job of a visible topic is due.

        Raises StoreUnavailable when no shard of the store can be reached.
        """
        found, alerts = await self._reads.get(None, self._read)
        next_due_ms, jobs = None, 0
        visible = [state for state in found.topics.values() if state.next_due_ms >= 0 and is_visible(state.topic)]
        if visible:
            next_due_ms = min(state.next_due_ms for state in visible)
            second = next_due_ms // 1000
            jobs = sum(state.next_due_jobs for state in visible if state.next_due_ms // 1000 == second)
        return Now(
            found.now_ms,
            [one for one in alerts if one.topic is None or is_visible(one.topic)],
            next_due_ms,
            jobs,
            sum(map(is_visible, found.names)),
            found.is_complete and not found.unreadable,
        )

    async def _read(self) -> tuple[Attention, list[Alert]]:
        found = await self._reader.read()
        return found, await alerts_of(found)

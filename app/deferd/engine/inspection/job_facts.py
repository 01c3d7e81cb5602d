"""The facts that decide when one job runs: about the job and its topic, read in one script call.

A job that is not found is looked for in every partition of its topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from deferd.contract.model import JobState
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import topic_of
from deferd.engine.push_store import TargetState
from deferd.engine.record import JobRecord, read_record
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_IDS_OF_EACH_END = 200
"""How many ids of each state are compared with an unknown id: the first ones and the last ones."""
_NEAREST = 5


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a topic: since when, by which API key, and why. A value is None when it is not known."""

    since_ms: int | None
    by: str | None
    reason: str | None = None


class Limit(NamedTuple):
    """A limit that holds a job back: which one, and when its rate has room again, None when that is not the reason."""

    name: str
    room_at_ms: int | None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What decides when a job runs that is in the store. `now_ms` is the store's clock.

    `until_ms` is the end of its lease or of its retention, None in other states. `record` has no body and no result.
    For a ready job, `ready` is the length of the Ready list, `ahead` how many jobs go before it, and `oldest_due_at_ms`
    when the oldest one was due. In a topic with several partitions `ready` is the sum over them, `ahead` an estimate,
    and the oldest job the one of its partition. `pause` is the pause of its topic, `target` the state of the target of
    a pushed one. `touches`: how often the lease of a held job was extended. `was_shelved`: it was on the shelf, from
    which reading the facts has loaded it. `takes_turns`: groups of its topic do, and `ahead` counts only jobs of
    its own. `limits` hold it back.
    """

    now_ms: int
    record: JobRecord
    until_ms: int | None
    pause: Pause | None
    ready: int = 0
    ahead: int = 0
    oldest_due_at_ms: int | None = None
    has_follow_up: bool = False
    touches: int = 0
    target: TargetState | None = None
    was_shelved: bool = False
    takes_turns: bool = False
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class MissingJob:
    """A job that is not in the store. `now_ms` is the store's clock.

    `cancelled_until_ms`: it was cancelled while a consumer held it, and is remembered until then. `taken_until_ms`: it
    was finished, and its id stays taken until then. `nearest` are ids of the topic that are like its id, out of
    `compared` of the topic's `jobs`.
    """

    now_ms: int
    topic_is_known: bool
    cancelled_until_ms: int | None
    taken_until_ms: int | None
    jobs: int
    compared: int
    nearest: list[str]


def pause_of(settings: dict[str, Any]) -> Pause | None:
    """The pause in a topic's stored settings; None when the topic is not paused."""
    return Pause(settings.get("ps"), settings.get("pb"), settings.get("pr")) if settings.get("p") == 1 else None


async def read_job_facts(
    scripts: Scripts, keys: Keys, partitions: PartitionStore, topic: str, job_id: str
) -> JobFacts | MissingJob:
    """Read the facts. A job that does not exist is compared with ids of all partitions of the topic.

    Raises StoreUnavailable.
    """
    missing_ms: dict[str, int] = {}
    """By partition: when the job was not in the store. If it is found there then, and not new, it has been loaded."""

    async def read(partition: str) -> JobFacts | MissingJob:
        one = await _facts_in(scripts, keys, partition, job_id)
        if isinstance(one, MissingJob):
            missing_ms[partition] = one.now_ms
        elif one.record.created_at_ms < missing_ms.get(partition, 0):
            return replace(one, was_shelved=True)
        return one

    found = await partitions.find_one(topic, job_id, read, lambda one: isinstance(one, MissingJob))
    names = partitions.known.of(topic)
    if len(names) == 1:
        return found
    if isinstance(found, MissingJob):
        in_each = await asyncio.gather(*map(read, names))
        missing = [one for one in in_each if isinstance(one, MissingJob)]
        put_since = [one for one in in_each if isinstance(one, JobFacts)]
        if not put_since:
            return _missing_in_all(missing, job_id)
        found = put_since[0]
    if found.record.state is not JobState.READY:
        return found
    ready = await asyncio.gather(*(scripts.command("ZCARD", keys.named(name, "ready")) for name in names))
    # Consumers are served by the partitions in turn, so that as many jobs of each go first.
    others = sum(min(found.ahead, jobs) for jobs in ready) - min(found.ahead, found.ready)
    return replace(found, ready=sum(ready), ahead=found.ahead + max(others, 0))


def _missing_in_all(missing: Sequence[MissingJob], job_id: str) -> MissingJob:
    """Combine what each partition knows of a job that is in none of them."""
    cancelled = [one.cancelled_until_ms for one in missing if one.cancelled_until_ms is not None]
    taken = [one.taken_until_ms for one in missing if one.taken_until_ms is not None]
    return MissingJob(
        max(one.now_ms for one in missing),
        any(one.topic_is_known for one in missing),
        max(cancelled, default=None),
        max(taken, default=None),
        sum(one.jobs for one in missing),
        sum(one.compared for one in missing),
        nearest(job_id, [near for one in missing for near in one.nearest]),
    )


async def _facts_in(scripts: Scripts, keys: Keys, partition: str, job_id: str) -> JobFacts | MissingJob:
    reply = await scripts.run("why", keys.of_topic(partition), (partition, job_id, _IDS_OF_EACH_END))
    now_ms, raw_settings, is_known, state, *facts = reply
    if not state:
        cancelled_ms, taken_ms, jobs, *ids = facts
        compared = dict.fromkeys(one.decode() for one in ids)
        return MissingJob(
            now_ms,
            bool(is_known),
            cancelled_ms if cancelled_ms > now_ms else None,
            taken_ms if taken_ms > now_ms else None,
            jobs,
            len(compared),
            nearest(job_id, compared),
        )
    score, consumer, ready, ahead, oldest_ms, has_follow_up, touches, since_ms, raw, takes_turns, held = facts
    in_state = JobState(state.decode())
    has_ended = in_state in {JobState.DEAD, JobState.FINISHED}
    has_end = has_ended or in_state is JobState.RESERVED
    until_ms = int(score) if has_end else None
    settings = orjson.loads(raw_settings) if raw_settings else {}
    target = None
    if "pu" in settings and not has_ended:
        target = TargetState.read_reply(await scripts.command("HGETALL", keys.named(partition, "push/state")), now_ms)
    lease = (until_ms, consumer.decode() or None) if in_state is JobState.RESERVED else (None, None)
    record = read_record(topic_of(partition), job_id, in_state, raw, *lease)
    record.reserved_since_ms = since_ms or None
    return JobFacts(
        now_ms,
        record,
        until_ms,
        pause_of(settings),
        ready,
        ahead,
        None if oldest_ms < 0 else oldest_ms,
        bool(has_follow_up),
        touches,
        target,
        takes_turns=bool(takes_turns),
        limits=tuple(
            Limit(held[at].decode(), held[at + 1] if held[at + 1] >= 0 else None) for at in range(0, len(held), 2)
        ),
    )


def nearest(wanted: str, ids: Iterable[str]) -> list[str]:
    """Up to 5 of `ids`, the most alike first: for a typing error, a wrong number, or another prefix.

    Two ids are alike when the characters that they have in common at the beginning and at the end are at least half of
    the longer one. Upper and lower case count as the same. Takes time linear in their lengths.
    """
    folded = wanted.lower()
    alike = [(one, _in_common(folded, one.lower()) / max(len(wanted), len(one))) for one in ids]
    best = sorted((pair for pair in alike if pair[1] >= 0.5), key=lambda pair: (-pair[1], pair[0]))
    return [one for one, _ in best[:_NEAREST]]


def _in_common(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    begin = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    rest = shorter - begin
    return begin + next((at for at in range(rest) if one[-1 - at] != other[-1 - at]), rest)

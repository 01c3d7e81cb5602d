"""The keys of one topic in the store, read without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import redis

from deferd.contract.model import JobState
from deferd.engine.redis_keys import ITEMS_PREFIX, Keys

KEYS = Keys(shards=1)


@dataclass(frozen=True)
class Contents:
    """The contents of one topic's keys. Scores are instants in ms."""

    pool: dict[str, bytes]
    scores: dict[JobState, dict[str, int]]
    ready_list: list[str]
    expiry: dict[str, int]
    holders: dict[str, str]
    cancelled: dict[str, int]
    due_ms: int | None
    settings: bytes | None
    tally: dict[str, int]
    requests: dict[str, str]
    tagged: dict[str, set[str]]
    index: dict[str, set[str]]
    """The ids of this topic in the tag index, by tag."""
    taken: dict[str, int]
    follow: dict[str, bytes]
    items: dict[str, int]
    """The bytes of the items that are collected under an id."""
    item_lists: dict[str, list[bytes]]
    groups: dict[str, tuple[int, int, str]]
    """Of each group how many live and reserved jobs it has, and the one that keeps its place, '' for none."""

    def of_job(self, job_id: str) -> tuple[Any, ...]:
        """Everything about one job, except its place in the Ready list."""
        scores = [scores.get(job_id) for scores in (*self.scores.values(), self.expiry)]
        waiting = (self.follow.get(job_id), self.items.get(job_id), self.item_lists.get(job_id))
        return self.pool.get(job_id), self.holders.get(job_id), self.tagged.get(job_id), *waiting, *scores

    def timer_work(self) -> list[int]:
        """Every instant at which the timer has work in this topic."""
        kinds = (*self.scores.values(), self.expiry, self.cancelled, self.taken)
        return [score for scores in kinds for score in scores.values()]


def of_all_partitions(partitions: Sequence[Contents]) -> Contents:
    """What the partitions of a topic hold together; the Ready lists are one after the other."""
    if len(partitions) == 1:
        return partitions[0]
    instants = [one.due_ms for one in partitions if one.due_ms is not None]
    return Contents(
        pool=_united([one.pool for one in partitions]),
        scores={state: _united([one.scores[state] for one in partitions]) for state in partitions[0].scores},
        ready_list=[job_id for one in partitions for job_id in one.ready_list],
        expiry=_united([one.expiry for one in partitions]),
        holders=_united([one.holders for one in partitions]),
        cancelled=_latest([one.cancelled for one in partitions]),
        due_ms=min(instants, default=None),
        settings=partitions[0].settings,
        tally={
            outcome: sum(one.tally.get(outcome, 0) for one in partitions)
            for outcome in {outcome for one in partitions for outcome in one.tally}
        },
        requests=_united([one.requests for one in partitions]),
        tagged=_united([one.tagged for one in partitions]),
        index={
            tag: {job_id for one in partitions for job_id in one.index.get(tag, ())}
            for tag in {tag for one in partitions for tag in one.index}
        },
        taken=_latest([one.taken for one in partitions]),
        follow=_united([one.follow for one in partitions]),
        items=_united([one.items for one in partitions]),
        item_lists=_united([one.item_lists for one in partitions]),
        groups=_united([one.groups for one in partitions]),
    )


def _latest(of_partitions: Sequence[dict[str, int]]) -> dict[str, int]:
    """The latest instant of each id: what is over may be left in the partition of an earlier number."""
    return {job_id: max(one.get(job_id, 0) for one in of_partitions) for job_id in reduce(or_, of_partitions)}


def _united(of_partitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    united = reduce(or_, of_partitions)
    assert len(united) == sum(map(len, of_partitions)), "two partitions have the same id"
    return united


def read_contents(client: redis.Redis, topic: str, keys: Keys = KEYS) -> Contents:
    """Read a topic's keys. Not atomic: nothing else may use the store meanwhile. `topic`: a partition, too."""
    (pool, delay, ready, reserved, dead, finished, expiry, holders, cancelled, *more) = keys.of_topic(topic)
    (settings, _, due, tally, requests, tagged, taken) = more
    prefix = pool.removesuffix("pool")
    lists_prefix, indexes_prefix = f"{prefix}{ITEMS_PREFIX}", keys.of_shard(keys.shard_of(topic), "tag/")
    all_keys = [key.decode() for key in client.scan_iter(count=1000)]
    lists = [key for key in all_keys if key.startswith(lists_prefix)]
    indexes = [key for key in all_keys if key.startswith(indexes_prefix)]
    pipe = client.pipeline(transaction=False)
    pipe.hgetall(pool)
    pipe.zrange(ready, 0, -1)
    pipe.hgetall(holders)
    pipe.hget(settings, topic)
    pipe.zscore(due, topic)
    pipe.hgetall(tally)
    pipe.hgetall(requests)
    pipe.hgetall(tagged)
    pipe.hgetall(f"{prefix}follow")
    pipe.hgetall(f"{prefix}items")
    pipe.hgetall(f"{prefix}groups")
    for key in (delay, reserved, dead, finished, expiry, cancelled, taken):
        pipe.zrange(key, 0, -1, withscores=True)
    for key in lists:
        pipe.lrange(key, 0, -1)
    for key in indexes:
        pipe.zrange(key, 0, -1)
    jobs, ready_list, names, topic_settings, due_ms, counted, requested, with_tags, *rest = pipe.execute()
    follow, items, groups, *rest = rest
    sets, item_lists, tagged_ids = rest[:7], rest[7 : 7 + len(lists)], rest[7 + len(lists) :]
    scores = [{member.decode(): int(score) for member, score in members} for members in sets]
    states = (JobState.DELAYED, JobState.RESERVED, JobState.DEAD, JobState.FINISHED)
    return Contents(
        pool={job_id.decode(): record for job_id, record in jobs.items()},
        scores=dict(zip(states, scores[:4], strict=True)),
        ready_list=[job_id.decode() for job_id in ready_list],
        expiry=scores[4],
        holders={job_id.decode(): name.decode() for job_id, name in names.items()},
        cancelled=scores[5],
        due_ms=None if due_ms is None else int(due_ms),
        settings=topic_settings,
        tally={outcome.decode(): int(count) for outcome, count in counted.items()},
        requests={job_id.decode(): request_id.decode() for job_id, request_id in requested.items()},
        tagged={job_id.decode(): set(tags.decode().split(" ")) for job_id, tags in with_tags.items()},
        index=_index_of(topic, dict(zip(_without(indexes_prefix, indexes), tagged_ids, strict=True))),
        taken=scores[6],
        follow={job_id.decode(): record for job_id, record in follow.items()},
        items={job_id.decode(): int(size) for job_id, size in items.items()},
        item_lists=dict(zip(_without(lists_prefix, lists), item_lists, strict=True)),
        groups={name.decode(): _read_group(entry.decode()) for name, entry in groups.items()},
    )


def _read_group(entry: str) -> tuple[int, int, str]:
    live, reserved, _, hold = entry.split(" ")
    return int(live), int(reserved), hold


def _without(prefix: str, names: list[str]) -> list[str]:
    return [key.removeprefix(prefix) for key in names]


def _index_of(topic: str, members_of: dict[str, list[bytes]]) -> dict[str, set[str]]:
    """The ids of the topic's jobs by their tag, of the members of each tag in the shard."""
    pairs = ((tag, [member.decode().split(" ") for member in members]) for tag, members in members_of.items())
    ids_of = {tag: {job_id for of_topic, job_id in members if of_topic == topic} for tag, members in pairs}
    return {tag: ids for tag, ids in ids_of.items() if ids}

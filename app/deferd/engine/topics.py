"""What operators do to topics: look, set defaults, pause, list, redrive, purge."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from deferd.engine import metrics
from deferd.engine.keys import Keys
from deferd.engine.record import JobRecord, json_bytes, located, policy_extra
from deferd.engine.scripts import Scripts
from deferd.errors import FieldFault, InvalidInput, TopicNotFound
from deferd.model import JobState, TopicSettings
from deferd.store.levels import level_named, name_of

UNREADABLE = (ValueError, TypeError, AttributeError, ValidationError)
"""What reading settings raises when a broken store made them something else."""
_log = logging.getLogger(__name__)
_STEP = 1000
"""Most jobs that one script call redrives or deletes."""
_TOTALLED_TOPICS = 500
_PAGE_BYTES = 8 * 1024 * 1024
_VIEWED_STATES = (JobState.DELAYED, JobState.READY, JobState.RESERVED, JobState.DEAD, JobState.FINISHED)


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic: how many jobs in each state, ages in ms, settings."""

    topic: str
    counts: dict[JobState, int]
    oldest_ready_age_ms: int | None
    next_due_at_ms: int | None
    paused: bool
    settings: TopicSettings


class Topics:
    """The verbs on topics."""

    def __init__(self, scripts: Scripts, keys: Keys, labels: metrics.TopicLabels) -> None:
        self._scripts = scripts
        self._keys = keys
        self._label = labels.label

    async def _run(self, verb: str, topic: str, *args: str | bytes | float) -> Any:
        return await self._scripts.run(verb, self._keys.of_topic(topic), (topic, *args))

    async def show(self, topic: str) -> TopicView:
        """The topic as it is now. Raises TopicNotFound."""
        reply = await self._run("view", topic)
        if reply is None:
            raise TopicNotFound(topic)
        raw_settings, *counts, oldest_due_ms, next_due_ms, now_ms = reply
        settings = orjson.loads(raw_settings) if raw_settings else {}
        return TopicView(
            topic=topic,
            counts=dict(zip(_VIEWED_STATES, counts, strict=True)),
            oldest_ready_age_ms=None if oldest_due_ms < 0 else max(now_ms - oldest_due_ms, 0),
            next_due_at_ms=None if next_due_ms < 0 else next_due_ms,
            paused=settings.get("p") == 1,
            settings=read_settings(settings),
        )

    async def list_topics(self, cursor: str | None = None, limit: int = 1000) -> tuple[list[TopicView], str | None]:
        """Up to `limit` topics, as `views` shows them, and where the next page begins (None: this was the last).

        Raises:
            InvalidInput: the cursor is not one that `names` gave.
        """
        names, next_cursor = await self.names(cursor, limit)
        return await self.views(names), next_cursor

    async def views(self, names: Sequence[str]) -> list[TopicView]:
        """These topics in their order, without those that are gone since.

        A topic whose settings a broken store made unreadable is left out, and the log says so: one must not hide all.
        """
        views = []
        for name in names:
            try:
                views.append(await self.show(name))
            except TopicNotFound:  # forgotten since its name was read
                continue
            except UNREADABLE:
                _log.error("topic %s is not listed: its settings cannot be read (see `deferd audit`)", name)
        return views

    async def names(self, cursor: str | None = None, limit: int = 1000) -> tuple[list[str], str | None]:
        """Up to `limit` topics in alphabetic order within each shard, and where the next page begins (None: this was
        the last).

        Raises:
            InvalidInput: the cursor is not one that this method gave.
        """
        shard, last_name = _read_cursor(cursor, (0, ""), (int, str))
        if not 0 <= shard < self._keys.shards:
            raise _bad_cursor(cursor)
        names: list[str] = []
        while shard < self._keys.shards:
            start = f"({last_name}" if last_name else "-"
            wanted = limit + 1 - len(names)
            key = self._keys.of_shard(shard, "topics")
            found = await self._scripts.command("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, wanted)
            names += [name.decode() for name in found]
            if len(names) > limit:
                names = names[:limit]
                break
            shard, last_name = shard + 1, ""
        if shard == self._keys.shards:
            return names, None
        return names, _write_cursor(self._keys.shard_of(names[-1]), names[-1])

    async def totals(self, names: Sequence[str]) -> dict[JobState, int]:
        """How many jobs these topics have together in each state; many topics go in one store call."""
        of_shard: dict[int, list[str]] = {}
        for name in names:
            of_shard.setdefault(self._keys.shard_of(name), []).append(name)
        totals = dict.fromkeys(_VIEWED_STATES, 0)
        for in_shard in of_shard.values():
            for at in range(0, len(in_shard), _TOTALLED_TOPICS):
                keys = [key for name in in_shard[at : at + _TOTALLED_TOPICS] for key in self._keys.of_places(name)]
                for state, count in zip(_VIEWED_STATES, await self._scripts.run("totals", keys, ()), strict=True):
                    totals[state] += count
        return totals

    async def configure(self, topic: str, settings: TopicSettings) -> TopicView:
        """Replace the defaults for jobs put from now on, and `max_jobs`. Makes the topic known.

        A `durability` that the store cannot give is not refused here: puts that name none are, as long as that is so.
        """
        values = policy_extra(settings)
        if settings.max_jobs is not None:
            values["j"] = settings.max_jobs
        if settings.durability is not None:
            values["l"] = level_named(settings.durability)
        await self._run("configure", topic, "settings", json_bytes(values) if values else "")
        return await self.show(topic)

    async def pause(self, topic: str) -> TopicView:
        """Stop handing out; everything else goes on. Raises TopicNotFound."""
        return await self._set_paused(topic, "pause")

    async def resume(self, topic: str) -> TopicView:
        """Hand out again, to waiting consumers at once. Raises TopicNotFound."""
        return await self._set_paused(topic, "resume")

    async def _set_paused(self, topic: str, verb: Literal["pause", "resume"]) -> TopicView:
        if await self._run("configure", topic, verb, "") < 0:
            raise TopicNotFound(topic)
        return await self.show(topic)

    async def jobs(
        self, topic: str, state: JobState | None = None, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[JobRecord], str | None]:
        """Up to `limit` jobs in `state` (None: in every state, one after the other), and where the next page begins.

        A page with large bodies may be shorter and go on all the same.

        Jobs that change their state between two pages may be missed or met twice.

        Raises:
            TopicNotFound.
            InvalidInput: the cursor is not one that this method gave.
        """
        await self.show(topic)
        states = list(_VIEWED_STATES) if state is None else [state]
        state_name, score, last_id = _read_cursor(cursor, (states[0].value, "", ""), (str, str, str))
        if state_name not in states or not re.fullmatch(r"[0-9]{0,16}", score):
            raise _bad_cursor(cursor)
        jobs: list[JobRecord] = []
        for current in states[states.index(JobState(state_name)) :]:
            more = True
            while more:
                if len(jobs) == limit:
                    return jobs, _write_cursor(current.value, score, last_id)
                reply = await self._run("list", topic, current.value, score, last_id, limit - len(jobs))
                more = reply[0] == 1
                score, last_id = _text(reply[1]), _text(reply[2])
                jobs += (
                    located(topic, reply[at].decode(), (current.value.encode(), *reply[at + 1 : at + 4]))
                    for at in range(3, len(reply), 4)
                )
                if more and sum(len(job.body) for job in jobs) >= _PAGE_BYTES:
                    return jobs, _write_cursor(current.value, score, last_id)
            score, last_id = "", ""
        return jobs, None

    async def redrive(self, topic: str, ids: Sequence[str] | None = None, limit: int = 1000) -> int:
        """Make dead jobs ready again: those of `ids`, else up to `limit`, dead longest first. Returns how many.

        They are as new: due now, no attempts; the last error stays readable. Raises TopicNotFound.
        """
        await self.show(topic)
        redriven = 0
        if ids is not None:
            redriven = await self._run("redrive", topic, 0, *ids)
        else:
            while redriven < limit:
                step = min(limit - redriven, _STEP)
                count = await self._run("redrive", topic, step)
                redriven += count
                if count < step:
                    break
        metrics.REDRIVES.labels(self._label(topic)).inc(redriven)
        return redriven

    async def purge(self, topic: str, state: JobState | None = None) -> int:
        """Delete all jobs in `state` (None: in every state) and return how many; the topic's settings stay.

        Holders of reserved jobs are answered JobCancelled. A topic without settings is forgotten when all its
        jobs were purged. Raises TopicNotFound.
        """
        await self.show(topic)
        removed = 0
        for current in _VIEWED_STATES if state is None else (state,):
            more = True
            while more:
                count, more = await self._run("purge", topic, current.value, _STEP)
                removed += count
        if state is None:
            await self._run("forget", topic)
        return removed


def read_settings(values: dict[str, Any]) -> TopicSettings:
    """Settings as they are stored; raises one of UNREADABLE for what is none."""
    given: dict[str, Any] = {}
    if "t" in values:
        given["ttr"] = values["t"] / 1000
    if "m" in values:
        given["max_attempts"] = values["m"] or None
    if "b" in values:
        given["backoff"] = values["b"]
    if "x" in values:
        given["ttl"] = values["x"] / 1000 if values["x"] else None
    if "r" in values:
        given["retain"] = values["r"] / 1000
    if "j" in values:
        given["max_jobs"] = values["j"]
    if "l" in values:
        given["durability"] = name_of(values["l"])
    return TopicSettings.model_validate(given)


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _write_cursor(*parts: int | str) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


def _bad_cursor(cursor: str | None) -> InvalidInput:
    message = "must be the `next_cursor` of an earlier answer to the same list"
    return InvalidInput([FieldFault(("query", "cursor"), message, cursor)])


def _read_cursor(cursor: str | None, first: tuple[Any, ...], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    if cursor is None:
        return first
    try:
        parts = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as exc:
        raise _bad_cursor(cursor) from exc
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise _bad_cursor(cursor)
    return tuple(parts)

"""What operators do to topics: look, set defaults, pause, list, redrive, purge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import orjson

from deferd.contract.errors import TopicNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine import metrics
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.known_topics import KnownTopics
from deferd.engine.record import JobRecord, json_bytes, policy_extra, read_reply
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import VIEWED_STATES, TopicList, TopicView
from deferd.store.durability_levels import level_named, name_of

_STEP = 1000
"""Most jobs that one script call redrives or deletes."""
_PAGE_BYTES = 8 * 1024 * 1024


class Topics:
    """The verbs on topics. `all` reads over all of them."""

    def __init__(self, scripts: Scripts, keys: Keys, labels: metrics.TopicLabels, known: KnownTopics) -> None:
        self._scripts = scripts
        self._keys = keys
        self._label = labels.label
        self.all = TopicList(scripts, keys, known, self.show)

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
            counts=dict(zip(VIEWED_STATES, counts, strict=True)),
            oldest_ready_age_ms=None if oldest_due_ms < 0 else max(now_ms - oldest_due_ms, 0),
            next_due_at_ms=None if next_due_ms < 0 else next_due_ms,
            paused=settings.get("p") == 1,
            settings=read_settings(settings),
        )

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
        states = list(VIEWED_STATES) if state is None else [state]
        state_name, score, last_id = read_cursor(cursor, (states[0].value, "", ""), (str, str, str))
        if state_name not in states or not re.fullmatch(r"(?:-?[0-9]{1,16})?", score):
            raise bad_cursor(cursor)
        jobs: list[JobRecord] = []
        for current in states[states.index(JobState(state_name)) :]:
            more = True
            while more:
                if len(jobs) == limit:
                    return jobs, write_cursor(current.value, score, last_id)
                reply = await self._run("list", topic, current.value, score, last_id, limit - len(jobs))
                more = reply[0] == 1
                score, last_id = _text(reply[1]), _text(reply[2])
                jobs += (
                    read_reply(topic, reply[at].decode(), (current.value.encode(), *reply[at + 1 : at + 4]))
                    for at in range(3, len(reply), 4)
                )
                if more and sum(len(job.body) for job in jobs) >= _PAGE_BYTES:
                    return jobs, write_cursor(current.value, score, last_id)
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
        for current in VIEWED_STATES if state is None else (state,):
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

"""The verbs of operators on one topic: show, configure, pause, resume, list jobs, redrive, purge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deferd.contract.errors import TopicNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine import metrics
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.placement import Placer
from deferd.engine.record import JobRecord, json_bytes, read_reply
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.tag_index import ids_with_tag
from deferd.engine.topic_settings import settings_to_store
from deferd.engine.topic_view import STATES, TopicView, view_topic

_STEP = 1000
"""Most jobs that one script call redrives or deletes."""
_SCORE = re.compile(r"(?:-?[0-9]{1,16})?")
_PAGE_BYTES = 1024 * 1024
_MOST_LOOKED_AT = 10_000
"""By one page of a search; the last step may exceed it."""


class Topics:
    """The verbs on a topic; TopicList reads over all topics."""

    def __init__(self, scripts: Scripts, keys: Keys, labels: metrics.TopicLabels, placer: Placer) -> None:
        self._placer = placer
        self._scripts = scripts
        self._keys = keys
        self._label = labels.label

    async def _run(self, verb: str, topic: str, *args: str | bytes | float) -> Any:
        return await self._scripts.run(verb, self._keys.of_topic(topic), (topic, *args))

    async def show(self, topic: str) -> TopicView:
        """Return the topic as it is now. Raises TopicNotFound."""
        return await view_topic(self._scripts, self._keys, topic)

    async def configure(self, topic: str, settings: TopicSettings) -> TopicView:
        """Replace the defaults for jobs put from now on, and `max_jobs`. Makes the topic known.

        A `durability` that the store does not support is accepted here; puts that name none are refused as long as
        the store does not support it.

        Raises:
            InvalidInput: a zone or calendar of the window is unknown, or that never opens.
        """
        if settings.window is not None:
            await self._placer.check_window(settings.window)
        stored = settings_to_store(settings)
        await self._run("configure", topic, "settings", json_bytes(stored) if stored else "")
        return await self.show(topic)

    async def pause(self, topic: str) -> TopicView:
        """Stop handing out jobs; everything else goes on. Raises TopicNotFound."""
        return await self._set_paused(topic, "pause")

    async def resume(self, topic: str) -> TopicView:
        """Hand out jobs again, to waiting consumers at once. Raises TopicNotFound."""
        return await self._set_paused(topic, "resume")

    async def _set_paused(self, topic: str, verb: Literal["pause", "resume"]) -> TopicView:
        if await self._run("configure", topic, verb, "") < 0:
            raise TopicNotFound(topic)
        return await self.show(topic)

    async def jobs(
        self, topic: str, state: JobState | None = None, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[JobRecord], str | None]:
        """Up to `limit` jobs in `state` (None: in every state, one after the other), and the cursor of the next page.

        The cursor is None after the last page. A page with large bodies may be shorter without being the last. Jobs
        that change their state between two pages may be missed or returned twice.

        Raises:
            TopicNotFound.
            InvalidInput: this method did not return the cursor.
        """
        await self.show(topic)
        states = list(STATES) if state is None else [state]
        state_name, score, last_id = read_cursor(cursor, (states[0].value, "", ""), (str, str, str))
        if state_name not in states or not _SCORE.fullmatch(score):
            raise bad_cursor(cursor)
        jobs: list[JobRecord] = []
        size = 0
        for current in states[states.index(JobState(state_name)) :]:
            more = True
            while more:
                if len(jobs) == limit or size >= _PAGE_BYTES:
                    return jobs, write_cursor(current.value, score, last_id)
                reply = await self._run("list", topic, current.value, score, last_id, limit - len(jobs))
                more = reply[0] == 1
                score, last_id = _text(reply[1]), _text(reply[2])
                jobs += (
                    read_reply(topic, reply[at].decode(), (current.value.encode(), *reply[at + 1 : at + 4]))
                    for at in range(3, len(reply), 4)
                )
                size += sum(map(len, reply[4::4]))
            score, last_id = "", ""
        return jobs, None

    async def search(
        self,
        topic: str,
        wanted: JobFilter,
        state: JobState | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> tuple[list[JobRecord], str | None, int]:
        """As `jobs`, only those that match; and how many jobs were looked at.

        Looks at about 10,000 jobs at most: a page may have no job and yet not be the last. With a tag it reads the tag
        index and looks only at jobs that have the tag.

        Raises as `jobs`.
        """
        await self.show(topic)
        by_tag = wanted.tag is not None
        places = ["tag"] if by_tag else [one.value for one in (STATES if state is None else (state,))]
        place, score, last_id = read_cursor(cursor, (places[0], "", ""), (str, str, str))
        if place not in places or not _SCORE.fullmatch(score):
            raise bad_cursor(cursor)
        found = _Found(limit)
        if by_tag:
            options = wanted.options() | ({} if state is None else {"state": state.value})
            async for tagged in ids_with_tag(self._scripts, self._keys, topic, wanted.tag or "", last_id):
                at = 0
                while at < len(tagged):
                    if found.is_full():
                        return found.jobs, write_cursor("tag", "", last_id), found.looked_at
                    reply = await self._run("search", topic, found.page(options), *tagged[at:])
                    looked, _, last_id = found.add(topic, reply)
                    at += looked
            return found.jobs, None, found.looked_at
        for current in places[places.index(place) :]:
            more = True
            while more:
                if found.is_full():
                    return found.jobs, write_cursor(current, score, last_id), found.looked_at
                position = {"score": score, "id": last_id} if score else {}
                reply = await self._run("search", topic, found.page({**wanted.options(), "state": current, **position}))
                more = reply[1] == 1
                _, new_score, new_id = found.add(topic, reply)
                if new_score:
                    score, last_id = new_score, new_id
            score, last_id = "", ""
        return found.jobs, None, found.looked_at

    async def redrive(
        self,
        topic: str,
        ids: Sequence[str] | None = None,
        limit: int = 1000,
        *,
        tag: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Make dead jobs ready again: those of `ids`, else up to `limit`, longest dead first. Returns how many.

        `tag` and `reason`: only jobs with this tag, or dead for this reason. They are due now and have no attempts; the
        last error stays readable. Raises TopicNotFound.
        """
        await self.show(topic)
        redriven = 0
        if ids is not None:
            redriven, *_ = await self._run("redrive", topic, len(ids), reason or "", tag or "", "", "", *ids)
        elif tag is not None:
            async for tagged in ids_with_tag(self._scripts, self._keys, topic, tag):
                if tagged and redriven < limit:
                    count, *_ = await self._run("redrive", topic, limit - redriven, reason or "", tag, "", "", *tagged)
                    redriven += count
        else:
            score, last_id, more = "", "", 1
            while more and redriven < limit:
                step = min(limit - redriven, _STEP)
                reply = await self._run("redrive", topic, step, reason or "", "", score, last_id)
                count, more = reply[:2]
                redriven += count
                score, last_id = _text(reply[2]), _text(reply[3])
        metrics.REDRIVES.labels(self._label(topic)).inc(redriven)
        return redriven

    async def purge(
        self, topic: str, state: JobState | None = None, *, tag: str | None = None, reason: str | None = None
    ) -> int:
        """Delete all jobs in `state` (None: in every state) and return how many; the topic's settings stay.

        `tag` and `reason`: only jobs with this tag, or dead for this reason. Later calls of a reserved job's holder
        raise JobCancelled. A topic without settings is forgotten when all its jobs are purged. Raises TopicNotFound.
        """
        await self.show(topic)
        removed = 0
        if tag is not None:
            async for ids in ids_with_tag(self._scripts, self._keys, topic, tag):
                if ids:
                    wanted = "" if state is None else state.value
                    count, *_ = await self._run("purge", topic, wanted, _STEP, reason or "", tag, "", "", *ids)
                    removed += count
            return removed
        if reason is not None:
            state = JobState.DEAD
        for current in STATES if state is None else (state,):
            score, last_id, more = "", "", 1
            while more:
                reply = await self._run("purge", topic, current.value, _STEP, reason or "", "", score, last_id)
                count, more = reply[:2]
                removed += count
                if reason is not None:
                    score, last_id = _text(reply[2]), _text(reply[3])
        if state is None:
            await self._run("forget", topic)
        return removed


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What must hold of a listed job. `error` is a part of its last error, `id_prefix` of its id."""

    tag: str | None = None
    due_after_ms: int | None = None
    due_before_ms: int | None = None
    id_prefix: str | None = None
    error: str | None = None

    def options(self) -> dict[str, Any]:
        """As lua/search.lua reads it."""
        named = {
            "tag": self.tag,
            "from": self.due_after_ms,
            "before": self.due_before_ms,
            "prefix": self.id_prefix,
            "error": self.error,
        }
        return {name: value for name, value in named.items() if value is not None}


class _Found:
    """The jobs of one page of a search."""

    def __init__(self, limit: int) -> None:
        self.jobs: list[JobRecord] = []
        self.looked_at = 0
        self._limit = limit
        self._bytes = 0

    def is_full(self) -> bool:
        return len(self.jobs) == self._limit or self._bytes >= _PAGE_BYTES or self.looked_at >= _MOST_LOOKED_AT

    def page(self, options: dict[str, Any]) -> bytes:
        """The argument of lua/search.lua for what is left of the page."""
        return json_bytes({**options, "limit": self._limit - len(self.jobs), "most": _STEP})

    def add(self, topic: str, reply: Sequence[Any]) -> tuple[int, str, str]:
        """Add what the script returned: the number of jobs looked at, and the position of the last."""
        looked, _, score, last_id, *rows = reply
        self.jobs += (read_reply(topic, rows[at].decode(), rows[at + 1 : at + 5]) for at in range(0, len(rows), 5))
        self._bytes += sum(map(len, rows[2::5]))
        self.looked_at += looked
        return looked, _text(score), _text(last_id)


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

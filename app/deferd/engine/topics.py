"""The verbs of operators on one topic: show, configure, pause, resume, list jobs, redrive, purge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from deferd.contract.errors import TopicNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine import metrics
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.record import JobRecord, json_bytes, read_reply
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_settings import settings_to_store
from deferd.engine.topic_view import STATES, TopicView, view_topic

_STEP = 1000
"""Most jobs that one script call redrives or deletes."""
_PAGE_BYTES = 1024 * 1024


class Topics:
    """The verbs on a topic; TopicList reads over all topics."""

    def __init__(self, scripts: Scripts, keys: Keys, labels: metrics.TopicLabels) -> None:
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
        """
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
        if state_name not in states or not re.fullmatch(r"(?:-?[0-9]{1,16})?", score):
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

    async def redrive(self, topic: str, ids: Sequence[str] | None = None, limit: int = 1000) -> int:
        """Make dead jobs ready again: those of `ids`, else up to `limit`, longest dead first. Returns how many.

        They are due now and have no attempts; the last error stays readable. Raises TopicNotFound.
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

        Later calls of a reserved job's holder raise JobCancelled. A topic without settings is forgotten when all its
        jobs are purged. Raises TopicNotFound.
        """
        await self.show(topic)
        removed = 0
        for current in STATES if state is None else (state,):
            more = True
            while more:
                count, more = await self._run("purge", topic, current.value, _STEP)
                removed += count
        if state is None:
            await self._run("forget", topic)
        return removed


def _text(value: bytes | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

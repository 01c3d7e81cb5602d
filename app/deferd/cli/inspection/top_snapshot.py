"""Snapshots of all topics: what `deferd top` shows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, Self

from deferd.cli.framework.connection import Connection
from deferd.cli.inspection.rates import RateMeter, Rates, read_counts
from deferd.cli.topics.topics import UnavailableTopics, due_in_s
from deferd.client import AsyncClient, Now, TopicView
from deferd.contract.errors import DeferdError


@dataclass(frozen=True)
class TopicSnapshot:
    """A topic and its rates."""

    view: TopicView
    rates: Rates

    def as_json(self) -> dict[str, Any]:
        """The topic as in the API, without its settings, and its rates."""
        fields = {name: value for name, value in self.view.fields.items() if name != "settings"}
        put, finish = self.rates
        return {
            **fields,
            "put_rate": None if put is None else round(put, 3),
            "finish_rate": None if finish is None else round(finish, 3),
        }


@dataclass(frozen=True)
class Snapshot:
    """All topics at one instant. `silent` are services whose counters could not be read: the rates lack them.

    `now` is what needs a person; None when that could not be read, as from an older service.
    """

    topics: list[TopicSnapshot]
    silent: list[str]
    unavailable: UnavailableTopics = field(default_factory=UnavailableTopics)
    now: Now | None = None

    def total(self, state: str) -> int:
        """Jobs in a state."""
        return sum(topic.view.counts[state] for topic in self.topics)


SORTS = ("busy", "topic", "delayed", "ready", "reserved", "dead", "finished", "oldest", "due")


def in_order(topics: list[TopicSnapshot], sort: str) -> list[TopicSnapshot]:
    """The topics, sorted by what `sort` names, most first, then by name."""

    def place(snapshot: TopicSnapshot) -> tuple[float, float, str]:
        name = snapshot.view.topic
        match sort:
            case "topic":
                return 0.0, 0.0, name
            case "busy":
                return -sum(rate or 0.0 for rate in snapshot.rates), -float(snapshot.view.counts["ready"]), name
            case "oldest":
                return -(snapshot.view.oldest_ready_age or 0.0), 0.0, name
            case "due":
                due_s = due_in_s(snapshot.view)
                return float("inf") if due_s is None else due_s, 0.0, name
        return -float(snapshot.view.counts[sort]), 0.0, name

    return sorted(topics, key=place)


class SnapshotReader:
    """Reads the topics of a service and the counters of each of its replicas. A context manager."""

    def __init__(self, connection: Connection) -> None:
        self._topics = connection.open_async(retry_for=0)
        self._replicas = {url: connection.one(url).open_async(retry_for=0) for url in connection.url}
        self._meter = RateMeter()

    async def read(self) -> Snapshot:
        """Take a snapshot.

        Raises:
            DeferdError: no replica lists the topics.
        """
        (views, unavailable), now, counted = await asyncio.gather(
            self._views(),
            self._now(),
            asyncio.gather(*(self._count(url, client) for url, client in self._replicas.items())),
        )
        topics = [TopicSnapshot(view, self._meter.rates(view.topic)) for view in views]
        silent = [url for url, is_counted in zip(self._replicas, counted, strict=True) if not is_counted]
        return Snapshot(topics, silent, unavailable, now)

    async def _views(self) -> tuple[list[TopicView], UnavailableTopics]:
        views: list[TopicView] = []
        unavailable = UnavailableTopics()
        async for page in self._topics.topic_pages():
            views += page.topics
            unavailable.note(page)
        return views, unavailable

    async def _now(self) -> Now | None:
        try:
            return await self._topics.now()
        except DeferdError:
            return None

    async def _count(self, url: str, client: AsyncClient) -> bool:
        try:
            exposition = await client.metrics()
        except DeferdError:
            self._meter.forget(url)
            return False
        self._meter.add(url, time.monotonic(), read_counts(exposition))
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (self._topics, *self._replicas.values()):
            with contextlib.suppress(DeferdError):
                await client.close()

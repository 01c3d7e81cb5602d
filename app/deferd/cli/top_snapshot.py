"""One look at all topics: what `deferd top` shows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from deferd.cli.connection import Connection
from deferd.cli.rates import RateMeter, Rates, read_counts
from deferd.cli.unavailable_topics import LeftOut
from deferd.client import AsyncClient, TopicView
from deferd.contract.errors import DeferdError


@dataclass(frozen=True)
class TopicLook:
    """A topic as it stands, and its rates."""

    view: TopicView
    rates: Rates

    @property
    def counts(self) -> Mapping[str, int]:
        """Jobs by state."""
        counts: Mapping[str, int] = self.view.fields["counts"]
        return counts

    @property
    def due_in_s(self) -> float | None:
        """Seconds until the next delayed job is due, by this host's clock; None: none is delayed."""
        due_at = self.view.next_due_at
        return None if due_at is None else max((due_at - datetime.now(UTC)).total_seconds(), 0.0)

    def as_json(self) -> dict[str, Any]:
        """For programs: the topic as the service shows it without its settings, and its rates."""
        fields = {name: value for name, value in self.view.fields.items() if name != "settings"}
        put, finish = self.rates
        return {
            **fields,
            "put_rate": None if put is None else round(put, 3),
            "finish_rate": None if finish is None else round(finish, 3),
        }


@dataclass(frozen=True)
class Look:
    """All topics at one instant. `silent` are services that did not tell their counts, so the rates lack them."""

    topics: list[TopicLook]
    silent: list[str]
    left_out: LeftOut = field(default_factory=LeftOut)

    def total(self, state: str) -> int:
        """Jobs in a state."""
        return sum(topic.counts[state] for topic in self.topics)


SORTS = ("busy", "topic", "delayed", "ready", "reserved", "dead", "finished", "oldest", "due")


def in_order(topics: list[TopicLook], sort: str) -> list[TopicLook]:
    """The topics, those first that have most of what `sort` names; by name among equals."""

    def place(look: TopicLook) -> tuple[float, float, str]:
        name = look.view.topic
        match sort:
            case "topic":
                return 0.0, 0.0, name
            case "busy":
                return -sum(rate or 0.0 for rate in look.rates), -float(look.counts["ready"]), name
            case "oldest":
                return -(look.view.oldest_ready_age or 0.0), 0.0, name
            case "due":
                due_in_s = look.due_in_s
                return float("inf") if due_in_s is None else due_in_s, 0.0, name
        return -float(look.counts[sort]), 0.0, name

    return sorted(topics, key=place)


class Looker:
    """Looks at the topics of a service and at the counts of each of its replicas. A context."""

    def __init__(self, connection: Connection) -> None:
        self._topics = connection.open_async(retry_for=0)
        self._replicas = {url: connection.one(url).open_async(retry_for=0) for url in connection.url}
        self._meter = RateMeter()

    async def look(self) -> Look:
        """Look now.

        Raises:
            DeferdError: no replica tells of the topics.
        """
        (views, left_out), answered = await asyncio.gather(
            self._views(),
            asyncio.gather(*(self._count(url, client) for url, client in self._replicas.items())),
        )
        topics = [TopicLook(view, self._meter.rates(view.topic)) for view in views]
        silent = [url for url, told in zip(self._replicas, answered, strict=True) if not told]
        return Look(topics, silent, left_out)

    async def _views(self) -> tuple[list[TopicView], LeftOut]:
        views: list[TopicView] = []
        left_out = LeftOut()
        async for page in self._topics.topic_pages():
            views += page.topics
            left_out.note(page)
        return views, left_out

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

"""What needs a person now: the method of both clients, its request, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from deferd.client import responses
from deferd.client.inspection import MANY_TOPICS_S, listed
from deferd.client.jobs import JsonView
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.sender import Sender


class Alert(JsonView):
    """One thing that needs a person. `fields` is its JSON object with the facts of its code."""

    __slots__ = ()

    @property
    def severity(self) -> str:
        """`critical` or `warning`."""
        return str(self.fields["severity"])

    @property
    def code(self) -> str:
        """The kind of alert, such as `no_consumer` or `dying`; later services may have further ones."""
        return str(self.fields["code"])

    @property
    def topic(self) -> str | None:
        """Its topic; None when it concerns the store."""
        topic: str | None = self.fields.get("topic")
        return topic

    @property
    def text(self) -> str:
        """The alert as a sentence."""
        return str(self.fields["text"])

    def __repr__(self) -> str:
        return f"Alert({self.severity!r}, {self.code!r}: {self.text!r})"


class Now(JsonView):
    """What needs a person now. `fields` is the JSON object, as it was received."""

    __slots__ = ()

    @property
    def alerts(self) -> list[Alert]:
        """The most urgent first; empty when all is quiet."""
        return [Alert(alert) for alert in self.fields["alerts"]]

    @property
    def next_due_at(self) -> datetime | None:
        """When the next delayed job is due; None when none is."""
        return self._instant("next_due_at")

    @property
    def next_due_jobs(self) -> int:
        """How many delayed jobs are due in the same second."""
        return int(self.fields["next_due_jobs"])

    @property
    def complete(self) -> bool:
        """Whether everything was read: else alerts may be missing."""
        return bool(self.fields["complete"])

    def __repr__(self) -> str:
        return f"Now(alerts={self.alerts!r}, next_due_at={self.fields['next_due_at']!r})"


def now(*, topics: Sequence[str] | str | None = None, limit: int | None = None) -> ApiRequest[Now]:
    """`GET /now`."""
    read = partial(responses.object_with, names=("alerts", "next_due_at", "next_due_jobs", "complete"))
    query = without_none(topics=listed(topics), limit=limit)
    return ApiRequest("GET", "/now", lambda content: Now(read(content)), query=query, wait_s=MANY_TOPICS_S)


class AttentionMethods:
    """What needs a person, a part of ApiMethods."""

    _sender: Sender

    async def now(self, *, topics: Sequence[str] | str | None = None, limit: int | None = None) -> Now:
        """Get what needs a person now, the most urgent first, and what is due next.

        `topics` are names or patterns, by default all; alerts of the store are always there. `limit` is the most
        alerts, by default 100. The service keeps what it has read for up to 5 seconds.
        """
        return await self._sender.send(now(topics=topics, limit=limit))

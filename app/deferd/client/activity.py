"""What people and keys changed: the method of both clients, its request, and what it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial

from deferd.client import responses
from deferd.client.jobs import JsonView
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.sender import Sender
from deferd.contract.limits import PAGE_MAX
from deferd.contract.timestamps import parse_instant


class Change(JsonView):
    """A change that a person or a key made. `fields` is its JSON object, as it was received."""

    __slots__ = ()

    @property
    def at(self) -> datetime:
        """When it was recorded, just after it was made."""
        return parse_instant(self.fields["at"])

    @property
    def by(self) -> str | None:
        """Name of the key; on a service without keys the client's address, None if that is not known."""
        by: str | None = self.fields["by"]
        return by

    @property
    def via(self) -> str:
        """How it came: `console`, `cli`, or `api` for other programs."""
        return str(self.fields["via"])

    @property
    def operation(self) -> str:
        """The operation by its name in the OpenAPI document, such as `pause_topic`."""
        return str(self.fields["operation"])

    @property
    def topic(self) -> str | None:
        """The topic, if it concerns one."""
        topic: str | None = self.fields.get("topic")
        return topic

    @property
    def subject(self) -> str | None:
        """The id of the job, or the name of the schedule or calendar, if it concerns one."""
        subject: str | None = self.fields.get("subject")
        return subject

    @property
    def filter(self) -> str | None:
        """What selected the jobs, JSON that may be cut; None for all jobs, or where nothing is selected."""
        text: str | None = self.fields.get("filter")
        return text

    @property
    def count(self) -> int | None:
        """How many jobs it changed, where that is counted."""
        count: int | None = self.fields.get("count")
        return count

    @property
    def times(self) -> int:
        """How many calls it stands for."""
        return int(self.fields.get("times", 1))

    def __repr__(self) -> str:
        return f"Change({self.fields['at']}, {self.operation!r} by {self.by!r}, topic={self.topic!r})"


def activity(topics: str | None, cursor: str | None, limit: int) -> ApiRequest[tuple[list[Change], str | None]]:
    """`GET /activity`: one page, and the cursor of the next."""
    read = partial(responses.object_with, names=("activity", "next_cursor"))

    def page(content: bytes) -> tuple[list[Change], str | None]:
        found = read(content)
        return [Change(one) for one in found["activity"]], found["next_cursor"]

    query = without_none(topics=topics, cursor=cursor, limit=limit)
    return ApiRequest("GET", "/activity", page, query=query)


class ActivityMethods:
    """What people and keys changed, a part of ApiMethods."""

    _sender: Sender

    async def activity(
        self, *, topics: Sequence[str] | str | None = None, limit: int | None = None
    ) -> AsyncIterator[Change]:
        """List what people and keys changed within 30 days, the newest first; the last 10,000 changes are kept.

        `topics` are names or patterns: only changes that concern one of these topics. `limit` is the most changes, by
        default all.
        """
        names = topics if topics is None or isinstance(topics, str) else ",".join(topics)
        cursor, left = None, limit
        while left is None or left > 0:
            page, cursor = await self._sender.send(
                activity(names, cursor, PAGE_MAX if left is None else min(left, PAGE_MAX))
            )
            for change in page:
                yield change
            left = None if left is None else left - len(page)
            if cursor is None:
                return

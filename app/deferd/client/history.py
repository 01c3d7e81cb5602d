"""What happened in a topic: the methods of both clients, their requests, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote

from deferd.client import responses
from deferd.client.jobs import JsonView
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.sender import Sender
from deferd.contract.timestamps import parse_instant


class History(JsonView):
    """What happened in a topic, or in all topics together. `fields` is the JSON object, as it was received.

    Each property is a column with a value for each bucket of time, the earliest first.
    """

    __slots__ = ()

    @property
    def topic(self) -> str | None:
        """The topic; None: all together."""
        topic: str | None = self.fields.get("topic")
        return topic

    @property
    def begins_at(self) -> datetime:
        """When the first bucket begins."""
        return parse_instant(self.fields["from"])

    @property
    def ends_at(self) -> datetime:
        """When the last bucket of 10 s ended: the last bucket of 5 min may be shorter."""
        return parse_instant(self.fields["to"])

    @property
    def bucket(self) -> float:
        """Length of a bucket in seconds: 10 or 300."""
        return float(self.fields["bucket"])

    @property
    def at(self) -> list[datetime]:
        """When each bucket begins."""
        return [datetime.fromtimestamp(at_s, UTC) for at_s in self.fields["buckets"]["at"]]

    @property
    def put(self) -> list[int]:
        """Jobs put."""
        return self.column("put")

    @property
    def popped(self) -> list[int]:
        """Deliveries handed out."""
        return self.column("popped")

    @property
    def finished(self) -> list[int]:
        """Jobs finished."""
        return self.column("finished")

    @property
    def released(self) -> list[int]:
        """Deliveries released for another attempt."""
        return self.column("released")

    @property
    def dead(self) -> list[int]:
        """Jobs that became dead."""
        return self.column("dead")

    @property
    def cancelled(self) -> list[int]:
        """Jobs cancelled."""
        return self.column("cancelled")

    @property
    def lateness_p50(self) -> Sequence[float | None]:
        """Median of the seconds from due to popped, of first deliveries; None in buckets without any."""
        return list(self.fields["buckets"]["lateness_p50"])

    @property
    def lateness_p99(self) -> Sequence[float | None]:
        """The 99th percentile of the same."""
        return list(self.fields["buckets"]["lateness_p99"])

    def column(self, name: str) -> list[int]:
        """A column by its name in the JSON object, such as `ready`: ready jobs at the end of each bucket, or None."""
        return list(self.fields["buckets"][name])

    def __repr__(self) -> str:
        return f"History({self.topic!r}, {len(self.fields['buckets']['at'])} buckets of {self.bucket:g} s)"


def history(topic: str, minutes: int | None = None) -> ApiRequest[History]:
    """`GET /topics/{topic}/history`."""
    read = partial(responses.object_with, names=("topic", "bucket", "from", "to", "buckets"))
    path = f"/topics/{quote(topic, safe=':')}/history"
    return ApiRequest("GET", path, lambda content: History(read(content)), query=without_none(minutes=minutes))


def history_of_all(minutes: int | None = None) -> ApiRequest[History]:
    """`GET /history`."""
    read = partial(responses.object_with, names=("bucket", "from", "to", "buckets"))
    return ApiRequest("GET", "/history", lambda content: History(read(content)), query=without_none(minutes=minutes))


class HistoryMethods:
    """What happened, a part of ApiMethods."""

    _sender: Sender

    async def history(self, topic: str, *, minutes: int | None = None) -> History:
        """Read what happened in a topic in the last `minutes`, by default 60, at most 2880 (two days).

        Up to 60 minutes in buckets of 10 seconds, beyond that in buckets of 5 minutes. Raises TopicNotFound.
        """
        return await self._sender.send(history(topic, minutes))

    async def history_of_all(self, *, minutes: int | None = None) -> History:
        """As `history`, of all topics together that the key sees; numbers of jobs are None."""
        return await self._sender.send(history_of_all(minutes))

"""What happened in a topic: the methods of both clients, and their requests."""

from __future__ import annotations

from urllib.parse import quote

from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.response_reading import reader_of
from deferd.client.sender import Sender
from deferd.contract.responses.history import History, HistoryOfAll, TopicHistory

_read, _read_of_all = reader_of(TopicHistory), reader_of(HistoryOfAll)


def history(topic: str, minutes: int | None = None) -> ApiRequest[History]:
    """`GET /topics/{topic}/history`."""
    path = f"/topics/{quote(topic, safe=':')}/history"
    return ApiRequest("GET", path, _read, query=without_none(minutes=minutes))


def history_of_all(minutes: int | None = None) -> ApiRequest[History]:
    """`GET /history`."""
    return ApiRequest("GET", "/history", _read_of_all, query=without_none(minutes=minutes))


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

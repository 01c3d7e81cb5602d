"""What happened in a topic: the methods of both clients, and their requests."""

from __future__ import annotations

from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Sender
from deferd.contract.operations import history as operations
from deferd.contract.responses.history import History


def history(topic: str, minutes: int | None = None) -> ApiRequest[History]:
    """`GET /topics/{topic}/history`."""
    return request_for(operations.GET_HISTORY, topic, query=without_none(minutes=minutes))


def history_of_all(minutes: int | None = None) -> ApiRequest[History]:
    """`GET /history`."""
    return request_for(operations.GET_HISTORY_OF_ALL, query=without_none(minutes=minutes))


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

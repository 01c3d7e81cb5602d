"""What needs a person now: the method of both clients, and its request."""

from __future__ import annotations

from collections.abc import Sequence

from deferd.client.inspection import MANY_TOPICS_S, listed
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Sender
from deferd.contract.operations import now as operations
from deferd.contract.responses.now import Now


def now(*, topics: Sequence[str] | str | None = None, limit: int | None = None) -> ApiRequest[Now]:
    """`GET /now`."""
    query = without_none(topics=listed(topics), limit=limit)
    return request_for(operations.GET_NOW, query=query, wait_s=MANY_TOPICS_S)


class AttentionMethods:
    """What needs a person, a part of ApiMethods."""

    _sender: Sender

    async def now(self, *, topics: Sequence[str] | str | None = None, limit: int | None = None) -> Now:
        """Get what needs a person now, the most urgent first, and what is due next.

        `topics` are names or patterns, by default all; alerts of the store are always there. `limit` is the most
        alerts, by default 100. The service keeps what it has read for up to 5 seconds.
        """
        return await self._sender.send(now(topics=topics, limit=limit))

"""What people and keys changed: the method of both clients, and its request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Sender
from deferd.contract.limits import PAGE_MAX
from deferd.contract.operations import activity as operations
from deferd.contract.responses.activity import Activity, Change


def activity(topics: str | None, cursor: str | None, limit: int) -> ApiRequest[Activity]:
    """`GET /activity`: one page."""
    return request_for(operations.LIST_ACTIVITY, query=without_none(topics=topics, cursor=cursor, limit=limit))


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
            page = await self._sender.send(activity(names, cursor, PAGE_MAX if left is None else min(left, PAGE_MAX)))
            for change in page.activity:
                yield change
            left = None if left is None else left - len(page.activity)
            cursor = page.next_cursor
            if cursor is None:
                return

"""What operators look at: the methods of both clients, and their requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from deferd.client.durations import instant
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Sender
from deferd.contract.operations import inspection as operations
from deferd.contract.responses.inspection import Consumer, DeadErrors, Explanation, Forecast

MANY_TOPICS_S = 30.0
"""How long the service may take for 10,000 topics."""


def dead_errors(
    *,
    topics: Sequence[str] | str | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    look_at: int | None = None,
) -> ApiRequest[DeadErrors]:
    """`GET /dead`."""
    query = without_none(topics=listed(topics), limit=limit, look_at=look_at)
    if since is not None:
        query["since"] = instant("since", since)
    return request_for(operations.LIST_DEAD_ERRORS, query=query, wait_s=MANY_TOPICS_S)


def forecast(
    *,
    topics: Sequence[str] | str | None = None,
    begin: datetime | None = None,
    end: datetime | None = None,
    buckets: int | None = None,
    limit: int | None = None,
) -> ApiRequest[Forecast]:
    """`GET /forecast`."""
    query = without_none(topics=listed(topics), buckets=buckets, limit=limit)
    for name, argument, at in (("from", "begin", begin), ("to", "end", end)):
        if at is not None:
            query[name] = instant(argument, at)
    return request_for(operations.GET_FORECAST, query=query, wait_s=MANY_TOPICS_S)


def listed(topics: Sequence[str] | str | None) -> str | None:
    """Names and patterns as the query has them."""
    return topics if topics is None or isinstance(topics, str) else ",".join(topics)


class InspectionMethods:
    """What operators look at, a part of ApiMethods."""

    _sender: Sender

    async def why(self, topic: str, id: str) -> Explanation:
        """Explain why a job has not run. A job that does not exist is no error: its reason is `unknown_job`."""
        return await self._sender.send(request_for(operations.EXPLAIN_JOB, topic, id))

    async def dead_errors(
        self,
        *,
        topics: Sequence[str] | str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        look_at: int | None = None,
    ) -> DeadErrors:
        """Group dead jobs by topic, reason and error, the largest groups first.

        `topics` are names or patterns, by default all. `since`: only jobs that died then or later. `limit` is the most
        groups, by default 100. At most about `look_at` jobs are read, by default 5000, those kept longest: `complete`
        of the result says whether that were all.
        """
        return await self._sender.send(dead_errors(topics=topics, since=since, limit=limit, look_at=look_at))

    async def forecast(
        self,
        *,
        topics: Sequence[str] | str | None = None,
        begin: datetime | None = None,
        end: datetime | None = None,
        buckets: int | None = None,
        limit: int | None = None,
    ) -> Forecast:
        """Count delayed jobs by when they are due, in `buckets` of equal length (60) from `begin` (now) to `end`.

        `topics` are names or patterns, by default all; `end` is by default six hours later. `limit` is how many topics
        are shown, by default 20; the sums include all. The service keeps a forecast for 10 seconds.
        """
        request = forecast(topics=topics, begin=begin, end=end, buckets=buckets, limit=limit)
        return await self._sender.send(request)

    async def consumers(self, *, limit: int | None = None) -> list[Consumer]:
        """List who has popped within a minute, in all processes of the service, or holds jobs; at most 100 by default.

        Those that hold most jobs come first.
        """
        query = without_none(limit=limit)
        request = request_for(operations.LIST_CONSUMERS, query=query, wait_s=MANY_TOPICS_S)
        return (await self._sender.send(request)).consumers

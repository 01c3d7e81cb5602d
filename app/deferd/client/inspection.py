"""What operators look at: the methods of both clients, and their requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote

from deferd.client.durations import instant
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.response_reading import reader_of
from deferd.client.sender import Sender
from deferd.contract.responses.inspection import Consumer, Consumers, DeadErrors, Explanation, Forecast

MANY_TOPICS_S = 30.0
"""How long the service may take for 10,000 topics."""
_read_explanation, _read_dead_errors = reader_of(Explanation), reader_of(DeadErrors)
_read_forecast, _read_consumers = reader_of(Forecast), reader_of(Consumers)


def why(topic: str, id: str) -> ApiRequest[Explanation]:
    """`GET /jobs/{topic}/{id}/why`."""
    path = f"/jobs/{quote(topic, safe=':')}/{quote(id, safe=':')}/why"
    return ApiRequest("GET", path, _read_explanation)


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
    return ApiRequest("GET", "/dead", _read_dead_errors, query=query, wait_s=MANY_TOPICS_S)


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
    return ApiRequest("GET", "/forecast", _read_forecast, query=query, wait_s=MANY_TOPICS_S)


def consumers(limit: int | None = None) -> ApiRequest[list[Consumer]]:
    """`GET /consumers`."""
    return ApiRequest(
        "GET",
        "/consumers",
        lambda content: _read_consumers(content).consumers,
        query=without_none(limit=limit),
        wait_s=MANY_TOPICS_S,
    )


def listed(topics: Sequence[str] | str | None) -> str | None:
    """Names and patterns as the query has them."""
    return topics if topics is None or isinstance(topics, str) else ",".join(topics)


class InspectionMethods:
    """What operators look at, a part of ApiMethods."""

    _sender: Sender

    async def why(self, topic: str, id: str) -> Explanation:
        """Explain why a job has not run. A job that does not exist is no error: its reason is `unknown_job`."""
        return await self._sender.send(why(topic, id))

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
        return await self._sender.send(consumers(limit))

"""What operators look at: the methods of both clients, their requests, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from urllib.parse import quote

from deferd.client import responses
from deferd.client.durations import instant
from deferd.client.jobs import JsonView
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.sender import Sender
from deferd.contract.model import JobState
from deferd.contract.timestamps import parse_instant

MANY_TOPICS_S = 30.0
"""How long the service may take for 10,000 topics."""


class WhyReason(JsonView):
    """One reason why a job has not run. `fields` is its JSON object with the facts of its code."""

    __slots__ = ()

    @property
    def code(self) -> str:
        """The kind of reason, such as `not_due`, `paused` or `behind`; later services may have further ones."""
        return str(self.fields["code"])

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        return str(self.fields["text"])

    def __repr__(self) -> str:
        return f"WhyReason({self.code!r}: {self.text!r})"


class Explanation(JsonView):
    """Why a job has not run. `fields` is the JSON object, as it was received."""

    __slots__ = ()

    @property
    def state(self) -> JobState | None:
        """The job's state; None when there is no such job."""
        state = self.fields["state"]
        return None if state is None else JobState(state)

    @property
    def reasons(self) -> list[WhyReason]:
        """The reasons, what holds it back now first."""
        return [WhyReason(reason) for reason in self.fields["reasons"]]

    def __repr__(self) -> str:
        return f"Explanation(state={self.fields['state']!r}, reasons={self.reasons!r})"


class DeadGroup(JsonView):
    """Dead jobs of one topic with the same reason and error. `fields` is the JSON object, as it was received."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """Their topic."""
        return str(self.fields["topic"])

    @property
    def reason(self) -> str:
        """Why they are dead, such as `attempts_exhausted`."""
        return str(self.fields["reason"])

    @property
    def error(self) -> str | None:
        """The first line of their errors, with `*` for what varies; None: they have none."""
        error: str | None = self.fields["error"]
        return error

    @property
    def count(self) -> int:
        """How many they are."""
        return int(self.fields["count"])

    @property
    def first_at(self) -> datetime | None:
        """When the first of them died; None if that is not known."""
        return self._instant("first_at")

    @property
    def last_at(self) -> datetime | None:
        """When the last of them died; None if that is not known."""
        return self._instant("last_at")

    @property
    def samples(self) -> list[str]:
        """Ids of up to three of them."""
        return list(self.fields["samples"])

    def __repr__(self) -> str:
        return f"DeadGroup({self.topic!r}, {self.reason!r}, {self.error!r}, count={self.count})"


class DeadErrors(JsonView):
    """Dead jobs by error. `fields` is the JSON object, as it was received."""

    __slots__ = ()

    @property
    def groups(self) -> list[DeadGroup]:
        """The groups, the largest first."""
        return [DeadGroup(group) for group in self.fields["groups"]]

    @property
    def dead(self) -> int:
        """All dead jobs of the selected topics."""
        return int(self.fields["dead"])

    @property
    def looked_at(self) -> int:
        """How many of these were read."""
        return int(self.fields["looked_at"])

    @property
    def complete(self) -> bool:
        """Whether all of them were read."""
        return bool(self.fields["complete"])

    def __repr__(self) -> str:
        return f"DeadErrors(dead={self.dead}, looked_at={self.looked_at}, groups={self.groups!r})"


class DueCounts(JsonView):
    """Delayed jobs by when they are due. `fields` is the JSON object, as it was received."""

    __slots__ = ()

    @property
    def delayed(self) -> int:
        """All delayed jobs: `before`, `after` and `counts` together."""
        return int(self.fields["delayed"])

    @property
    def before(self) -> int:
        """Those due before the first bucket."""
        return int(self.fields["before"])

    @property
    def after(self) -> int:
        """Those due after the last bucket."""
        return int(self.fields["after"])

    @property
    def counts(self) -> list[int]:
        """Those due in each bucket."""
        return list(self.fields["counts"])

    @property
    def handled(self) -> float | None:
        """How many jobs consumers finished in the length of a bucket, on the mean of the last hour; None: not known."""
        handled: float | None = self.fields.get("handled")
        return handled

    @property
    def scheduled(self) -> list[int]:
        """Runs of schedules in each bucket that are not put yet; older services do not count them."""
        return list(self.fields.get("scheduled") or [0] * len(self.counts))


class TopicForecast(DueCounts):
    """Delayed jobs of one topic by when they are due."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic."""
        return str(self.fields["topic"])


class Forecast(DueCounts):
    """Delayed jobs of several topics together by when they are due, and those of the topics that have the most."""

    __slots__ = ()

    @property
    def begins_at(self) -> datetime:
        """When the first bucket begins."""
        return parse_instant(self.fields["from"])

    @property
    def ends_at(self) -> datetime:
        """When the last bucket ends."""
        return parse_instant(self.fields["to"])

    @property
    def bucket(self) -> float:
        """The length of a bucket in seconds."""
        return float(self.fields["bucket"])

    @property
    def topics(self) -> list[TopicForecast]:
        """The topics with the most jobs due in the buckets, most first."""
        return [TopicForecast(topic) for topic in self.fields["topics"]]

    def __repr__(self) -> str:
        return f"Forecast({self.fields['from']} to {self.fields['to']}, delayed={self.delayed}, counts={self.counts!r})"


class Consumer(JsonView):
    """One consumer, or those without a name that share address and client. `fields` is the JSON object."""

    __slots__ = ()

    @property
    def name(self) -> str | None:
        """The name that it gave to its pops; None without one."""
        name: str | None = self.fields["name"]
        return name

    @property
    def addresses(self) -> list[str]:
        """Where its pops came from."""
        return list(self.fields["addresses"])

    @property
    def clients(self) -> list[str]:
        """The User-Agent of its pops."""
        return list(self.fields["clients"])

    @property
    def topics(self) -> list[str]:
        """Topics and patterns of its pops, and topics of the jobs that it holds."""
        return list(self.fields["topics"])

    @property
    def parked(self) -> int:
        """Its pops that wait for a job now."""
        return int(self.fields["parked"])

    @property
    def last_seen_at(self) -> datetime | None:
        """When its last pop was under way; None: more than a minute ago."""
        return self._instant("last_seen_at")

    @property
    def held(self) -> int | None:
        """Jobs that it holds; None: not known, because it gave no name."""
        held: int | None = self.fields["held"]
        return held

    @property
    def lease_ends_at(self) -> datetime | None:
        """When the first of their leases ends; None without any."""
        return self._instant("lease_ends_at")

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, topics={self.topics!r}, parked={self.parked}, held={self.held})"


def why(topic: str, id: str) -> ApiRequest[Explanation]:
    """`GET /jobs/{topic}/{id}/why`."""
    path = f"/jobs/{quote(topic, safe=':')}/{quote(id, safe=':')}/why"
    read = partial(responses.object_with, names=("state", "reasons"))
    return ApiRequest("GET", path, lambda content: Explanation(read(content)))


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
    read = partial(responses.object_with, names=("groups", "dead", "looked_at", "complete"))
    return ApiRequest("GET", "/dead", lambda content: DeadErrors(read(content)), query=query, wait_s=MANY_TOPICS_S)


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
    read = partial(responses.object_with, names=("from", "to", "bucket", "delayed", "counts", "topics"))
    return ApiRequest("GET", "/forecast", lambda content: Forecast(read(content)), query=query, wait_s=MANY_TOPICS_S)


def consumers(limit: int | None = None) -> ApiRequest[list[Consumer]]:
    """`GET /consumers`."""
    read = partial(responses.object_with, names=("consumers",))
    return ApiRequest(
        "GET",
        "/consumers",
        lambda content: [Consumer(one) for one in read(content)["consumers"]],
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

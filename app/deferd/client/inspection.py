"""Inspect a service: alerts, why jobs do not run, forecasts, history and audits. The methods of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from deferd.client.request_body import encode, instant, listed, without_none
from deferd.client.requests import ready, request_for
from deferd.client.sender import Sender
from deferd.client.topics import MANY_JOBS_S
from deferd.contract.errors import DeferdError
from deferd.contract.limits import PAGE_MAX
from deferd.contract.operations import audits, history, inspection, relays, system
from deferd.contract.operations.audits import AUDIT_TOPIC, REPAIR_TOPIC, StoreAudit, TopicAudit
from deferd.contract.operations.events import LIST_ACTIVITY, Change
from deferd.contract.operations.history import History
from deferd.contract.operations.inspection import Consumer, DeadErrors, Explanation, Forecast
from deferd.contract.operations.now import ACKNOWLEDGE_ALERTS, GET_NOW, Now
from deferd.contract.operations.relays import Relay
from deferd.contract.operations.system import Overview, OwnKey, System, Upgrade

_MANY_TOPICS_S = 30.0
"""How long the service may take for 10,000 topics."""


class InspectionMethods:
    """The calls that inspect and check a service."""

    _sender: Sender

    async def now(self, *, topics: Sequence[str] | str | None = None, limit: int | None = None) -> Now:
        """Get what needs a person now, the most urgent first, and what is due next.

        `topics` are names or patterns, by default all; alerts of the store are always there. `limit` is the most
        alerts, by default 100. The service keeps what it has read for up to 5 seconds.
        """
        query = without_none(topics=listed(topics), limit=limit)
        return await self._sender.send(request_for(GET_NOW, query=query, wait_s=_MANY_TOPICS_S))

    async def acknowledge_alerts(
        self, code: str, *, reason: str, until: datetime, topics: Sequence[str] | None = None
    ) -> int:
        """Acknowledge the alerts of a kind that there are now until an end: `now` has them in `acknowledged` then.

        `topics` are names; by default all. An end that is past ends acknowledgements. Returns how many alerts.
        """
        fields = without_none(code=code, reason=reason, topics=None if topics is None else list(topics))
        request = request_for(ACKNOWLEDGE_ALERTS, body=encode({**fields, "until": instant("until", until)}))
        return (await self._sender.send(request)).alerts

    async def why(self, topic: str, id: str) -> Explanation:
        """Explain why a job has not run. A job that does not exist is no error: its reason is `unknown_job`."""
        return await self._sender.send(request_for(inspection.EXPLAIN_JOB, topic, id))

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
        query = without_none(topics=listed(topics), limit=limit, look_at=look_at)
        if since is not None:
            query["since"] = instant("since", since)
        return await self._sender.send(request_for(inspection.LIST_DEAD_ERRORS, query=query, wait_s=_MANY_TOPICS_S))

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
        query = without_none(topics=listed(topics), buckets=buckets, limit=limit)
        for name, argument, at in (("from", "begin", begin), ("to", "end", end)):
            if at is not None:
                query[name] = instant(argument, at)
        return await self._sender.send(request_for(inspection.GET_FORECAST, query=query, wait_s=_MANY_TOPICS_S))

    async def consumers(self, *, limit: int | None = None) -> list[Consumer]:
        """List who has popped within a minute, in all processes of the service, or holds jobs; at most 100 by default.

        Those that hold most jobs come first.
        """
        query = without_none(limit=limit)
        request = request_for(inspection.LIST_CONSUMERS, query=query, wait_s=_MANY_TOPICS_S)
        return (await self._sender.send(request)).consumers

    async def history(self, topic: str, *, minutes: int | None = None) -> History:
        """Read what happened in a topic in the last `minutes`, by default 60, at most 2880 (two days).

        Up to 60 minutes in buckets of 10 seconds, beyond that in buckets of 5 minutes. Raises TopicNotFound.
        """
        query = without_none(minutes=minutes)
        return await self._sender.send(request_for(history.GET_HISTORY, topic, query=query))

    async def history_of_all(self, *, minutes: int | None = None) -> History:
        """As `history`, of all topics together that the key sees; numbers of jobs are None."""
        query = without_none(minutes=minutes)
        return await self._sender.send(request_for(history.GET_HISTORY_OF_ALL, query=query))

    async def activity(
        self, *, topics: Sequence[str] | str | None = None, limit: int | None = None
    ) -> AsyncIterator[Change]:
        """List what people and keys changed within 30 days, the newest first; the last 10,000 changes are kept.

        `topics` are names or patterns: only changes that concern one of these topics. `limit` is the most changes, by
        default all.
        """
        cursor, left = None, limit
        while left is None or left > 0:
            size = PAGE_MAX if left is None else min(left, PAGE_MAX)
            query = without_none(topics=listed(topics), cursor=cursor, limit=size)
            page = await self._sender.send(request_for(LIST_ACTIVITY, query=query))
            for change in page.activity:
                yield change
            left = None if left is None else left - len(page.activity)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def overview(
        self,
        *,
        sort: str | None = None,
        name: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
        ready_history: bool = False,
    ) -> Overview:
        """Get topics at a glance, in any order; see `GET /overview`. `name` is a part of their names.

        `ready_history`: also how many jobs of each topic were ready in the last 3 hours.
        """
        query = without_none(sort=sort, name=name, offset=offset, limit=limit, ready_history=ready_history or None)
        return await self._sender.send(request_for(system.GET_OVERVIEW, query=query, wait_s=_MANY_TOPICS_S))

    async def system(self) -> System:
        """Get what the service runs on: versions, the store, its durability and timers, and the settings."""
        return await self._sender.send(request_for(system.GET_SYSTEM))

    async def relays(self) -> list[Relay]:
        """List the relays that send outboxes of databases to the service, by database, those that work first."""
        return (await self._sender.send(request_for(relays.LIST_RELAYS))).relays

    async def report_relay(
        self, name: str, *, database: str, working: bool, rows: int, refused: int, lag: float
    ) -> Relay:
        """Report how a relay and its outbox are doing, for a relay that is not `deferd relay`: every 5 seconds.

        `database` is `host:port/name`, `working` whether this relay sends the outbox. `lag` is the age of the oldest
        row in seconds, 0 without rows.
        """
        fields = {"database": database, "working": working, "rows": rows, "refused": refused, "lag": lag}
        return await self._sender.send(request_for(relays.REPORT_RELAY, name, body=encode(fields)))

    async def upgrade_store(self) -> Upgrade:
        """Raise the format of the store to the newest that the service knows, though others may not know it.

        Those refuse all calls from then on. Without this the services wait until no process of an earlier release uses
        the store. Returns who uses it.
        """
        return await self._sender.send(request_for(system.UPGRADE_STORE))

    async def key(self) -> OwnKey:
        """Get the name, scopes, topics and limits of the key that this client uses."""
        return await self._sender.send(request_for(system.GET_KEY))

    async def audit(self, topic: str) -> TopicAudit:
        """Check the consistency of everything that the store holds of a topic, without changing it.

        The time it takes grows with the number of jobs. Load on the topic causes no false findings. Raises
        TopicNotFound if the store holds nothing of the topic.
        """
        return await self._sender.send(request_for(AUDIT_TOPIC, topic, wait_s=MANY_JOBS_S))

    async def repair(self, topic: str) -> TopicAudit:
        """Check a topic like `audit` and repair the findings. Returns what was repaired."""
        # Not repeatable: the second response would not say what the first repaired.
        return await self._sender.send(request_for(REPAIR_TOPIC, topic, wait_s=MANY_JOBS_S))

    async def audit_store(self) -> StoreAudit:
        """Check the store outside single topics, and look for topics that are missing from the list of topics."""
        return await self._sender.send(request_for(audits.AUDIT_STORE, wait_s=MANY_JOBS_S))

    async def repair_store(self) -> StoreAudit:
        """Check like `audit_store` and repair the findings. Unlisted topics are repaired by `repair` of each."""
        # Not repeatable, as the repair of a topic.
        return await self._sender.send(request_for(audits.REPAIR_STORE, wait_s=MANY_JOBS_S))

    async def is_ready(self) -> bool:
        """Whether the service responds and is ready to work. Not retried."""
        try:
            await self._sender.send(ready(), retry_for_s=0)
        except DeferdError:
            return False
        return True

    async def metrics(self) -> str:
        """The service's metrics in the text format of Prometheus."""
        return await self._sender.send(request_for(system.GET_METRICS).reading(bytes.decode))

"""Topics and the jobs in them: list, set, pause, redrive, purge and push. The methods of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack

from deferd.client.request_body import (
    encode,
    in_rfc_3339,
    in_seconds,
    instant,
    refuse_unknown,
    seconds,
    set_fields,
    without_none,
)
from deferd.client.requests import ApiRequest, read_nothing, reader_of, request_for
from deferd.client.sender import Sender
from deferd.contract.limits import REDRIVE_DEFAULT
from deferd.contract.model import DeadReason, JobState, TopicSettings
from deferd.contract.operations import push
from deferd.contract.operations import topics as operations
from deferd.contract.operations.bulk import DryRun as Preview
from deferd.contract.operations.jobs import Job
from deferd.contract.operations.push import Push
from deferd.contract.operations.push import TestedPush as PushTest
from deferd.contract.operations.topics import GroupOrder, GroupView, TopicPage, TopicView

MANY_JOBS_S = 600.0
"""How long the service may take to purge, redrive or check a million jobs."""


class JobFilters(TypedDict, total=False):
    """Which jobs a list shows, and how. Without a `tag`, the filters make the service search the topic's jobs."""

    ids: Sequence[str] | None
    """Jobs with these ids, 1 to 100, in whichever state."""
    tag: str | None
    """Jobs with this tag."""
    group: str | None
    """Jobs of this group."""
    due_after: datetime | None
    """Jobs due at this instant or later."""
    due_before: datetime | None
    """Jobs due before this instant."""
    id_prefix: str | None
    """Jobs whose id begins so."""
    error: str | None
    """Jobs whose last error contains this text."""
    reason: DeadReason | str | None
    """Jobs that are dead for this reason."""
    error_group: str | None
    """Dead jobs with this error of a DeadGroup, in which `*` stands for what varies; '' for those without one."""
    retrying: bool
    """True: only delayed jobs that had an attempt: they failed, and wait for another one."""
    order: Literal["asc", "desc"]
    """`desc`: what happens last comes first."""
    bodies: bool
    """False: without bodies, so that `body` is `msgspec.UNSET`, and without results. `body_bytes` and `result_bytes`
    are their lengths."""


def jobs(
    topic: str,
    *,
    state: JobState | str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
    **filters: Unpack[JobFilters],
) -> ApiRequest[tuple[list[Job], str | None]]:
    """`GET /topics/{topic}/jobs`: one page, and the cursor of the next."""
    query = without_none(state=state, cursor=cursor, limit=limit, **filters)
    for at in ("due_after", "due_before"):
        if at in query:
            query[at] = instant(at, query[at])
    if "ids" in query:
        query["ids"] = ",".join(query["ids"])
    for name in ("bodies", "retrying"):
        if name in query:
            query[name] = str(bool(query[name])).lower()
    request = request_for(operations.LIST_JOBS, topic, query=query)
    return request.giving(lambda page: (page.jobs, page.next_cursor))


class JobConditions(TypedDict, total=False):
    """Which jobs of a topic a redrive or purge means, beside ids and states. All keyword-only."""

    tag: str | None
    """Only jobs with this tag."""
    group: str | None
    """Only jobs of this group."""
    reason: DeadReason | str | None
    """Only jobs that are dead for this reason."""
    error: str | None
    """Only dead jobs with this error of a DeadGroup, in which `*` stands for what varies; '' for those without one."""
    cutoff: datetime | None
    """Only jobs that were put, and dead ones that died, until this instant: that of a preview."""


def condition_fields(conditions: JobConditions) -> dict[str, Any]:
    """The conditions as fields of the API. Raises TypeError for an unknown one."""
    refuse_unknown(conditions, JobConditions, "conditions")
    return in_rfc_3339(without_none(**conditions), ("cutoff",))


def _redrive_fields(ids: Sequence[str] | None, limit: int, conditions: JobConditions) -> dict[str, Any]:
    return {**({"limit": limit} if ids is None else {"ids": list(ids)}), **condition_fields(conditions)}


class TopicMethods:
    """The calls for topics."""

    _sender: Sender

    async def topics(self) -> AsyncIterator[TopicView]:
        """List all topics, in the order of their names.

        Topics in an unreachable shard of the store are left out; `topic_pages` names them.
        """
        async for page in self.topic_pages():
            for view in page.topics:
                yield view

    async def topic_pages(self) -> AsyncIterator[TopicPage]:
        """List all topics page by page, with the names of those left out. Two pages may name the same one."""
        cursor: str | None = None
        while True:
            query = None if cursor is None else {"cursor": cursor}
            page = await self._sender.send(request_for(operations.LIST_TOPICS, query=query))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def topic(self, topic: str) -> TopicView:
        """Get a topic: its settings and counts. Raises TopicNotFound."""
        return await self._sender.send(request_for(operations.GET_TOPIC, topic))

    async def set_topic(self, topic: str, settings: TopicSettings | Mapping[str, Any]) -> TopicView:
        """Replace all settings of a topic: those left out fall back to the service's defaults."""
        body = encode(in_seconds(set_fields(settings)))
        return await self._sender.send(request_for(operations.SET_TOPIC, topic, body=body))

    async def pause(self, topic: str, *, reason: str | None = None) -> TopicView:
        """Stop delivering the topic's jobs; everything else continues. `reason` is shown to people during the pause.

        A topic that does not exist yet is created, so that consumers wait from its first job on.
        """
        body = None if reason is None else encode({"reason": reason})
        return await self._sender.send(request_for(operations.PAUSE_TOPIC, topic, body=body))

    async def resume(self, topic: str) -> TopicView:
        """End a pause. Raises TopicNotFound."""
        return await self._sender.send(request_for(operations.RESUME_TOPIC, topic))

    async def groups(self, topic: str, *, order: GroupOrder | None = None) -> AsyncIterator[GroupView]:
        """List the groups of a topic: those with the most ready jobs first, unless `order` says otherwise.

        The one whose `group` is None are the jobs without a group. Raises TopicNotFound.
        """
        cursor = None
        while True:
            query = without_none(order=order, cursor=cursor)
            page = await self._sender.send(request_for(operations.LIST_GROUPS, topic, query=query))
            for group in page.groups:
                yield group
            cursor = page.next_cursor
            if cursor is None:
                return

    async def pause_group(self, topic: str, group: str) -> GroupView:
        """Stop delivering the jobs of a group; everything else continues. Topic and group need not exist yet."""
        return await self._sender.send(request_for(operations.PAUSE_GROUP, topic, group))

    async def resume_group(self, topic: str, group: str) -> GroupView:
        """End a pause of a group. Raises TopicNotFound."""
        return await self._sender.send(request_for(operations.RESUME_GROUP, topic, group))

    async def jobs(
        self, topic: str, *, state: JobState | str | None = None, **filters: Unpack[JobFilters]
    ) -> AsyncIterator[Job]:
        """List the jobs of a topic, or those in one state. One whose state changes may be missed or repeated.

        The filters, all keyword-only, are the keys of JobFilters: `ids`, `tag`, `group`, `due_after`, `due_before`,
        `id_prefix`, `error`, `order` and `bodies`. Raises TopicNotFound.
        """
        cursor = None
        while True:
            page, cursor = await self._sender.send(jobs(topic, state=state, cursor=cursor, **filters))
            for job in page:
                yield job
            if cursor is None:
                return

    async def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[str] | None = None,
        limit: int = REDRIVE_DEFAULT,
        **conditions: Unpack[JobConditions],
    ) -> int:
        """Make dead jobs ready: those with these `ids`, otherwise the oldest `limit`. Returns how many.

        The conditions, all keyword-only, are the keys of JobConditions: `tag`, `group`, `reason`, `error` and `cutoff`.
        """
        # Not repeatable without a cutoff: a second one would redrive further jobs.
        body = encode(_redrive_fields(ids, limit, conditions))
        request = request_for(operations.REDRIVE_JOBS, topic, body=body, wait_s=MANY_JOBS_S)
        return (await self._sender.send(request)).redriven

    async def preview_redrive(
        self,
        topic: str,
        *,
        ids: Sequence[str] | None = None,
        limit: int = REDRIVE_DEFAULT,
        **conditions: Unpack[JobConditions],
    ) -> Preview:
        """Count what `redrive` would do, and change nothing. With the result's `cutoff` it redrives nothing else."""
        body = encode({**_redrive_fields(ids, limit, conditions), "dry_run": True})
        request = request_for(operations.REDRIVE_JOBS, topic, body=body, wait_s=MANY_JOBS_S, repeatable=True)
        return await self._sender.send(request.reading(reader_of(Preview)))

    async def purge(
        self, topic: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
    ) -> int:
        """Remove all jobs of a topic, or those in one state, with a tag, or dead for a reason, and return how many.

        The conditions are those of `redrive`. Consumers that hold one get JobCancelled. Raises TopicNotFound.
        """
        # Not repeatable: a second one would remove jobs that were put since, and the count would be wrong.
        query = without_none(state=state, **condition_fields(conditions))
        request = request_for(operations.PURGE_TOPIC, topic, query=query, wait_s=MANY_JOBS_S)
        return (await self._sender.send(request)).removed

    async def preview_purge(
        self, topic: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
    ) -> Preview:
        """Count what `purge` would remove, and change nothing. With the result's `cutoff` it removes nothing else."""
        query = without_none(state=state, **condition_fields(conditions), dry_run="true")
        request = request_for(operations.PURGE_TOPIC, topic, query=query, wait_s=MANY_JOBS_S, repeatable=True)
        return await self._sender.send(request.reading(reader_of(Preview)))

    async def set_push(
        self,
        topic: str,
        url: str,
        secrets: Sequence[str] | None = None,
        *,
        timeout: float | timedelta | None = None,
        max_in_flight: int | None = None,
        rate: float | None = None,
        headers: Mapping[str, str] | None = None,
        mode: Literal["job", "batch"] | None = None,
    ) -> Push:
        """Have the service send the topic's jobs to a URL, in place of consumers; replaces what was set before.

        `secrets` are one or two; None keeps those that are stored. Of the other arguments None is the default of the
        service. Repeating the call after a lost response is safe.

        Raises:
            InvalidInput: a value is invalid, the service may not push to the URL, or there are no secrets.
        """
        fields = without_none(
            url=url,
            secrets=None if secrets is None else list(secrets),
            timeout=None if timeout is None else seconds(timeout),
            max_in_flight=max_in_flight,
            rate=rate,
            headers=None if headers is None else dict(headers),
            mode=mode,
        )
        body = encode(fields)
        return await self._sender.send(request_for(push.SET_PUSH, topic, body=body, success=(200, 201)))

    async def push(self, topic: str) -> Push:
        """How the jobs of a topic are pushed. Raises PushNotFound."""
        return await self._sender.send(request_for(push.GET_PUSH, topic))

    async def remove_push(self, topic: str) -> None:
        """Stop pushing: consumers can pop the jobs again. Raises PushNotFound."""
        await self._sender.send(request_for(push.REMOVE_PUSH, topic).reading(read_nothing))

    async def test_push(self, topic: str) -> PushTest:
        """Send a signed test to the topic's target. Raises PushNotFound, and InvalidInput if its URL is refused."""
        return await self._sender.send(request_for(push.TEST_PUSH, topic))

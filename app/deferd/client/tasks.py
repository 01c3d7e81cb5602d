"""Actions on many jobs that run in the background: the methods of both clients, and their requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Unpack

from deferd.client.bulk import Selector, reschedule_fields, selection
from deferd.client.durations import Seconds
from deferd.client.idempotency import new_id
from deferd.client.request_body import encode, without_none
from deferd.client.requests import ApiRequest, request_for
from deferd.client.response_reading import reader_of
from deferd.client.sender import Sender
from deferd.client.topics import JobConditions, condition_fields
from deferd.contract.model import JobState
from deferd.contract.operations import bulk, topics
from deferd.contract.operations import tasks as operations
from deferd.contract.operations.operation import Operation
from deferd.contract.responses.tasks import Task


def start(
    operation: Operation[Any],
    *path_values: str,
    query: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
) -> ApiRequest[Task]:
    """A call with `as_task`. It is repeatable if it has a request id."""
    encoded = None if body is None else encode({**body, "as_task": True})
    repeatable = body is not None and "request_id" in body
    request = request_for(operation, *path_values, query=query, body=encoded, success=(202,), repeatable=repeatable)
    return request.reading(reader_of(Task))


class TaskMethods:
    """Actions on many jobs that run in the background, a part of ApiMethods.

    Those that begin one take the same arguments as the call that waits for the end; without a `limit` they act on all
    jobs. They return once the task has begun. RateLimited: ten run already.
    """

    _sender: Sender

    async def start_cancel_all(
        self,
        *,
        limit: int | None = None,
        if_reserved: Literal["cancel", "refuse"] = "cancel",
        request_id: str | None = None,
        **selector: Unpack[Selector],
    ) -> Task:
        """Begin to cancel jobs as `cancel_all` does. `ids` cannot be given."""
        body = without_none(select=selection(selector), limit=limit, request_id=request_id or new_id())
        if if_reserved != "cancel":
            body["if_reserved"] = if_reserved
        return await self._sender.send(start(bulk.CANCEL_SELECTED_JOBS, body=body))

    async def start_reschedule_all(
        self,
        *,
        by: Seconds | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        limit: int | None = None,
        request_id: str | None = None,
        **selector: Unpack[Selector],
    ) -> Task:
        """Begin to reschedule jobs as `reschedule_all` does. `ids` cannot be given. `delay` counts from now."""
        body = without_none(select=selection(selector), limit=limit, request_id=request_id or new_id())
        body |= reschedule_fields(by, delay, run_at)
        return await self._sender.send(start(bulk.RESCHEDULE_SELECTED_JOBS, body=body))

    async def start_redrive(self, topic: str, *, limit: int | None = None, **conditions: Unpack[JobConditions]) -> Task:
        """Begin to redrive dead jobs as `redrive` does. Raises TopicNotFound."""
        body = {**without_none(limit=limit), **condition_fields(conditions)}
        return await self._sender.send(start(topics.REDRIVE_JOBS, topic, body=body))

    async def start_purge(
        self, topic: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
    ) -> Task:
        """Begin to purge jobs as `purge` does. Raises TopicNotFound."""
        query = without_none(state=state, **condition_fields(conditions), as_task="true")
        return await self._sender.send(start(topics.PURGE_TOPIC, topic, query=query))

    async def tasks(self, *, limit: int | None = None) -> list[Task]:
        """List the tasks that began last, the newest first; at most 100 by default."""
        return (await self._sender.send(request_for(operations.LIST_TASKS, query=without_none(limit=limit)))).tasks

    async def task(self, id: str) -> Task:
        """Get a task. Raises TaskNotFound: there is none, or it ended a week ago."""
        return await self._sender.send(request_for(operations.GET_TASK, id))

    async def stop_task(self, id: str) -> Task:
        """Ask for the end of a task, which may still run for about a second. What is done stays done."""
        return await self._sender.send(request_for(operations.STOP_TASK, id))

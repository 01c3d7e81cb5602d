"""Calls on many jobs, and the tasks that do the same in the background. The methods of both clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from deferd.client.job_requests import new_id
from deferd.client.request_body import (
    JobRef,
    Seconds,
    encode,
    in_rfc_3339,
    instant,
    refuse_unknown,
    seconds,
    without_none,
)
from deferd.client.requests import ApiRequest, reader_of, request_for
from deferd.client.sender import Sender
from deferd.client.topics import JobConditions, condition_fields
from deferd.contract.limits import BULK_MAX, SAMPLES_DEFAULT
from deferd.contract.model import JobState
from deferd.contract.operations import bulk as operations
from deferd.contract.operations import topics
from deferd.contract.operations.bulk import BulkResult, CancelUndone, Task
from deferd.contract.operations.bulk import DryRun as Preview
from deferd.contract.operations.jobs import Job
from deferd.contract.operations.operation import Operation

_BULK_S = 600.0
"""How long the service may take for 100,000 jobs."""


class Selector(TypedDict, total=False):
    """Which jobs a call means: exactly one of `ids`, `tag`, `group` and `state`. All keyword-only."""

    ids: Iterable[JobRef | Job | tuple[str, str]] | None
    """Up to 1000 jobs, or pairs of a topic and an id."""
    tag: str | None
    """The jobs with this tag, in all topics."""
    group: str | None
    """The jobs of this group, in the topics of `topics`."""
    state: Literal["delayed", "ready"] | None
    """The jobs in this state, in the topics of `topics`."""
    due_after: datetime | None
    """With `state`: jobs due at this instant or later."""
    due_before: datetime | None
    """With `state`: jobs due before this instant."""
    cutoff: datetime | None
    """Only jobs that were there, or dead, by then: that of a preview."""
    topics: Sequence[str] | str | None
    """Only jobs of these topics: names, or patterns such as `orders.*`. Required with `state` and `group`."""


def selection(selector: Selector) -> dict[str, Any]:
    """The JSON object of the contract. Raises TypeError for an unknown argument."""
    refuse_unknown(selector, Selector, "selectors")
    select: dict[str, Any] = without_none(**selector)
    if "ids" in select:
        select["ids"] = [_name_of(job) for job in select["ids"]]
    if isinstance(select.get("topics"), str):
        select["topics"] = [select["topics"]]
    return in_rfc_3339(select, ("due_after", "due_before", "cutoff"))


def _name_of(job: JobRef | Job | tuple[str, str]) -> dict[str, str]:
    topic, job_id = (job[0], job[1]) if isinstance(job, tuple) else (job.topic, job.id)
    return {"topic": topic, "id": job_id}


def _reschedule_fields(
    by: Seconds | None, delay: Seconds | None, run_at: datetime | None, spread: Seconds | None
) -> dict[str, Any]:
    """When the jobs are to be due, as fields of the API."""
    return without_none(
        by=None if by is None else seconds(by),
        delay=delay,
        run_at=None if run_at is None else instant("run_at", run_at),
        spread=spread,
    )


def _cancel_fields(if_reserved: Literal["cancel", "refuse"], *, undo: bool) -> dict[str, Any]:
    return {**({} if if_reserved == "cancel" else {"if_reserved": if_reserved}), **({"undo": True} if undo else {})}


class BulkMethods:
    """The calls on many jobs.

    `start_...` begin the same actions in the background, as tasks: they return once the task has begun. Without a
    `limit` they act on all jobs. RateLimited: ten run already.
    """

    _sender: Sender

    async def cancel_all(
        self,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        if_reserved: Literal["cancel", "refuse"] = "cancel",
        request_id: str | None = None,
        undo: bool = False,
        **selector: Unpack[Selector],
    ) -> BulkResult:
        """Cancel all jobs that have a tag, are of a group, in a state, or are named, in any number of topics.

        ::

            client.cancel_all(tag="order-1042")
            client.cancel_all(state="delayed", topics="mail.*")

        The selectors, all keyword-only, are the keys of Selector. Only jobs that were put before the call are
        cancelled, at most `limit` of them. With `dry_run` they are only counted. `if_reserved="refuse"` leaves those
        that a consumer holds. The client makes a `request_id`, so that a call whose response was lost is repeated and
        cancels nothing that was put since. With `undo` and a `request_id` of yours, `undo_cancel` can put the jobs that
        waited back for ten minutes.

        Raises:
            TypeError: a selector is unknown.
            InvalidInput: a value is out of its bounds, or there is not exactly one of `ids`, `tag`, `group` and
                `state`.
        """
        call = {"select": selection(selector), **_cancel_fields(if_reserved, undo=undo)}
        return await self._call(operations.CANCEL_SELECTED_JOBS, call, limit, request_id, dry_run=dry_run)

    async def undo_cancel(self, request_id: str) -> CancelUndone:
        """Put back what `cancel_all` or `start_cancel_all` with `undo` has cancelled within ten minutes.

        Each job is as it was; an id that was put again meanwhile stays as it is.
        """
        request = request_for(operations.UNDO_CANCEL, body=encode({"request_id": request_id}), wait_s=_BULK_S)
        return await self._sender.send(request)

    async def reschedule_all(
        self,
        *,
        by: Seconds | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        spread: Seconds | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
        **selector: Unpack[Selector],
    ) -> BulkResult:
        """Give all selected jobs that are delayed or ready a new due time; the rest is as in `cancel_all`.

        ::

            client.reschedule_all(tag="customer:7", by=timedelta(hours=1))

        Give one of `by`, which may be negative, `delay` and `run_at`. With a `spread` the jobs are not due all at once:
        each is due later by a part of it that depends on its id. No job is moved twice by one call. With a
        `limit`, a call with the same `request_id` moves the next ones; the numbers are those of all calls with it.

        Raises as `cancel_all`.
        """
        call = {"select": selection(selector), **_reschedule_fields(by, delay, run_at, spread)}
        return await self._call(operations.RESCHEDULE_SELECTED_JOBS, call, limit, request_id, dry_run=dry_run)

    async def _call(
        self,
        operation: Operation[BulkResult],
        call: dict[str, Any],
        limit: int | None,
        request_id: str | None,
        *,
        dry_run: bool,
    ) -> BulkResult:
        """Without a `limit` it is repeated until it is complete."""
        call["limit"] = BULK_MAX if limit is None else limit
        if dry_run:
            call["dry_run"] = True
        call["request_id"] = request_id or new_id()
        request = request_for(operation, body=encode(call), wait_s=_BULK_S, repeatable=True)
        while True:
            result = await self._sender.send(request)
            if result.complete or limit is not None or dry_run:
                return result

    async def preview_cancel_all(self, *, limit: int | None = None, **selector: Unpack[Selector]) -> Preview:
        """Count the jobs that `cancel_all` would select, at most 100,000 or `limit`, and change nothing.

        With the result's `cutoff` among the selectors, `cancel_all` and `reschedule_all` act on nothing else.
        """
        size = BULK_MAX if limit is None else limit
        body = encode({"select": selection(selector), "limit": size, "dry_run": True, "samples": SAMPLES_DEFAULT})
        request = request_for(operations.CANCEL_SELECTED_JOBS, body=body, wait_s=_BULK_S, repeatable=True)
        return await self._sender.send(request.reading(reader_of(Preview)))

    async def start_cancel_all(
        self,
        *,
        limit: int | None = None,
        if_reserved: Literal["cancel", "refuse"] = "cancel",
        request_id: str | None = None,
        undo: bool = False,
        **selector: Unpack[Selector],
    ) -> Task:
        """Begin to cancel jobs as `cancel_all` does. `ids` cannot be given."""
        body = without_none(select=selection(selector), limit=limit, request_id=request_id or new_id())
        body |= _cancel_fields(if_reserved, undo=undo)
        return await self._sender.send(_start(operations.CANCEL_SELECTED_JOBS, body=body))

    async def start_reschedule_all(
        self,
        *,
        by: Seconds | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        spread: Seconds | None = None,
        limit: int | None = None,
        request_id: str | None = None,
        **selector: Unpack[Selector],
    ) -> Task:
        """Begin to reschedule jobs as `reschedule_all` does. `ids` cannot be given. `delay` counts from now."""
        body = without_none(select=selection(selector), limit=limit, request_id=request_id or new_id())
        body |= _reschedule_fields(by, delay, run_at, spread)
        return await self._sender.send(_start(operations.RESCHEDULE_SELECTED_JOBS, body=body))

    async def start_redrive(
        self,
        topic: str,
        *,
        limit: int | None = None,
        rate: float | None = None,
        **conditions: Unpack[JobConditions],
    ) -> Task:
        """Begin to redrive dead jobs as `redrive` does, at most `rate` a second. Raises TopicNotFound.

        Each job stays dead until its turn, also when the task is stopped.
        """
        body = {**without_none(limit=limit, rate=rate), **condition_fields(conditions)}
        return await self._sender.send(_start(topics.REDRIVE_JOBS, topic, body=body))

    async def start_purge(
        self, topic: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
    ) -> Task:
        """Begin to purge jobs as `purge` does. Raises TopicNotFound."""
        query = without_none(state=state, **condition_fields(conditions), as_task="true")
        return await self._sender.send(_start(topics.PURGE_TOPIC, topic, query=query))

    async def tasks(self, *, limit: int | None = None) -> list[Task]:
        """List the tasks that began last, the newest first; at most 100 by default."""
        return (await self._sender.send(request_for(operations.LIST_TASKS, query=without_none(limit=limit)))).tasks

    async def task(self, id: str, *, became: bool = False) -> Task:
        """Get a task, or with `became` of a redrive also what became of its jobs.

        Raises TaskNotFound: there is none, or it ended a week ago.
        """
        query = {"became": "true"} if became else None
        return await self._sender.send(request_for(operations.GET_TASK, id, query=query))

    async def stop_task(self, id: str) -> Task:
        """Ask for the end of a task, which may still run for about a second. What is done stays done."""
        return await self._sender.send(request_for(operations.STOP_TASK, id))


def _start(
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

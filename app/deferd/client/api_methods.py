"""The methods of both clients, one for each operation of the HTTP API, as coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, Literal, TypeVar, Unpack

from msgspec.structs import replace

from deferd.client import requests
from deferd.client.activity import ActivityMethods
from deferd.client.attention import AttentionMethods
from deferd.client.batching import Batching
from deferd.client.buffer import PutBuffer
from deferd.client.bulk import BulkMethods
from deferd.client.calendars import CalendarMethods
from deferd.client.durations import Seconds
from deferd.client.errors import NoAnswer
from deferd.client.events import EventMethods
from deferd.client.history import HistoryMethods
from deferd.client.idempotency import cancel_once, finish_once, new_id, put_batch_once, with_id, with_ids
from deferd.client.inspection import InspectionMethods
from deferd.client.jobs import JobRef
from deferd.client.joined_calls import JoinedCalls
from deferd.client.policy_options import PolicyOptions
from deferd.client.push import PushMethods
from deferd.client.put_options import PutOptions, put_fields, set_options
from deferd.client.request_body import JobToFinish, JobToPut, in_seconds, set_fields, without_none
from deferd.client.requests import ApiRequest, JobConditions, JobFilters, Result
from deferd.client.schedules import ScheduleMethods
from deferd.client.sender import Sender
from deferd.client.spans import NO_SPANS, Spans
from deferd.client.system import SystemMethods
from deferd.client.tasks import TaskMethods
from deferd.client.transport import StreamingTransport
from deferd.contract.errors import DeferdError, JobNotFound, PayloadTooLarge
from deferd.contract.limits import BATCH_MAX, REDRIVE_DEFAULT, WAIT_DEFAULT_S
from deferd.contract.model import DurabilityLevel, JobState, TopicSettings
from deferd.contract.responses.audits import StoreAudit, TopicAudit
from deferd.contract.responses.bulk import DryRun as Preview
from deferd.contract.responses.job_calls import Cancelled, CancelResult, FinishResult, PutResult, Released
from deferd.contract.responses.jobs import Delivery, Job
from deferd.contract.responses.topics import TopicPage, TopicView

Item = TypeVar("Item")


class Unset(Enum):
    """The default of arguments for which None has a meaning."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class ApiMethods(
    ActivityMethods,
    AttentionMethods,
    BulkMethods,
    CalendarMethods,
    EventMethods,
    HistoryMethods,
    InspectionMethods,
    PushMethods,
    ScheduleMethods,
    SystemMethods,
    TaskMethods,
):
    """The operations of the HTTP API. Each raises the error that the service names, or CallFailed.

    The base class of AsyncClient; `Client` runs the same coroutines over a blocking transport.
    """

    def __init__(
        self, transport: StreamingTransport, sender: Sender, batching: Batching | None = None, spans: Spans = NO_SPANS
    ) -> None:
        self._transport = transport
        self._sender = sender
        self._calls = JoinedCalls(sender, batching)
        self.spans = spans

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of the service, or those of its replicas."""
        return self._sender.urls

    async def send(self, call: ApiRequest[Result], *, retry_for: float | None = None) -> Result:
        """Send a request made by `deferd.client.requests`, for operations that have no method.

        `retry_for` overrides that of the client.
        """
        return await self._sender.send(call, retry_for_s=retry_for)

    # Producers

    async def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> Job:
        """Put a job, due after `delay` or at `run_at`, otherwise at once. Returns the stored job.

        `body` is any JSON value, or a value that pydantic can write as JSON. The options, all keyword-only, are the
        keys of PutOptions.

        The client makes an `id` if there is none, and repeats a put whose response was lost: a stored job with this id
        that equals the put counts as stored by it. A job that was finished or cancelled between two attempts is put
        again by the second; `retain` prevents that for finished jobs.

        Puts of one topic that arrive while another is under way go together in the next request; see
        `deferd.client.batching`. Each has its own result, and a put that is cancelled affects no other.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: a value is out of its bounds, or both `delay` and `run_at` are given.
            JobExists: the id is taken and `on_conflict` is `reject`, or `unique_for` keeps it taken. `state` and
                `until` of the error say by what, and for how long.
            JobReserved: the id is taken, `on_conflict` is `replace` and a consumer holds the job.
            DurabilityUnavailable: the store cannot give the `durability`.
            PayloadTooLarge: `on_conflict` is `append`, and the job would have too many items, or too large ones.
            NoAnswer: the response to an `append` was lost: it may have added its body or not.
        """
        fields = put_fields(topic, body, options)
        with self.spans.put((fields,)):
            return await self._calls.put(with_id(fields))

    async def put_many(self, jobs: Iterable[JobToPut] | AsyncIterable[JobToPut]) -> AsyncIterator[PutResult]:
        """Put any number of jobs, and yield the result of each, in order.

        Jobs are sent in batches of up to 1000 as the results are consumed: at most one batch is held in memory. Each
        job is a PutJob or a mapping of the arguments of `put`. A batch is refused as a whole, with InvalidInput, if one
        of its jobs is invalid: the path in the error begins with the job's position among all jobs, and earlier
        batches are stored.
        """
        done = 0
        async for batch in _batches(jobs):
            for result in await self._put_batch(batch, first_index=done):
                yield result
            done += len(batch)

    async def put_batch(self, jobs: Sequence[JobToPut]) -> list[PutResult]:
        """Put 1 to 1000 jobs and return a result for each, in order. `put_many` takes any number."""
        return await self._put_batch(jobs)

    async def _put_batch(self, jobs: Sequence[JobToPut], first_index: int = 0) -> list[PutResult]:
        fields = [set_fields(job) for job in jobs]
        with self.spans.put(fields) as span:
            results = await put_batch_once(self._sender, with_ids(fields), first_index=first_index)
            span.refused(result.code for result in results)
            return results

    def buffer(self) -> PutBuffer:
        """Deprecated: concurrent puts share requests by themselves. An object whose `put` returns a PutResult."""
        return PutBuffer(self._calls)

    async def get(self, topic: str, id: str) -> Job:
        """Get a job. Raises JobNotFound."""
        return await self._sender.send(requests.get(topic, id))

    async def change(
        self,
        topic: str,
        id: str,
        *,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        body: Any = UNSET,
        tags: Sequence[str] | None = None,
        headers: Mapping[str, str] | None = None,
        **policy: Unpack[PolicyOptions],
    ) -> Job:
        """Reschedule or change a delayed or ready job and return it. Arguments that are left out change nothing.

        `policy` are the keys of PolicyOptions: `ttr`, `max_attempts` and so on. `tags` and `headers` replace all
        earlier ones; an empty value removes them. A new due time is moved by window and spread.

        Raises:
            TypeError: an option is unknown.
            JobReserved: a consumer holds it.
            JobNotFound: there is no such job, or it is dead or finished.
        """
        fields = without_none(delay=delay, run_at=run_at, tags=tags, headers=headers)
        if body is not UNSET:
            fields["body"] = body
        fields |= in_seconds(set_options(policy, PolicyOptions))
        return await self._sender.send(requests.change(topic, id, fields))

    async def cancel(
        self,
        topic: str,
        id: str,
        *,
        if_reserved: Literal["cancel", "refuse"] = "cancel",
        follow_up: Literal["cancel", "keep"] = "cancel",
        durability: DurabilityLevel | None = None,
    ) -> Cancelled:
        """Cancel a job in any state; it is not delivered after this. `was` in the result is the state it had.

        With `durability="replicated:1"` the cancel holds also when the store's primary is lost right after it.

        Raises:
            JobReserved: a consumer holds it and `if_reserved` is `refuse`.
            JobNotFound: there is no such job.
            NoAnswer: a response was lost and the job is gone: by this cancel or before it.
        """
        if durability is None:
            return await self._calls.cancel(topic, id, if_reserved, follow_up)
        request = requests.cancel(topic, id, if_reserved=if_reserved, follow_up=follow_up, durability=durability)
        return await cancel_once(self._sender, request)

    async def cancel_many(
        self,
        topic: str,
        ids: Sequence[str],
        *,
        if_reserved: Literal["cancel", "refuse"] = "cancel",
        follow_up: Literal["cancel", "keep"] = "cancel",
    ) -> list[CancelResult]:
        """Cancel any number of jobs of one topic, in batches of 1000. Returns a result for each, in order."""
        results: list[CancelResult] = []
        for start in range(0, len(ids), BATCH_MAX):
            request = requests.cancel_many(
                topic, ids[start : start + BATCH_MAX], if_reserved=if_reserved, follow_up=follow_up
            )
            outcome = await self._sender.try_to_send(request)
            results += [
                replace(result, status=503, code=NoAnswer.code)
                if outcome.doubtful and result.code == JobNotFound.code
                else result
                for result in outcome.result()
            ]
        return results

    # Consumers

    async def pop(
        self,
        topics: str | Sequence[str],
        *,
        count: int = 1,
        wait: Seconds = WAIT_DEFAULT_S,
        ttr: Seconds | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
    ) -> list[Delivery]:
        """Take up to `count` (1 to 1000) ready jobs, waiting up to `wait` (0 to 60 s) for the first.

        Several topics are served in strict priority. Patterns may be among them, such as `orders.*`, where `*` stands
        for any characters: topics that match come after all that are named and take turns, and new ones join while the
        pop waits. `ttr` is the length of the lease and overrides that of each job; `consumer` is shown as the holder. A
        pop whose response was lost is repeated with the same `request_id`, which returns the same jobs; the client
        makes one.

        Raises:
            InvalidInput: the patterns match more than 1000 topics, or another value is invalid.
        """
        request = requests.pop(
            topics, count=count, wait=wait, ttr=ttr, consumer=consumer, request_id=request_id or new_id()
        )
        return await self.spans.pop(self._sender.send(request), topics, consumer)

    async def finish(self, job: Delivery | JobRef, result: Any = None, *, put: Sequence[JobToPut] = ()) -> None:
        """Finish a job. `result`, a JSON value, is kept with the job if that has a `retain`.

        `put` are up to 10 jobs, as for `put_many`, that are put in the same step: all of it is done, or nothing. When a
        response was lost and the finish is repeated, nothing is put twice.

        Raises:
            ReceiptStale: the delivery is over.
            JobCancelled: the job was cancelled in the meantime.
            JobNotFound: the job is gone.
            DifferentShard: a job to put is in another shard of the store. Nothing was done.
            DeferdError: as `put`, when one of the jobs is refused. Nothing was done.
        """
        with self.spans.settle("finish", job.topic, (job,)):
            if put:
                await finish_once(self._sender, job, result, with_ids(map(set_fields, put)))
            else:
                await self._calls.finish(job, result)

    async def finish_many(self, topic: str, jobs: Sequence[JobToFinish]) -> list[FinishResult]:
        """Finish any number of jobs of one topic, in batches of 1000. Returns a result for each, in order.

        It puts no jobs: only `finish` does.
        """
        results: list[FinishResult] = []
        for start in range(0, len(jobs), BATCH_MAX):
            batch = jobs[start : start + BATCH_MAX]
            with self.spans.settle("finish", topic, batch) as span:
                finished = await self._finish_batch(topic, batch)
                span.refused(result.code for result in finished)
            results += finished
        return results

    async def _finish_batch(self, topic: str, jobs: Sequence[JobToFinish]) -> list[FinishResult]:
        outcome = await self._sender.try_to_send(requests.finish_many(topic, jobs))
        if isinstance(outcome.error, PayloadTooLarge) and len(jobs) > 1:
            half = len(jobs) // 2
            return await self._finish_batch(topic, jobs[:half]) + await self._finish_batch(topic, jobs[half:])
        results = outcome.result()
        if not outcome.doubtful:
            return results
        return [  # see finish_once
            replace(result, status=200, code=None) if result.code == JobNotFound.code else result for result in results
        ]

    async def check_many(self, topic: str, jobs: Sequence[Delivery | JobRef]) -> list[FinishResult]:
        """Tell which of 1 to 1000 deliveries of a topic are over, and why. It changes nothing and extends no lease."""
        return await self._sender.send(requests.check_many(topic, jobs))

    async def return_many(self, topic: str, jobs: Sequence[Delivery | JobRef]) -> list[FinishResult]:
        """Return 1 to 1000 deliveries that nobody worked on to the head of the queue. No attempt is counted."""
        return await self._sender.send(requests.return_many(topic, jobs))

    async def release(
        self, job: Delivery | JobRef, *, delay: Seconds | None = None, error: str | None = None, count: bool = True
    ) -> Released:
        """Return a job to the queue: it is delivered again after `delay`, by default after its backoff.

        `error` is kept as its `last_error`. With ``count=False`` the delivery does not count as an attempt, but as one
        of the job's `snoozes`; this needs a `delay` of at least 0.1 s. Raises as `finish`.
        """
        with self.spans.settle("release", job.topic, (job,)):
            return await self._sender.send(requests.release(job, delay=delay, error=error, count=count))

    async def touch(self, job: Delivery | JobRef, *, ttr: Seconds | None = None) -> datetime:
        """Extend the lease to `ttr` from now, by default the job's, and return its end. Raises as `finish`."""
        return await self._sender.send(requests.touch(job, ttr=ttr))

    async def bury(self, job: Delivery | JobRef, *, error: str | None = None) -> None:
        """Make a job dead. Raises as `finish`."""
        with self.spans.settle("bury", job.topic, (job,)):
            await self._sender.send(requests.bury(job, error=error))

    # Topics

    async def topics(self) -> AsyncIterator[TopicView]:
        """List all topics, in the order of their names.

        Topics in an unreachable shard of the store are left out; `topic_pages` names them.
        """
        async for page in self.topic_pages():
            for view in page.topics:
                yield view

    async def topic_pages(self) -> AsyncIterator[TopicPage]:
        """List all topics page by page, with the names of those left out. Two pages may name the same one."""
        cursor = None
        while True:
            page = await self._sender.send(requests.topics(cursor))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def topic(self, topic: str) -> TopicView:
        """Get a topic: its settings and counts. Raises TopicNotFound."""
        return await self._sender.send(requests.topic(topic))

    async def set_topic(self, topic: str, settings: TopicSettings | Mapping[str, Any]) -> TopicView:
        """Replace all settings of a topic: those left out fall back to the service's defaults."""
        return await self._sender.send(requests.set_topic(topic, settings))

    async def pause(self, topic: str, *, reason: str | None = None) -> TopicView:
        """Stop delivering the topic's jobs; everything else continues. `reason` is shown to people meanwhile.

        A topic that does not exist yet is created, so that consumers wait from its first job on.
        """
        return await self._sender.send(requests.pause(topic, reason))

    async def resume(self, topic: str) -> TopicView:
        """End a pause. Raises TopicNotFound."""
        return await self._sender.send(requests.resume(topic))

    async def jobs(
        self, topic: str, *, state: JobState | str | None = None, **filters: Unpack[JobFilters]
    ) -> AsyncIterator[Job]:
        """List the jobs of a topic, or those in one state. One whose state changes meanwhile may be missed or repeated.

        The filters, all keyword-only, are the keys of JobFilters: `tag`, `due_after`, `due_before`, `id_prefix`,
        `error`, `order` and `bodies`. Raises TopicNotFound.
        """
        cursor = None
        while True:
            page, cursor = await self._sender.send(requests.jobs(topic, state=state, cursor=cursor, **filters))
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

        The conditions, all keyword-only, are the keys of JobConditions: `tag`, `reason`, `error` and `cutoff`.
        """
        return await self._sender.send(requests.redrive(topic, ids=ids, limit=limit, **conditions))

    async def preview_redrive(
        self,
        topic: str,
        *,
        ids: Sequence[str] | None = None,
        limit: int = REDRIVE_DEFAULT,
        **conditions: Unpack[JobConditions],
    ) -> Preview:
        """Count what `redrive` would do, and change nothing. With the result's `cutoff` it redrives nothing else."""
        return await self._sender.send(requests.preview_redrive(topic, ids=ids, limit=limit, **conditions))

    async def purge(
        self, topic: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
    ) -> int:
        """Remove all jobs of a topic, or those in one state, with a tag, or dead for a reason, and return how many.

        The conditions are those of `redrive`. Consumers that hold one get JobCancelled. Raises TopicNotFound.
        """
        return await self._sender.send(requests.purge(topic, state=state, **conditions))

    async def preview_purge(
        self, topic: str, *, state: JobState | str | None = None, **conditions: Unpack[JobConditions]
    ) -> Preview:
        """Count what `purge` would remove, and change nothing. With the result's `cutoff` it removes nothing else."""
        return await self._sender.send(requests.preview_purge(topic, state=state, **conditions))

    # Operations

    async def audit(self, topic: str) -> TopicAudit:
        """Check the consistency of everything that the store holds of a topic, without changing it.

        The time it takes grows with the number of jobs. Load on the topic causes no false findings. Raises
        TopicNotFound if the store holds nothing of the topic.
        """
        return await self._sender.send(requests.audit(topic))

    async def repair(self, topic: str) -> TopicAudit:
        """Check a topic like `audit` and repair the findings. Returns what was repaired."""
        return await self._sender.send(requests.repair(topic))

    async def audit_store(self) -> StoreAudit:
        """Check the store outside single topics, and look for topics that are missing from the list of topics."""
        return await self._sender.send(requests.audit_store())

    async def repair_store(self) -> StoreAudit:
        """Check like `audit_store` and repair the findings. Unlisted topics are repaired by `repair` of each."""
        return await self._sender.send(requests.repair_store())

    async def is_ready(self) -> bool:
        """Whether the service responds and is ready to work. Not retried."""
        try:
            await self._sender.send(requests.ready(), retry_for_s=0)
        except DeferdError:
            return False
        return True

    async def metrics(self) -> str:
        """The service's metrics in the text format of Prometheus."""
        return await self._sender.send(requests.metrics())


async def _batches(jobs: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterator[list[Item]]:
    batch: list[Item] = []
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            batch.append(job)
            if len(batch) == BATCH_MAX:
                yield batch
                batch = []
    else:
        for job in jobs:
            batch.append(job)
            if len(batch) == BATCH_MAX:
                yield batch
                batch = []
    if batch:
        yield batch

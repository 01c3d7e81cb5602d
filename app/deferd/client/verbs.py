"""All that a client can do, as coroutines over a Sender; the base of AsyncClient, and what Client is made from."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack

from deferd.client import requests
from deferd.client.buffer import PutBuffer
from deferd.client.durations import Seconds
from deferd.client.errors import NoAnswer, UnexpectedAnswer
from deferd.client.idempotency import is_as_put, new_id, with_id
from deferd.client.jobs import (
    Cancelled,
    Delivery,
    FinishResult,
    Job,
    JobRef,
    PutResult,
    Released,
    StoreAudit,
    TopicAudit,
    TopicPage,
    TopicView,
)
from deferd.client.put_options import Backoff, PutOptions, put_fields
from deferd.client.requests import UNSET, JobToFinish, JobToPut, Unset
from deferd.client.retry import Sender
from deferd.client.transport import Network
from deferd.contract.errors import (
    DeferdError,
    FieldError,
    InvalidInput,
    JobExists,
    JobNotFound,
    JobReserved,
    PayloadTooLarge,
)
from deferd.contract.limits import BATCH_MAX, REDRIVE_DEFAULT, WAIT_DEFAULT_S
from deferd.contract.model import JobState, TopicSettings

Item = TypeVar("Item")


class Verbs:
    """The calls of the HTTP contract. Each raises the error that the service names, or CallFailed."""

    def __init__(self, network: Network, sender: Sender) -> None:
        self._network = network
        self._sender = sender

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the service is: one base URL, or those of several replicas."""
        return self._sender.urls

    async def send(self, call: requests.Call[requests.Answer], *, retry_for: float | None = None) -> requests.Answer:
        """Send a call made by `deferd.client.requests`; the other methods are the usual ones of these.

        `retry_for` in place of the client's own.
        """
        return await self._sender.send(call, retry_for_s=retry_for)

    # Producers

    async def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> Job:
        """Put a job, due after `delay` or at `run_at`, else at once; returns it as it is stored.

        `body` is any JSON value, or what pydantic can write as one. The options, all keyword-only, are the keys of
        PutOptions: `id`, `delay`, `run_at`, `ttr`, `max_attempts`, `backoff`, `ttl`, `retain`, `on_conflict`,
        `traceparent` and `durability`.

        A put is repeated when its answer was lost, and then reported as done: a job of that id which is in everything
        as this put says counts as its own. Without an `id` the client makes one. A job that was finished or cancelled
        between the two tries is put again by the second; `retain` guards against the former.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: a value is out of its bounds, or both `delay` and `run_at` are given.
            JobExists: the id is taken and `on_conflict` is `reject`.
            JobReserved: the id is taken, `on_conflict` is `replace` and a consumer holds the job.
            DurabilityUnavailable: the store cannot give the `durability`.
        """
        fields = with_id(put_fields(topic, body, options))
        outcome = await self._sender.try_to_send(requests.put(fields))
        if outcome.doubtful and isinstance(outcome.error, JobExists | JobReserved):
            stored = await self._stored(fields)
            if stored is None:
                raise NoAnswer(_taken_and_gone(fields)) from outcome.error
            if is_as_put(stored, fields):
                # The refusal itself was as durable as the put is to be, and the job that stood in its way with it.
                return Job({**stored.fields, **_given(durability=outcome.error.durability)})
        return outcome.result()

    async def put_many(self, jobs: Iterable[JobToPut] | AsyncIterable[JobToPut]) -> AsyncIterator[PutResult]:
        """Put any number of jobs, and yield what became of each, in order.

        They go in batches of up to 1000, as the results are asked for: at most one batch is held in memory. Each job is
        a PutJob or a mapping of the arguments of `put`. A batch is refused as a whole, by InvalidInput, when one of its
        jobs is not valid: the path in the error begins with the job's place among all, and the batches before it are
        stored.
        """
        done = 0
        async for batch in _batches(jobs):
            fields = [with_id(requests.job_fields(job)) for job in batch]
            for result in await self._put_batch(fields, first_index=done):
                yield result
            done += len(batch)

    async def put_batch(self, jobs: Sequence[JobToPut]) -> list[PutResult]:
        """Put 1 to 1000 jobs, each answered on its own and in order; see `put_many`, which takes any number."""
        return await self._put_batch([with_id(requests.job_fields(job)) for job in jobs])

    async def _put_batch(
        self, jobs: Sequence[dict[str, Any]], *, first_index: int = 0, doubtful: bool = False
    ) -> list[PutResult]:
        """Put up to 1000 jobs that have an id each; in several calls when the service finds one too large.

        `first_index` is the first one's place, for errors. `doubtful`: they may have been put before.
        """
        outcome = await self._sender.try_to_send(requests.put_many(jobs))
        if isinstance(outcome.error, PayloadTooLarge) and len(jobs) > 1:
            half = len(jobs) // 2
            return [
                *await self._put_batch(jobs[:half], first_index=first_index, doubtful=doubtful),
                *await self._put_batch(jobs[half:], first_index=first_index + half, doubtful=doubtful),
            ]
        if isinstance(outcome.error, PayloadTooLarge):
            return [PutResult(jobs[0]["topic"], jobs[0]["id"], 413, PayloadTooLarge.code, str(outcome.error))]
        if isinstance(outcome.error, InvalidInput):
            raise _placed(outcome.error, first_index) from outcome.error
        results = outcome.result()
        if len(results) != len(jobs):
            raise UnexpectedAnswer(200, f"a batch of {len(jobs)} puts was answered for {len(results)}")
        if not (doubtful or outcome.doubtful):
            return results
        return [
            await self._without_doubt(fields, result) if result.code in {JobExists.code, JobReserved.code} else result
            for fields, result in zip(jobs, results, strict=True)
        ]

    async def _without_doubt(self, fields: Mapping[str, Any], refused: PutResult) -> PutResult:
        """What became of a job that was refused because of one that may be itself, stored by an earlier try."""
        stored = await self._stored(fields)
        if stored is None:
            return refused._replace(status=503, code=NoAnswer.code, detail=_taken_and_gone(fields))
        return refused._replace(status=201, code=None) if is_as_put(stored, fields) else refused

    def buffer(self) -> PutBuffer:
        """Joins puts of concurrent tasks into batches; see PutBuffer."""
        return PutBuffer(self._put_batch, self._network.lock())

    async def _stored(self, fields: Mapping[str, Any]) -> Job | None:
        """The stored job of this id, None when there is none."""
        try:
            return await self.send(requests.look(fields["topic"], fields["id"]))
        except JobNotFound:
            return None

    async def look(self, topic: str, id: str) -> Job:
        """The job as it is now, changing nothing. Raises JobNotFound."""
        return await self.send(requests.look(topic, id))

    async def change(
        self,
        topic: str,
        id: str,
        *,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        body: Any = UNSET,
        ttr: Seconds | None = None,
        max_attempts: int | Unset | None = UNSET,
        backoff: Backoff | None = None,
        ttl: Seconds | Unset | None = UNSET,
        retain: Seconds | None = None,
    ) -> Job:
        """Reschedule or change a delayed or ready job; what is left out stays. Returns the job as it is now.

        None for `max_attempts` and `ttl` lifts them.

        Raises:
            JobReserved: a consumer holds it.
            JobNotFound: there is no such job, or it is dead or finished.
        """
        fields = _given(delay=delay, run_at=run_at, ttr=ttr, backoff=backoff, retain=retain)
        optional = {"body": body, "max_attempts": max_attempts, "ttl": ttl}
        fields |= {name: value for name, value in optional.items() if value is not UNSET}
        return await self.send(requests.change(topic, id, fields))

    async def cancel(self, topic: str, id: str, *, if_reserved: Literal["cancel", "refuse"] = "cancel") -> Cancelled:
        """Cancel a job in any state; it is not handed out after this. `was` in the answer tells if it was in time.

        Raises:
            JobReserved: a consumer holds it and `if_reserved` is `refuse`.
            JobNotFound: there is no such job.
            NoAnswer: an answer was lost and the job is not there now: cancelled by this call, or gone before it.
        """
        outcome = await self._sender.try_to_send(requests.cancel(topic, id, if_reserved=if_reserved))
        if outcome.doubtful and isinstance(outcome.error, JobNotFound):
            text = f"the answer to a cancel of {topic}/{id} was lost; the job is gone, by this cancel or before it"
            raise NoAnswer(text) from outcome.error
        return outcome.result()

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

        Several topics are served in strict priority. `ttr` is the length of the lease, in place of each job's own;
        `consumer` is shown as the holder. A pop whose answer was lost is asked again with the same `request_id`, which
        gives the same jobs; the client makes one.
        """
        return await self.send(
            requests.pop(
                topics,
                count=count,
                wait=wait,
                ttr=ttr,
                consumer=consumer,
                request_id=request_id or new_id(),
            )
        )

    async def finish(self, job: Delivery | JobRef, result: Any = None) -> None:
        """Say that a job is done. `result`, a JSON value, is kept with its record if the job has a `retain`.

        Raises:
            ReceiptStale: the delivery is over.
            JobCancelled: the job was cancelled meanwhile.
            JobNotFound: it is gone.
        """
        outcome = await self._sender.try_to_send(requests.finish(job, result))
        # A job without `retain` is gone when it is finished: after a lost answer, that is what "not found" says.
        if not (outcome.doubtful and isinstance(outcome.error, JobNotFound)):
            outcome.result()

    async def finish_many(self, topic: str, jobs: Sequence[JobToFinish]) -> list[FinishResult]:
        """Finish jobs of one topic, each answered on its own and in order; none for no jobs. In batches of 1000."""
        results: list[FinishResult] = []
        for start in range(0, len(jobs), BATCH_MAX):
            results += await self._finish_batch(topic, jobs[start : start + BATCH_MAX])
        return results

    async def _finish_batch(self, topic: str, jobs: Sequence[JobToFinish]) -> list[FinishResult]:
        outcome = await self._sender.try_to_send(requests.finish_many(topic, jobs))
        if isinstance(outcome.error, PayloadTooLarge) and len(jobs) > 1:
            half = len(jobs) // 2
            return await self._finish_batch(topic, jobs[:half]) + await self._finish_batch(topic, jobs[half:])
        results = outcome.result()
        if not outcome.doubtful:
            return results
        return [  # see finish
            result._replace(status=200, code=None) if result.code == JobNotFound.code else result for result in results
        ]

    async def release(
        self, job: Delivery | JobRef, *, delay: Seconds | None = None, error: str | None = None
    ) -> Released:
        """Give a job back: it is handed out again after `delay`, or after its backoff when that is left out.

        `error` is kept as its `last_error`. Raises as `finish`.
        """
        return await self.send(requests.release(job, delay=delay, error=error))

    async def touch(self, job: Delivery | JobRef, *, ttr: Seconds | None = None) -> datetime:
        """Extend the lease to `ttr` from now, the job's own when left out; returns when it ends. Raises as `finish`."""
        return await self.send(requests.touch(job, ttr=ttr))

    async def bury(self, job: Delivery | JobRef, *, error: str | None = None) -> None:
        """Move a job in hand to the dead ones. Raises as `finish`."""
        await self.send(requests.bury(job, error=error))

    # Topics

    async def topics(self) -> AsyncIterator[TopicView]:
        """All topics as they stand, in the order of their names.

        Those in a shard of the store that cannot be reached are left out; `topic_pages` names them.
        """
        async for page in self.topic_pages():
            for view in page.topics:
                yield view

    async def topic_pages(self) -> AsyncIterator[TopicPage]:
        """The same page by page, with what is left out. A name may be left out of two pages."""
        cursor = None
        while True:
            page = await self.send(requests.topics(cursor))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def topic(self, topic: str) -> TopicView:
        """The topic as it stands. Raises TopicNotFound."""
        return await self.send(requests.topic(topic))

    async def set_topic(self, topic: str, settings: TopicSettings | Mapping[str, Any]) -> TopicView:
        """Replace the topic's settings as a whole: what they leave out falls back to the service's default."""
        return await self.send(requests.set_topic(topic, settings))

    async def pause(self, topic: str) -> TopicView:
        """Stop handing out the topic's jobs; everything else goes on.

        Raises TopicNotFound: a topic that has neither jobs nor settings yet is created by `set_topic`.
        """
        return await self.send(requests.pause(topic))

    async def resume(self, topic: str) -> TopicView:
        """End a pause. Raises TopicNotFound."""
        return await self.send(requests.resume(topic))

    async def jobs(self, topic: str, *, state: JobState | str | None = None) -> AsyncIterator[Job]:
        """All jobs of a topic, or those in one state. One that changes its state meanwhile may be missed or met twice.

        Raises TopicNotFound.
        """
        cursor = None
        while True:
            page, cursor = await self.send(requests.jobs(topic, state=state, cursor=cursor))
            for job in page:
                yield job
            if cursor is None:
                return

    async def redrive(self, topic: str, *, ids: Sequence[str] | None = None, limit: int = REDRIVE_DEFAULT) -> int:
        """Make dead jobs ready again: those of `ids`, else the oldest `limit`; returns how many."""
        return await self.send(requests.redrive(topic, ids=ids, limit=limit))

    async def purge(self, topic: str, *, state: JobState | str | None = None) -> int:
        """Remove all jobs of a topic, or those in one state, and return how many.

        Holders of reserved ones are told that they are cancelled. Raises TopicNotFound.
        """
        return await self.send(requests.purge(topic, state=state))

    # Operations

    async def audit(self, topic: str) -> TopicAudit:
        """Check all that the store holds of a topic, changing nothing; takes as long as there are jobs.

        A topic under load raises no false alarm. Raises TopicNotFound when there is nothing of it.
        """
        return await self.send(requests.audit(topic))

    async def repair(self, topic: str) -> TopicAudit:
        """As `audit`, and mend what is found; returns what was mended."""
        return await self.send(requests.repair(topic))

    async def audit_store(self) -> StoreAudit:
        """Look for topics that no list shows, and for what else is wrong beyond single topics."""
        return await self.send(requests.audit_store())

    async def repair_store(self) -> StoreAudit:
        """As `audit_store`, and mend what is found; unlisted topics are mended by a `repair` of each."""
        return await self.send(requests.repair_store())

    async def is_ready(self) -> bool:
        """Whether the service answers now and can work; asked once."""
        try:
            await self.send(requests.ready(), retry_for=0)
        except DeferdError:
            return False
        return True

    async def metrics(self) -> str:
        """The service's metrics in Prometheus' text format."""
        return await self.send(requests.metrics())


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _taken_and_gone(fields: Mapping[str, Any]) -> str:
    return (
        f"an answer to the put of {fields['topic']}/{fields['id']} was lost; a job of this id was there when it was "
        "asked again, and is gone: this one, which was finished or cancelled since, or another"
    )


def _placed(error: DeferdError, first_index: int) -> DeferdError:
    """An InvalidInput of one batch as one of the whole stream."""
    if not isinstance(error, InvalidInput):
        return error
    faults = []
    for fault in error.field_errors:
        path = fault.path
        if len(path) > 2 and path[:2] == ("body", "jobs") and isinstance(path[2], int):
            path = (first_index + path[2], *path[3:])
        faults.append(FieldError(path, fault.message, fault.value))
    return InvalidInput(faults)


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

"""For consumers: pop jobs, then finish, release, touch, bury, check and return them. The methods of both clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from deferd.client.job_requests import finish_once, new_id, on_delivery, with_ids
from deferd.client.joined_calls import JoinedCalls
from deferd.client.request_body import (
    JobRef,
    JobToFinish,
    JobToPut,
    Seconds,
    encode,
    finish_item,
    listed,
    seconds,
    set_fields,
    without_none,
)
from deferd.client.requests import ApiRequest, read_nothing, reader_of, request_for
from deferd.client.sender import Sender
from deferd.client.spans import Spans
from deferd.contract.errors import JobNotFound, PayloadTooLarge
from deferd.contract.limits import BATCH_MAX, WAIT_DEFAULT_S
from deferd.contract.operations import jobs as operations
from deferd.contract.operations.jobs import POP_JOBS, Delivery, FinishResult, FinishResults, Released
from deferd.contract.operations.operation import Operation


def pop(
    topics: str | Sequence[str],
    *,
    count: int = 1,
    wait: Seconds = WAIT_DEFAULT_S,
    ttr: Seconds | None = None,
    consumer: str | None = None,
    request_id: str | None = None,
) -> ApiRequest[list[Delivery]]:
    """`POST /topics/{topic}/pop`: up to `count` jobs of one topic, or of several topics and patterns."""
    wait_s = seconds(wait)
    query = without_none(count=count, wait=wait_s, ttr=ttr, consumer=consumer, request_id=request_id)
    repeatable = request_id is not None
    request = request_for(POP_JOBS, listed(topics), query=query, wait_s=wait_s, repeatable=repeatable)
    return request.giving(lambda popped: popped.jobs)


def finish_many(topic: str, jobs: Iterable[JobToFinish]) -> ApiRequest[list[FinishResult]]:
    """`POST /topics/{topic}/finish`: 1 to 1000 jobs of one topic, as deliveries or with a result each."""
    items = [finish_item(job) for job in jobs]
    repeatable = all("receipt" in item for item in items)
    request = request_for(operations.FINISH_JOBS, topic, body=encode({"jobs": items}), repeatable=repeatable)
    return request.giving(lambda batch: batch.results)


def _on_deliveries(
    operation: Operation[Any], topic: str, jobs: Iterable[Delivery | JobRef], **fields: Any
) -> ApiRequest[FinishResults]:
    items = [finish_item(job) for job in jobs]
    repeatable = all("receipt" in item for item in items)
    request = request_for(operation, topic, body=encode({"jobs": items, **fields}), repeatable=repeatable)
    return request.reading(reader_of(FinishResults))


class ConsumerMethods:
    """The calls of consumers."""

    _sender: Sender
    _calls: JoinedCalls
    spans: Spans

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
        request = pop(topics, count=count, wait=wait, ttr=ttr, consumer=consumer, request_id=request_id or new_id())
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
        outcome = await self._sender.try_to_send(finish_many(topic, jobs))
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
        return (await self._sender.send(_on_deliveries(operations.CHECK_JOBS, topic, jobs))).results

    async def return_many(
        self, topic: str, jobs: Sequence[Delivery | JobRef], *, consumer: str | None = None
    ) -> list[FinishResult]:
        """Return 1 to 1000 deliveries that nobody worked on to the head of the queue. No attempt is counted.

        A job without a receipt is taken from the consumer that holds it; with `consumer` only from this one. If that is
        at work, the job may run twice.
        """
        request = _on_deliveries(operations.RETURN_JOBS, topic, jobs, **without_none(consumer=consumer))
        return (await self._sender.send(request)).results

    async def release(
        self, job: Delivery | JobRef, *, delay: Seconds | None = None, error: str | None = None, count: bool = True
    ) -> Released:
        """Return a job to the queue: it is delivered again after `delay`, by default after its backoff.

        `error` is kept as its `last_error`. With ``count=False`` the delivery does not count as an attempt, but as one
        of the job's `snoozes`; this needs a `delay` of at least 0.1 s. Raises as `finish`.
        """
        fields = without_none(delay=delay, error=error)
        if not count:
            fields["count"] = False
        with self.spans.settle("release", job.topic, (job,)):
            return await self._sender.send(on_delivery(operations.RELEASE_JOB, job, fields))

    async def touch(self, job: Delivery | JobRef, *, ttr: Seconds | None = None, progress: Any = None) -> datetime:
        """Extend the lease to `ttr` from now, by default the job's, and return its end. Raises as `finish`.

        `progress` is shown to all who look at the job or wait for it: a number from 0 to 1, or any JSON value of at
        most 1024 bytes.
        """
        request = on_delivery(operations.TOUCH_JOB, job, without_none(ttr=ttr, progress=progress))
        return (await self._sender.send(request)).reserved_until

    async def bury(self, job: Delivery | JobRef, *, error: str | None = None) -> None:
        """Make a job dead. Raises as `finish`."""
        with self.spans.settle("bury", job.topic, (job,)):
            request = on_delivery(operations.BURY_JOB, job, without_none(error=error))
            await self._sender.send(request.reading(read_nothing))

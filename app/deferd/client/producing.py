"""For producers: put, get, change and cancel jobs. The methods of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Any, Literal, TypeVar, Unpack

from msgspec import UNSET
from msgspec.structs import replace

from deferd.client import job_requests
from deferd.client.errors import NoAnswer
from deferd.client.job_requests import cancel_once, put_batch_once, with_id, with_ids
from deferd.client.joined_calls import JoinedCalls
from deferd.client.policy_options import PolicyOptions
from deferd.client.put_options import PutOptions, put_fields, set_options
from deferd.client.request_body import JobToPut, Seconds, encode, instant, job_fields, seconds, set_fields, without_none
from deferd.client.requests import request_for
from deferd.client.sender import RetryPolicy, Sender
from deferd.client.spans import Spans
from deferd.contract.errors import JobNotFound
from deferd.contract.limits import BATCH_MAX, WAIT_MAX_S
from deferd.contract.model import DurabilityLevel
from deferd.contract.operations import jobs as operations
from deferd.contract.operations.jobs import Cancelled, CancelResult, Job, PutResult

Item = TypeVar("Item")
_WHILE_IT_STOPS = RetryPolicy()
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class ProducerMethods:
    """The calls of producers."""

    _sender: Sender
    _calls: JoinedCalls
    spans: Spans

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
            BatchNotFound, BatchSealed, DifferentShard: there is no such `batch`, it takes no more jobs, or it is in
                another shard of the store than the topic.
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

    async def get(self, topic: str, id: str) -> Job:
        """Get a job. Raises JobNotFound."""
        return await self._sender.send(request_for(operations.GET_JOB, topic, id))

    async def wait(
        self,
        topic: str,
        id: str,
        *,
        timeout: Seconds | None = None,
        until: Literal["end", "progress"] = "end",
        after: datetime | None = None,
    ) -> Job:
        """Wait until a job has ended, and return it with its `outcome`: `finished`, `dead` or `cancelled`.

        After `timeout` (None: never) the job is returned as it is then, without `outcome`. The `result` of a finished
        job is there only if the job has a `retain`, and without one a job that ends between two requests is not found:
        a request waits up to 60 s.

        With ``until="progress"`` it waits only until the job has a progress from later than `after`, the `progress_at`
        of the last one that is known; by default until the next one.

        Raises:
            JobNotFound: there is no such job, or it has ended and is not kept.
        """
        end_s = inf if timeout is None else monotonic() + seconds(timeout)
        if until == "progress":
            after = after or (await self.get(topic, id)).progress_at or _LONG_AGO
        quick_responses = 0
        while True:
            began_s = monotonic()
            wait_s = min(max(end_s - began_s, 0), WAIT_MAX_S)
            query = without_none(wait=wait_s, until=until, after=None if after is None else instant("after", after))
            job = await self._sender.send(request_for(operations.GET_JOB, topic, id, query=query, wait_s=wait_s))
            has_progressed = until == "progress" and (job.progress_at or _LONG_AGO) > (after or _LONG_AGO)
            if job.outcome is not None or has_progressed or monotonic() >= end_s:
                return job
            quick_responses = quick_responses + 1 if monotonic() - began_s < wait_s / 2 else 0
            if quick_responses:  # the service is shutting down and lets no call wait
                await self._sender.sleep(_WHILE_IT_STOPS.pause_s(quick_responses))

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
        group: str | None = None,
        priority: int | None = None,
        **policy: Unpack[PolicyOptions],
    ) -> Job:
        """Reschedule or change a delayed or ready job and return it. Arguments that are left out change nothing.

        `policy` are the keys of PolicyOptions: `ttr`, `max_attempts` and so on. `tags` and `headers` replace all
        earlier ones; an empty value removes them. An empty `group` and a `priority` of 0 remove that of the job. A new
        due time is moved by window and spread.

        Raises:
            TypeError: an option is unknown.
            JobReserved: a consumer holds it.
            JobNotFound: there is no such job, or it is dead or finished.
        """
        fields = without_none(delay=delay, run_at=run_at, tags=tags, headers=headers, priority=priority)
        if group is not None:
            fields["group"] = group or None
        if body is not UNSET:
            fields["body"] = body
        fields |= set_options(policy, PolicyOptions)
        # A `delay` counts from the execution, so a second one would change the due time again.
        repeatable = "delay" not in fields
        request = request_for(operations.CHANGE_JOB, topic, id, body=encode(job_fields(fields)), repeatable=repeatable)
        return await self._sender.send(request)

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
        request = job_requests.cancel(topic, id, if_reserved=if_reserved, follow_up=follow_up, durability=durability)
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
        option = job_requests.cancel_options(if_reserved, follow_up)
        results: list[CancelResult] = []
        for start in range(0, len(ids), BATCH_MAX):
            body = encode({"jobs": [{"id": job_id, **option} for job_id in ids[start : start + BATCH_MAX]]})
            outcome = await self._sender.try_to_send(request_for(operations.CANCEL_JOBS, topic, body=body))
            results += [
                replace(result, status=503, code=NoAnswer.code)
                if outcome.doubtful and result.code == JobNotFound.code
                else result
                for result in outcome.result().results
            ]
        return results


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

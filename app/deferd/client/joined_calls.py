"""The calls that concurrent tasks or threads share requests for: put, finish and cancel.

A joined call has the result and the errors of a single one. What the response to a batch does not tell exactly, a
request for this call alone does: after the refusal of a whole batch, a lost response, or a result with little detail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from deferd.client import job_requests
from deferd.client.batching import MOST_BYTES, MOST_JOBS, Batching, Call, Result
from deferd.client.errors import NoAnswer, UnexpectedAnswer
from deferd.client.job_requests import FollowUp, IfReserved, cancel_once, finish_once, put_once
from deferd.client.request_body import JobRef, encode, job_fields, without_none
from deferd.client.requests import job_exists, request_for
from deferd.client.sender import RetryPolicy, Sender
from deferd.contract.clocks import monotonic_s
from deferd.contract.errors import (
    DeferdError,
    InvalidInput,
    JobCancelled,
    JobExists,
    JobNotFound,
    JobReserved,
    PayloadTooLarge,
    RateLimited,
    StoreUnavailable,
)
from deferd.contract.operations.jobs import (
    CANCEL_JOBS,
    FINISH_JOBS,
    PUT_JOBS,
    Cancelled,
    CancelResult,
    CancelResults,
    Delivery,
    FinishResult,
    FinishResults,
    Job,
    PutResult,
    PutResults,
)
from deferd.contract.operations.operation import Operation

OneResult = TypeVar("OneResult", PutResult, FinishResult, CancelResult)

_OK = (200, 201)
_TOO_MANY = 429
_TOO_LARGE = 413
_REFUSED = range(400, 500)


class JoinedCalls:
    """Puts, finishes and cancels; with `batching`, concurrent ones share requests."""

    def __init__(self, sender: Sender, batching: Batching | None) -> None:
        self._sender = sender
        self._batching = batching
        self._puts, self._finishes, self._cancels = _Puts(sender), _Finishes(sender), _Cancels(sender)

    async def put(self, fields: dict[str, Any]) -> Job:
        """Put a job that has an id. Puts of one topic and durability share requests.

        Others would wait for a topic whose shard is away, or for the replicas that somebody else requires.
        """
        return await self._run(self._puts, f"{fields['topic']} {fields.get('durability')}", _Put(self._sender, fields))

    async def finish(self, job: Delivery | JobRef, result: Any) -> None:
        """Finish a job. Finishes of one topic share requests."""
        await self._run(self._finishes, f"{job.topic}", _Finish(self._sender, job, result))

    async def cancel(self, topic: str, id: str, if_reserved: IfReserved, follow_up: FollowUp) -> Cancelled:
        """Cancel a job. Cancels of one topic share requests."""
        return await self._run(self._cancels, f"{topic}", _Cancel(self._sender, topic, id, if_reserved, follow_up))

    async def _run(self, kind: _Kind[Any], key: str, call: _Call[Result]) -> Result:
        if self._batching is None:
            return await call.send_alone()
        return await self._batching.run(kind, key, call)


class _Call(Call[Result]):
    __slots__ = ("id", "repeatable", "sender", "topic")

    def __init__(self, sender: Sender, topic: str, id: str, *, repeatable: bool = True) -> None:
        super().__init__()
        self.sender = sender
        self.topic = topic
        self.id = id
        self.repeatable = repeatable

    def time_left_s(self) -> float | None:
        """For how long it may still be retried; None: for the sender's full time."""
        if self.began_s is None:
            return None
        return max(self.began_s + self.sender.retry_for_s - monotonic_s(), 0)


class _Put(_Call[Job]):
    __slots__ = ("_body", "_fields")

    def __init__(self, sender: Sender, fields: dict[str, Any]) -> None:
        super().__init__(sender, fields["topic"], fields["id"], repeatable=fields.get("on_conflict") != "append")
        self._fields = fields
        self._body = encode(job_fields(fields))

    def json(self) -> bytes:
        return self._body

    async def send_alone(self) -> Job:
        request, left_s = job_requests.put_encoded(self._fields, self._body), self.time_left_s()
        return await put_once(self.sender, self._fields, request, doubtful=self.doubtful, retry_for_s=left_s)


class _Finish(_Call[None]):
    __slots__ = ("_job", "_result")

    def __init__(self, sender: Sender, job: Delivery | JobRef, result: Any) -> None:
        super().__init__(sender, job.topic, job.id, repeatable=job.receipt is not None)
        self._job = job
        self._result = result

    def json(self) -> bytes:
        return encode({"id": self.id, **without_none(receipt=self._job.receipt, result=self._result)})

    async def send_alone(self) -> None:
        if self.doubtful and not self.repeatable:
            raise NoAnswer(f"a request to finish {self.topic}/{self.id} had no usable response")
        left_s = self.time_left_s()
        await finish_once(self.sender, self._job, self._result, doubtful=self.doubtful, retry_for_s=left_s)


class _Cancel(_Call[Cancelled]):
    __slots__ = ("_follow_up", "_if_reserved")

    def __init__(self, sender: Sender, topic: str, id: str, if_reserved: IfReserved, follow_up: FollowUp) -> None:
        super().__init__(sender, topic, id)
        self._if_reserved: IfReserved = if_reserved
        self._follow_up: FollowUp = follow_up

    def json(self) -> bytes:
        return encode({"id": self.id, **job_requests.cancel_options(self._if_reserved, self._follow_up)})

    async def send_alone(self) -> Cancelled:
        request = job_requests.cancel(self.topic, self.id, if_reserved=self._if_reserved, follow_up=self._follow_up)
        return await cancel_once(self.sender, request, doubtful=self.doubtful, retry_for_s=self.time_left_s())


class _Kind(ABC, Generic[OneResult]):
    """Sends batches of one kind of call; see CallKind."""

    operation: Operation[Any]
    query: Mapping[str, str] | None = None

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.most_jobs = MOST_JOBS
        self.most_bytes = MOST_BYTES

    async def send_batch(self, calls: list[Any]) -> None:
        request = request_for(
            self.operation,
            *(() if self.operation is PUT_JOBS else (calls[0].topic,)),
            query=self.query,
            body=b'{"jobs":[' + b",".join([call.piece for call in calls]) + b"]}",
            repeatable=all(call.repeatable for call in calls),
        ).giving(partial(_results_of, [call.id for call in calls]))
        outcome = await self.sender.try_to_send(request, retry_for_s=0)
        if outcome.error is not None:
            self._fail(calls, outcome.error, doubtful=outcome.doubtful)
            return
        for call, result in zip(calls, outcome.result(), strict=True):
            self.end(call, result, doubtful=outcome.doubtful)

    @abstractmethod
    def end(self, call: Any, result: OneResult, *, doubtful: bool) -> None:
        """Set the outcome of a call. `doubtful`: an earlier request may have executed it."""

    def _fail(self, calls: list[_Call[Any]], error: DeferdError, *, doubtful: bool) -> None:
        """The whole batch failed: each call is sent by itself, unless it must not be or its time is over."""
        self._adapt(error, calls)
        is_lost = RetryPolicy.is_transient(error) and not _is_rate_limit(error)
        doubtful = doubtful or (isinstance(error, UnexpectedAnswer) and error.status not in _REFUSED)
        for call in calls:
            if (is_lost and not call.time_left_s()) or (doubtful and not call.repeatable):
                call.fail(_copy(error))
            else:
                call.send_again(doubtful=doubtful)

    def _adapt(self, error: DeferdError, calls: list[_Call[Any]]) -> None:
        """Learn from a refusal that the service does not accept such large batches."""
        status = error.status if isinstance(error, UnexpectedAnswer) else None
        paths = [one.path for one in error.field_errors] if isinstance(error, InvalidInput) else []
        if isinstance(error, PayloadTooLarge) or status == _TOO_LARGE:
            self.most_bytes = max(sum(len(call.piece) for call in calls) // 2, 1)
        elif ("body", "jobs") in paths:
            self.most_jobs = max(len(calls) // 2, 1)


class _Puts(_Kind[PutResult]):
    operation = PUT_JOBS
    query = {"with_jobs": "true"}  # noqa: RUF012 (never changed)

    def end(self, call: _Put, result: PutResult, *, doubtful: bool) -> None:
        code = result.code
        if result.job is not None:
            call.succeed(replace(result.job, durability=result.durability))
        elif code == JobExists.code and not doubtful:
            call.fail(job_exists(call.topic, call.id, result.durability, result.state, result.until))
        elif code == JobReserved.code and not doubtful:
            call.fail(JobReserved(call.topic, call.id, result.durability))
        else:  # also a job that existed already and was too large for the response
            call.send_again(doubtful=doubtful or code == StoreUnavailable.code)


class _Finishes(_Kind[FinishResult]):
    operation = FINISH_JOBS

    def end(self, call: _Finish, result: FinishResult, *, doubtful: bool) -> None:
        code = result.code
        if result.status in _OK or (code == JobNotFound.code and doubtful):  # see finish_once
            call.succeed(None)
        elif code == JobNotFound.code:
            call.fail(JobNotFound(call.topic, call.id))
        elif code == JobCancelled.code:
            call.fail(JobCancelled(call.topic, call.id))
        elif code == StoreUnavailable.code and not call.repeatable:
            call.fail(NoAnswer(f"the service did not confirm the finish of {call.topic}/{call.id}"))
        else:  # a receipt that is stale has a reason, which a batch does not give
            call.send_again(doubtful=doubtful or code == StoreUnavailable.code)


class _Cancels(_Kind[CancelResult]):
    operation = CANCEL_JOBS

    def end(self, call: _Cancel, result: CancelResult, *, doubtful: bool) -> None:
        code = result.code
        if result.was is not None:
            call.succeed(Cancelled(topic=call.topic, id=call.id, state="cancelled", was=result.was))
        elif code == JobNotFound.code and not doubtful:
            call.fail(JobNotFound(call.topic, call.id))
        elif code == JobReserved.code:
            call.fail(JobReserved(call.topic, call.id))
        else:
            call.send_again(doubtful=doubtful or code == StoreUnavailable.code)


def _results_of(ids: list[str], batch: PutResults | FinishResults | CancelResults) -> Sequence[Any]:
    """The results of a batch, in the order of its jobs."""
    if [result.id for result in batch.results] != ids:
        raise ValueError("the results are not those of the jobs in the request")
    return batch.results


def _is_rate_limit(error: DeferdError) -> bool:
    """Whether a limit refused the batch that may allow a single call."""
    return isinstance(error, RateLimited) or (isinstance(error, UnexpectedAnswer) and error.status == _TOO_MANY)


def _copy(error: DeferdError) -> DeferdError:
    """The same error for another caller: raising one object in several tasks would mix up their tracebacks."""
    copied = type(error).__new__(type(error), *error.args)
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    return copied

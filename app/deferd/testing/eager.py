"""Runs handlers in the test itself, without a service, for unit tests of producers and handlers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from msgspec import convert
from pydantic_core import from_json, to_json

from deferd.client import AsyncClient, Client, Delivery, JobDefinition
from deferd.client.async_client import ApiMethods
from deferd.client.blocking_transport import run_blocking
from deferd.client.put_options import check_put
from deferd.client.requests import ApiRequest, Result
from deferd.client.sender import Sender, SendOutcome
from deferd.client.transport import Transport
from deferd.contract import limits
from deferd.contract.backoff import ExponentialBackoff
from deferd.contract.ends import OUTCOMES
from deferd.contract.errors import DeferdError, JobExists, JobNotFound, JobReserved
from deferd.contract.fields import POLICY
from deferd.contract.model import JobState, PutJob
from deferd.worker import BatchContext, Context, Reject, Retry, Snooze, Worker
from deferd.worker.handlers import BatchHandler, Handler, JobEnd, TopicHandlers
from deferd.worker.outcomes import Bury, Finish, checked_progress, of_failure, of_value
from deferd.worker.worker import running_loop

__all__ = ["EagerJob", "EagerJobs", "EagerUnsupported"]
_CREATED, _OK = 201, 200
_NO_SERVICE = "http://eager.invalid"
_NOT_SHOWN = frozenset({"delay", "run_at", "on_conflict", "conflict_with", "if_reserved", "max_wait"})


class EagerJobs:
    """Replaces the service in unit tests: a put runs its handler immediately, in the test.

    ::

        def test_an_unpaid_order_is_closed() -> None:
            jobs = EagerJobs(worker)                 # the Worker of the program, with its handlers and middleware
            close.bind(jobs.client).put(Order(number=1042), id="order-1042", delay=timedelta(minutes=30))
            [waiting] = jobs.of(close)
            assert (waiting.state, waiting.delay) == ("delayed", timedelta(minutes=30))
            jobs.run_delayed()
            assert waiting.state == "finished"

    Pass `client` or `async_client` to the code under test as its Client or AsyncClient. Their `put`, `put_many`,
    `put_batch`, `get`, `wait` and `cancel` work, with the checks and the JSON round trip of the real ones. All ended
    jobs count as kept, and a `wait` for one that has not ended raises EagerUnsupported: nothing runs meanwhile. Other
    calls raise EagerUnsupported, and so do puts with ``on_conflict="append"`` or ``if_reserved="after"``, or with a
    `batch`.

    A job that is due immediately runs before its put returns; one that a handler puts runs after that handler. A job
    with a delay stays `delayed` until `run`, `run_delayed` or a cancel. A handler's Retry or Snooze makes its job
    `delayed` again, Reject makes it `dead`. Any other exception is recorded as a retry and then raised where the job
    was run; with ``raise_errors=False`` it is only recorded.

    A handler that takes batches gets the due jobs of a `put_batch` or `put_many`, or all that `run_delayed` runs, in
    batches of at most its size, and a single put or `run` alone. Nothing waits for a batch to be full.

    Without a worker, and for topics without a handler, jobs are only recorded.

    There is no clock and no store: `backoff`, `max_attempts`, `ttl`, `retain`, `dead_retain`, `deadline`, `unique_for`,
    `max_wait`, `window`, `spread`, leases, time limits, groups, priorities, topic settings, limits of size and
    concurrency have no effect, and an id is free again when its job is finished or dead. To test these, use the fixture
    `deferd_service`, a real service.
    """

    def __init__(self, worker: Worker | None = None, *, raise_errors: bool = True) -> None:
        self.jobs: list[EagerJob] = []
        """All jobs in the order of their puts."""
        self.client: Client = _EagerClient(self)
        self.async_client: AsyncClient = _EagerAsyncClient(self)
        self._handlers = TopicHandlers() if worker is None else worker._handlers
        self._middleware = [] if worker is None else worker._middleware
        self._is_failure = None if worker is None else worker._is_failure
        self._raise_errors = raise_errors
        self._due: deque[list[EagerJob]] = deque()
        """The jobs of each call of a handler: one, or some of a handler that takes batches."""
        self._running: dict[EagerJob, _EagerContext] = {}

    def of(self, job: str | JobDefinition[Any]) -> list[EagerJob]:
        """The jobs of a topic, or of a definition's topic, in the order of their puts."""
        topic = job if isinstance(job, str) else job.topic
        return [one for one in self.jobs if one.topic == topic]

    def run(self, job: EagerJob) -> None:
        """Run a delayed or ready job without waiting for its due time; an async handler gets a new event loop.

        Raises:
            ValueError: the job is not delayed or ready, or its topic has no handler.
            RuntimeError: its handler is async and an event loop is running: use `run_async`.
        """
        run_blocking(self._run_waiting([job], in_loop=False))

    async def run_async(self, job: EagerJob) -> None:
        """As `run`, in the event loop of the test; plain handlers run in a thread."""
        await self._run_waiting([job], in_loop=True)

    def run_delayed(self) -> list[EagerJob]:
        """Run all currently delayed jobs once, earliest due first, and return them. Raises as `run`."""
        calls = self._delayed_calls()
        for call in calls:
            if jobs := [job for job in call if job.state == "delayed"]:  # not cancelled by an earlier handler
                run_blocking(self._run_waiting(jobs, in_loop=False))
        return _by_delay(job for call in calls for job in call)

    async def run_delayed_async(self) -> list[EagerJob]:
        """As `run_delayed`, in the event loop of the test; plain handlers run in a thread."""
        calls = self._delayed_calls()
        for call in calls:
            if jobs := [job for job in call if job.state == "delayed"]:
                await self._run_waiting(jobs, in_loop=True)
        return _by_delay(job for call in calls for job in call)

    def _delayed_calls(self) -> list[list[EagerJob]]:
        calls: deque[list[EagerJob]] = deque()
        for job in _by_delay(self.jobs):
            if job.state == "delayed" and job.topic in self._handlers:
                self._add_to_calls(calls, job)
        return [*calls]

    def _add_to_calls(self, calls: deque[list[EagerJob]], job: EagerJob) -> None:
        """Add a job to the last call of its handler, if that takes batches and it has room, else as a new call."""
        handler = self._handlers[job.topic]
        if isinstance(handler, BatchHandler):
            same = (call for call in reversed(calls) if self._handlers[call[0].topic] is handler)
            if (last := next(same, None)) is not None and len(last) < handler.batch:
                last.append(job)
                return
        calls.append([job])

    async def _run_waiting(self, jobs: list[EagerJob], *, in_loop: bool) -> None:
        for job in jobs:
            if job.state not in WAITING:
                raise ValueError(
                    f"job {job.id!r} of topic {job.topic!r} is {job.state}: only delayed and ready jobs run"
                )
            if job.topic not in self._handlers:
                known = ", ".join(self._handlers) or "none"
                raise ValueError(f"no handler takes topic {job.topic!r}; topics with a handler: {known}")
        self._due.append(jobs)
        await self.run_due(in_loop=in_loop)

    # Called by the clients

    async def put(self, fields: dict[str, Any], *, in_loop: bool, of_many: bool = False) -> tuple[int, dict[str, Any]]:
        """Perform `POST /jobs`; returns the status and the job as stored.

        With `of_many`, the job is one of several: handlers of batches run with the next `run_due`, on all of them.
        """
        status, job = self._stored(fields)
        response = _shown(job)
        await self.run_due(in_loop=in_loop, batches=not of_many)
        return status, response

    def _stored(self, fields: dict[str, Any]) -> tuple[int, EagerJob]:
        """Store a job, to run if it is due; returns the status, and the job that has the id."""
        put = check_put(fields)
        _check_supported(put)
        delay = _delay(put)
        job = EagerJob(
            fields["topic"], fields["id"], fields.get("body"), fields, delay, "delayed" if delay else "ready"
        )
        existing = self._live(job.topic, job.id)
        if existing is not None:
            if put.on_conflict == "reject":
                raise JobExists(job.topic, job.id)
            if put.on_conflict == "keep":
                return _OK, existing
            if existing.state == "reserved":
                raise JobReserved(job.topic, job.id)
            existing.state = "cancelled"
        self.jobs.append(job)
        if job.state == "ready" and job.topic in self._handlers:
            self._add_to_calls(self._due, job)
        return (_CREATED if existing is None else _OK), job

    def get(self, topic: str, job_id: str, query: Mapping[str, Any]) -> dict[str, Any]:
        """Perform `GET /jobs/{topic}/{id}`: the last job that had the id."""
        job = next((one for one in reversed(self.jobs) if (one.topic, one.id) == (topic, job_id)), None)
        if job is None or (job.state == "cancelled" and "wait" not in query):
            raise JobNotFound(topic, job_id)
        if "wait" not in query:
            return _shown(job)
        if job.state in LIVE:
            raise EagerUnsupported(f"job {job_id!r} of topic {topic!r} is {job.state}, and nothing runs while it waits")
        last_seen = replace(job, state="delayed") if job.state == "cancelled" else job
        return {**_shown(last_seen), "outcome": job.state}

    async def cancel(self, topic: str, job_id: str, query: Mapping[str, Any], *, in_loop: bool) -> dict[str, Any]:
        """Perform `DELETE /jobs/{topic}/{id}`."""
        job = self._live(topic, job_id)
        if job is None:
            raise JobNotFound(topic, job_id)
        if job.state == "reserved" and query.get("if_reserved") == "refuse":
            raise JobReserved(topic, job_id)
        was, job.state = job.state, "cancelled"
        if job in self._running:
            self._running[job].stop()
        self._put_end(job, job.attempts - (was == "reserved"))
        await self.run_due(in_loop=in_loop)
        return {"topic": topic, "id": job_id, "state": "cancelled", "was": was}

    def _live(self, topic: str, job_id: str) -> EagerJob | None:
        return next((job for job in self.jobs if (job.topic, job.id) == (topic, job_id) and job.state in LIVE), None)

    # Running

    async def run_due(self, *, in_loop: bool, batches: bool = True) -> None:
        """Run due jobs until there are none, or none but those in `batches`.

        Jobs that a handler puts run here, after that handler. When a handler's exception is raised, the jobs after it
        stay `ready`.
        """
        if self._running:
            return
        try:
            while (call := self._next_call(batches=batches)) is not None:
                if jobs := [job for job in call if job.state in WAITING]:
                    await self._run(jobs, self._handlers[jobs[0].topic], in_loop=in_loop)
        except BaseException:
            self._due.clear()
            raise

    def _next_call(self, *, batches: bool) -> list[EagerJob] | None:
        for call in self._due:
            if batches or self._handlers[call[0].topic].batch is None:
                self._due.remove(call)
                return call
        return None

    async def _run(self, jobs: Sequence[EagerJob], handler: Handler, *, in_loop: bool) -> None:
        """Run a handler on its job, or on several if it takes batches."""
        if not in_loop and self._needs_loop(handler) and running_loop() is not None:
            raise RuntimeError(
                f"the handler of topic {jobs[0].topic!r} needs an event loop, and one is running already: put with "
                "`async_client`, or use `run_async` or `run_delayed_async`"
            )
        contexts: dict[EagerJob, _EagerContext] = {}
        for job in jobs:
            job.state = "reserved"
            job.exception = None
            job.attempts += 1
            contexts[job] = _EagerContext(convert(_shown(job), Delivery), job)
        self._running |= contexts
        try:
            ends = await self._ends_of(handler, [*contexts.values()], in_loop=in_loop)
            for (job, context), end in zip(contexts.items(), ends, strict=True):
                self._end(job, context, end)
        finally:
            for job in jobs:
                del self._running[job]
        for _, error in ends:
            if error is not None and (
                not isinstance(error, Exception)
                or (self._raise_errors and not isinstance(error, Retry | Snooze | Reject))
            ):
                raise error

    async def _ends_of(self, handler: Handler, contexts: list[_EagerContext], *, in_loop: bool) -> list[JobEnd]:
        """Run the handler; returns what it returns or raises for each job."""
        given: Context | BatchContext = contexts[0]
        if isinstance(handler, BatchHandler):
            given = handler.context_of(contexts)
        value, raised = None, None
        try:
            if not isinstance(given, BatchContext) or len(given):
                value = await self._call(handler, given, in_loop=in_loop)
        except BaseException as error:  # noqa: BLE001 (it is an outcome, and raised after it was recorded)
            raised = error
        if isinstance(given, BatchContext):
            return [given.end_of(context) or JobEnd(None, raised) for context in contexts]
        return [JobEnd(value, raised)]

    def _end(self, job: EagerJob, context: _EagerContext, end: JobEnd) -> None:
        if end.error is not None:
            self._failed(job, end.error)
            return
        outcome = of_value(end.value, context.puts)
        if isinstance(outcome, Finish):
            self._chain(outcome.put)
            job.result = outcome.result
            self._ended(job, "finished", None)
        else:
            self._ended(job, "delayed", outcome.error)
            job.delay = None

    def _chain(self, puts: Sequence[dict[str, Any]]) -> None:
        """Put the jobs that a handler put with its finish; they run after it."""
        for fields in puts:
            self._stored(fields)

    def _needs_loop(self, handler: Handler) -> bool:
        return handler.is_async or bool(self._middleware)

    async def _call(self, handler: Handler, context: Context | BatchContext, *, in_loop: bool) -> Any:
        if not in_loop and not self._needs_loop(handler):
            return await handler.call(context, (), _at_once)
        called = handler.call(context, self._middleware, asyncio.to_thread)
        return await called if in_loop else asyncio.run(called)

    def _failed(self, job: EagerJob, error: BaseException) -> None:
        outcome = of_failure(error, convert(_shown(job), Delivery), self._is_failure)
        job.exception = error
        if isinstance(outcome, Bury):
            self._ended(job, "dead", outcome.error)
        else:
            self._ended(job, "delayed", outcome.error)
            if not outcome.counts:
                job.attempts -= 1
                job.snoozes += 1
            job.delay = None if outcome.delay_s is None else timedelta(seconds=outcome.delay_s)

    def _ended(self, job: EagerJob, state: str, error: str | None) -> None:
        job.error = error
        if job.state == "reserved":  # not cancelled meanwhile
            job.state = state
            if state in OUTCOMES:
                self._put_end(job, job.attempts)

    def _put_end(self, job: EagerJob, attempts: int) -> None:
        """Put the job of `on_end` for a job that has ended; it runs after the present one."""
        on_end = job.fields.get("on_end")
        if on_end is None or job.state not in (on_end.get("on") or OUTCOMES):
            return
        places = {"topic": job.topic, "id": job.id, "outcome": job.state}
        job_id = on_end.get("id") or ""
        for name, value in places.items():
            job_id = job_id.replace(f"{{{name}}}", value)
        optional = {"reason": "buried" if job.state == "dead" else None, "error": job.error, "result": job.result}
        labels = {"tags": job.fields.get("tags") or [], "headers": job.fields.get("headers") or {}}
        body: dict[str, Any] = {**places, "attempts": attempts, **labels}
        body |= {name: value for name, value in optional.items() if value is not None}
        if on_end.get("body"):
            body["body"] = job.body
        if not 0 < len(job_id) <= limits.ID_LENGTH:
            job_id = f"end-{uuid4().hex}"
        self._stored({"topic": on_end["topic"], "id": job_id, "body": body, "on_conflict": "keep"})


@dataclass(eq=False)
class EagerJob:
    """A job that was put, and its current state."""

    topic: str
    id: str
    body: Any
    """The JSON value that the consumer receives."""
    fields: Mapping[str, Any]
    """All fields of the put, as JSON: `ttr`, `backoff`, `traceparent` and so on."""
    delay: timedelta | None
    """From the put until the job is due. For a failed job: the delay of its Retry, or None for its backoff."""
    state: str
    """`delayed`, also after a failure that will be retried; `ready`: due, but not run because it has no handler;
    `reserved` while its handler runs; `finished`; `dead`; or `cancelled`."""
    attempts: int = 0
    snoozes: int = 0
    """Deliveries that a handler's Snooze ended, which `attempts` does not include."""
    result: Any = None
    """The return value of the handler, as JSON."""
    progress: Any = None
    """The last progress that the handler reported, as JSON."""
    error: str | None = None
    """The job's `last_error`: why the last attempt failed or the job is dead."""
    exception: BaseException | None = field(default=None, repr=False)
    """The exception of the last attempt."""


class EagerUnsupported(NotImplementedError):
    """The call, such as a pop, needs a service: EagerJobs has no store. Use the fixture `deferd_service`."""


class _EagerContext(Context):
    """The context of a job without a lease."""

    __slots__ = ("_eager_job",)

    def __init__(self, job: Delivery, eager_job: EagerJob) -> None:
        self.job = job
        self._eager_job = eager_job
        self._stopped = None
        self._puts = []

    def stop(self) -> None:
        self._stopped = True

    async def touch(self) -> bool:
        return not self.cancelled

    def touch_from_thread(self) -> bool:
        return not self.cancelled

    async def progress(self, value: Any) -> bool:
        return self.progress_from_thread(value)

    def progress_from_thread(self, value: Any) -> bool:
        self._eager_job.progress = checked_progress(value)
        return not self.cancelled


async def _at_once(function: Callable[[], Any]) -> Any:
    return function()


def _check_supported(put: PutJob) -> None:
    for name, value in (("on_conflict", "append"), ("if_reserved", "after"), ("batch", put.batch)):
        if value is not None and getattr(put, name) == value:
            raise EagerUnsupported(
                f'EagerJobs supports no puts with {name}="{value}": use the fixture `deferd_service`'
            )


def _delay(put: PutJob) -> timedelta:
    """Time until the job is due, at least 0."""
    if put.run_at is not None:
        return max(put.run_at - datetime.now(UTC), timedelta())
    return timedelta(seconds=put.delay or 0)


if TYPE_CHECKING:
    from deferd.testing.eager import EagerJobs


class _EagerClient(Client):
    """A Client whose puts and cancels are performed in this process."""

    def __init__(self, jobs: EagerJobs) -> None:
        super().__init__(_NO_SERVICE, key="")
        self._methods = ApiMethods(self._transport, _EagerSender(self._transport, jobs, in_loop=False))


class _EagerAsyncClient(AsyncClient):
    """An AsyncClient whose puts and cancels are performed in this process."""

    def __init__(self, jobs: EagerJobs) -> None:
        super().__init__(_NO_SERVICE, key="")
        ApiMethods.__init__(self, self._transport, _EagerSender(self._transport, jobs, in_loop=True))


class _EagerSender(Sender):
    def __init__(self, transport: Transport, jobs: EagerJobs, *, in_loop: bool) -> None:
        super().__init__(transport, [_NO_SERVICE], retry_for_s=0)
        self._jobs = jobs
        self._in_loop = in_loop

    async def try_to_send(
        self,
        call: ApiRequest[Result],
        *,
        retry_for_s: float | None = None,  # noqa: ARG002 (nothing is retried)
        doubtful: bool = False,
    ) -> SendOutcome[Result]:
        try:
            response = await self._respond(call)
        except DeferdError as error:
            return SendOutcome(None, error, doubtful)
        return SendOutcome(call.read(to_json(response)), None, doubtful)

    async def _respond(self, call: ApiRequest[Any]) -> Mapping[str, Any]:
        sent = from_json(call.body or b"null")
        match call.method, *call.path.strip("/").split("/"):
            case "POST", "jobs":
                _, job = await self._jobs.put(sent, in_loop=self._in_loop)
                return job
            case "POST", "jobs", "batch":
                for fields in sent["jobs"]:
                    check_put(fields)
                results = [await self._put_one(fields) for fields in sent["jobs"]]
                await self._jobs.run_due(in_loop=self._in_loop)
                return {"results": results}
            case "GET", "jobs", topic, job_id:
                return self._jobs.get(unquote(topic), unquote(job_id), call.query or {})
            case "DELETE", "jobs", topic, job_id:
                return await self._jobs.cancel(unquote(topic), unquote(job_id), call.query or {}, in_loop=self._in_loop)
        raise EagerUnsupported(
            f"{call.method} {call.path}: EagerJobs supports puts, gets, waits and cancels of single jobs only; for "
            "other calls use the fixture `deferd_service`"
        )

    async def _put_one(self, fields: dict[str, Any]) -> dict[str, Any]:
        named = {"topic": fields["topic"], "id": fields["id"]}
        try:
            status, _ = await self._jobs.put(fields, in_loop=self._in_loop, of_many=True)
        except (JobExists, JobReserved) as error:
            return {**named, "status": 409, "code": error.code}
        return {**named, "status": status}


WAITING = ("delayed", "ready")
LIVE = (*WAITING, "reserved")


def _by_delay(jobs: Iterable[EagerJob]) -> list[EagerJob]:
    """The jobs, earliest due first."""
    return sorted(jobs, key=lambda job: job.delay or timedelta())


def _shown(job: EagerJob) -> dict[str, Any]:
    """The job as a service returns it, with the service's defaults for omitted fields."""
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        **{field.name: field.default for field in POLICY if field.is_always_shown},
        "backoff": ExponentialBackoff().model_dump(),
        **{name: value for name, value in job.fields.items() if name not in _NOT_SHOWN and value is not None},
        "topic": job.topic,
        "id": job.id,
        "state": JobState(job.state),
        "body": job.body,
        "created_at": now.isoformat(),
        "due_at": (now + (job.delay or timedelta())).isoformat(),
        "attempts": job.attempts,
    }
    if job.snoozes:
        fields["snoozes"] = job.snoozes
    if job.error is not None:
        fields["last_error"] = job.error
    if job.progress is not None:
        fields |= {"progress": job.progress, "progress_at": now.isoformat()}
    if job.result is not None:
        fields["result"] = job.result
    if job.state == "reserved":
        until = now + timedelta(seconds=fields["ttr"])
        fields |= {"receipt": "eager", "attempt": job.attempts, "reserved_until": until.isoformat()}
    return fields

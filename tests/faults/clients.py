"""Clients that make every kind of call on a few topics and record each attempt as one operation.

Several of them use the same job ids at the same time, put ids that exist or existed before, let leases expire, and use
receipts of deliveries that have ended. Each client talks to one service, over HTTP or the Redis protocol, and never
retries on its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from deferd import AsyncClient, BulkResult, Delivery, Job, JobRef
from deferd.client.bulk import Selector
from deferd.client.errors import NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.job_requests import finish
from deferd.contract.backoff import FixedBackoff
from deferd.contract.errors import (
    DeferdError,
    DifferentShard,
    JobCancelled,
    JobExists,
    JobNotFound,
    JobReserved,
    ReceiptStale,
    StoreUnavailable,
    TopicNotFound,
)
from deferd.contract.model import JobState
from deferd.contract.operations.jobs import FinishResult, PutResult, Released
from tests.faults.drawn_puts import (
    ABANDONED,
    BACKOFF_MS,
    BURST,
    COLLECTING,
    DELAYS_MS,
    END_TOPIC,
    FOLLOWED,
    MAIN_TOPICS,
    PATTERNS,
    PUSHED_TOPICS,
    TOPICS,
    WORKER_TOPIC,
    DrawnPut,
    DrawnPuts,
    tag_of,
)
from tests.faults.history import NOT_SENT, UNKNOWN, Recorder
from tests.faults.resp_client import RespClient
from tests.faults.response_facts import CREATED, delivery_facts, end_facts, ms, outcome_in_batch, put_facts, shown_facts
from tests.faults.set_commands import SetClients

RESPONSE_S = 2.5
STORE_TIMEOUT_S = 1.5
"""The default of `--store-timeout`."""
_TIMED_OUT = "the store did not respond in time"
_GIVEN_UP = "nothing was received for"
"""In the error of the client library at the instant from which on its request does nothing."""
PAUSE_AFTER_ERROR_S = 0.25
PAUSE_WHEN_EMPTY_S = 0.1
FINISH_PAUSE_S = 0.05
_CODES = {
    JobExists.code: "exists",
    JobReserved.code: "held",
    JobNotFound.code: "not found",
    ReceiptStale.code: "stale",
    JobCancelled.code: "cancelled",
    StoreUnavailable.code: UNKNOWN,
}
_REFUSALS: dict[type[DeferdError], str] = {
    JobExists: "exists",
    JobReserved: "held",
    JobNotFound: "not found",
    ReceiptStale: "stale",
    JobCancelled: "cancelled",
    TopicNotFound: "none",  # a redrive may come before the first put
    DifferentShard: NOT_SENT,  # of a finish with a put: nothing was done, as the topic has got more partitions
}


class Clients:
    """The clients of one process. `began_s` is the start of the run, the same in all of its processes.

    `urls` are those of the API and, with the scheme redis, of the Redis protocol. `has_groups`: the services know
    groups, priorities and `on_end`.
    """

    def __init__(
        self, name: str, seed: str, began_s: float, urls: Iterable[str], recorder: Recorder, *, has_groups: bool
    ) -> None:
        self._name = name
        self._chance = random.Random(seed)
        self._sweeps = itertools.count()
        self._puts = DrawnPuts(name, self._chance, began_s, has_groups=has_groups)
        listed = list(urls)
        self._clients = [AsyncClient(url, retry_for=0, timeout=RESPONSE_S) for url in listed if url.startswith("http")]
        resp_urls = [url for url in listed if not url.startswith("http")]
        self._resp_clients = [RespClient(url, timeout_s=RESPONSE_S) for url in resp_urls]
        self._all_clients: list[AsyncClient | RespClient] = [*self._clients, *self._resp_clients]
        self._recorder = recorder
        self._sets = SetClients(name, seed, (self._resp_clients, self._clients), recorder, self._record)
        self._requests = 0
        self._finishes = 0
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Close the connections."""
        for client in self._all_clients:
            await client.close()

    def _client(self) -> AsyncClient:
        return self._chance.choice(self._clients)

    def _any_client(self) -> tuple[AsyncClient | RespClient, dict[str, str]]:
        """A client for a call that both protocols have, and what the history has of the choice."""
        client = self._chance.choice(self._all_clients)
        return client, {"via": "resp"} if isinstance(client, RespClient) else {}

    async def _record(
        self,
        number: int,
        call: Awaitable[Any],
        facts: Callable[[Any], dict[str, Any]],
        wait_s: float = 0,
    ) -> Any:
        """Wait for a call and record how it ended. Returns its result, or None when it failed."""
        [result] = await self._record_all([number], call, lambda result: [(result, facts(result))], wait_s=wait_s)
        return result

    async def _record_all(
        self,
        numbers: Sequence[int],
        call: Awaitable[Any],
        facts: Callable[[Any], Sequence[tuple[Any, dict[str, Any]]]],
        refused: Callable[[DeferdError], Sequence[str]] | None = None,
        wait_s: float = 0,
    ) -> Sequence[Any]:
        """The same for a call that stands for several operations; the result of each.

        `refused` gives the outcome of each for an error; without it they are the same. A pop may take `wait_s` longer.
        """
        try:
            async with asyncio.timeout(2 * RESPONSE_S + wait_s):  # some calls may take longer than one response
                results = facts(await call)
        except Unreachable:
            ends: dict[str, Any] = {"outcome": NOT_SENT}
        except (NoAnswer, TimeoutError) as error:
            ends = {"outcome": UNKNOWN} | ({"given_up_after_s": 0} if _GIVEN_UP in str(error) else {})
        except StoreUnavailable as error:
            # When the connection to the store broke, it had not waited as long as it can.
            ends = {"outcome": UNKNOWN, "given_up_after_s": 0 if _TIMED_OUT in str(error) else STORE_TIMEOUT_S}
        except UnexpectedAnswer as error:
            if error.status < 500:
                raise
            ends = {"outcome": UNKNOWN, "status": error.status}
        except tuple(_REFUSALS) as error:
            level = getattr(error, "durability", None)
            outcomes = [_REFUSALS[type(error)]] * len(numbers) if refused is None else refused(error)
            for number, outcome in zip(numbers, outcomes, strict=True):
                self._recorder.end(number, outcome, **({"level": level} if level else {}))
            return [None] * len(numbers)
        else:
            for number, (_, known) in zip(numbers, results, strict=True):
                self._recorder.end(number, **known)
            return [result for result, _ in results]
        for number in numbers:
            self._recorder.end(number, **ends)
        await asyncio.sleep(PAUSE_AFTER_ERROR_S)
        return [None] * len(numbers)

    # Producers

    async def produce(self, pause_s: float) -> None:
        """Put jobs, one by one and in batches, until `stopping` is set."""
        while not self.stopping.is_set():
            if self._chance.random() < 0.1:
                topic = self._chance.choice(TOPICS)
                await self._put_batch(topic, [self._puts.draw(topic) for _ in range(4)])
            else:
                await self._put(self._chance.choice((*MAIN_TOPICS, *TOPICS, WORKER_TOPIC, *PUSHED_TOPICS)))
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))

    async def _put(self, topic: str) -> None:
        job, terms, known = self._puts.draw(topic)
        if topic in TOPICS and "on_conflict" not in known and self._chance.random() < 0.1:
            terms["on_conflict"] = known["on_conflict"] = "replace"
        client, via = self._any_client()
        number = self._recorder.begin("put", topic, job, **known, **via)
        call = client.put(topic, known["tag"], id=job, **terms)
        await self._record(number, call, lambda put: put_facts(put, known))

    async def use_set(self, pause_s: float) -> None:
        """Put members and take some again, until `stopping` is set."""
        while not self.stopping.is_set():
            await self._sets.add()
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))
            await self._sets.take()

    async def take_remaining(self) -> None:
        """Take members until there are none."""
        while await self._sets.take():
            pass

    async def _put_batch(self, topic: str, puts: Iterable[DrawnPut]) -> None:
        drawn = {job: (terms, known) for job, terms, known in puts}
        numbers = [self._recorder.begin("put", topic, job, **known) for job, (_, known) in drawn.items()]
        jobs = [{"topic": topic, "id": job, "body": known["tag"], **terms} for job, (terms, known) in drawn.items()]

        on_conflicts = [known.get("on_conflict", "") for _, known in drawn.values()]

        def facts(results: Sequence[PutResult]) -> list[tuple[PutResult, dict[str, Any]]]:
            return [
                (one, {"outcome": outcome(one, on_conflict), "level": one.durability})
                for one, on_conflict in zip(results, on_conflicts, strict=True)
            ]

        def outcome(one: PutResult, on_conflict: str) -> str:
            return outcome_in_batch(one, on_conflict) if one.code is None else _CODES[one.code]

        await self._record_all(numbers, self._client().put_batch(jobs), facts)

    async def interfere(self, pause_s: float) -> None:
        """Cancel, reschedule, redrive, get and finish jobs in any state, until `stopping` is set."""
        while not self.stopping.is_set():
            topic, job = self._chance.choice((*MAIN_TOPICS, *TOPICS, *PUSHED_TOPICS)), self._puts.job_id()
            what = self._chance.random()
            if what < 0.02:
                await self._sweep(self._chance.choice(TOPICS))
            elif what < 0.6:
                await self._cancel(topic, job)
            elif what < 0.7:
                await self._change(topic, job, self._chance.choice(DELAYS_MS))
            elif what < 0.8:
                await self._redrive(topic, job)
            elif what < 0.85:
                await self._finish(JobRef(topic, job))
            else:
                await self._look(topic, job)
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))

    async def _change(self, topic: str, job: str, delay_ms: int) -> None:
        by = self._chance.choice(("", "", "ids", "tag"))
        client, via = self._any_client() if not by else (None, {})
        flow = self._puts.draw_flow(topic) if not by and self._chance.random() < 0.5 else {}
        number = self._recorder.begin("change", topic, job, delay_ms=delay_ms, by=by, **flow, **via)
        if client is None:
            many = self._client().reschedule_all(**_selector(topic, job, by), delay=delay_ms / 1000)
            await self._record(number, many, lambda done: {"outcome": _outcome_of_reschedule(done)})
            return
        call = client.change(topic, job, delay=delay_ms / 1000, **flow)
        await self._record(number, call, lambda now: _changed(now, delay_ms))

    async def _sweep(self, topic: str) -> None:
        """Reschedule, or each third time cancel, all jobs of a topic in one state."""
        states: tuple[Literal["delayed", "ready"], ...] = ("delayed", "ready")
        state, delay_ms = self._chance.choice(states), self._chance.choice(DELAYS_MS)
        if next(self._sweeps) % 3 == 2:
            number = self._recorder.begin("cancel", topic, by="state")
            call = self._client().cancel_all(state=state, topics=topic)
        else:
            number = self._recorder.begin("change", topic, by="state", delay_ms=delay_ms)
            call = self._client().reschedule_all(state=state, topics=topic, delay=delay_ms / 1000)
        await self._record(number, call, lambda _: {"outcome": "done"})

    async def _redrive(self, topic: str, job: str) -> None:
        number = self._recorder.begin("redrive", topic, job)
        call = self._client().redrive(topic, ids=[job])
        await self._record(number, call, lambda count: {"outcome": "done" if count else "none"})

    async def _look(self, topic: str, job: str) -> None:
        client, via = self._any_client()
        number = self._recorder.begin("look", topic, job, **via)
        await self._record(number, client.get(topic, job), lambda there: {**shown_facts(there), "outcome": "there"})

    async def _cancel(self, topic: str, job: str) -> None:
        by, keeps = self._chance.choice(("", "", "ids", "tag")), self._chance.random() < 0.4
        if by:
            number = self._recorder.begin("cancel", topic, job, by=by)
            many = self._client().cancel_all(**_selector(topic, job, by))
            await self._record(number, many, lambda done: {"outcome": str(next(iter(done.was), UNKNOWN))})
            return
        client, via = self._any_client()
        number = self._recorder.begin("cancel", topic, job, keeps_follow_up=keeps, **via)
        call = client.cancel(topic, job, follow_up="keep" if keeps else "cancel")
        await self._record(number, call, lambda cancelled: {"outcome": str(cancelled.was)})

    # Consumers

    async def consume(self, topic: str) -> None:
        """Pop, and end the deliveries in various ways, until `stopping` is set."""
        while not self.stopping.is_set():
            popped = TOPICS if self._chance.random() < 0.25 else (topic,)
            count, wait_s = self._chance.choice((1, 1, 5)), self._chance.choice((0, 0.3, 1))
            jobs = await self._pop(*popped, count=count, wait_s=wait_s)
            if len({job.topic for job in jobs}) == 1 and len(jobs) > 2 and self._chance.random() < 0.3:
                await self._finish_all(jobs)
            else:
                await asyncio.gather(*map(self._handle, jobs))
            if not jobs:
                await asyncio.sleep(PAUSE_WHEN_EMPTY_S)

    async def put_burst(self, topic: str) -> None:
        """Put jobs that are all ready at once, for `finish_remaining`."""
        await self._put_batch(topic, [self._puts.of_burst(topic, number) for number in range(BURST)])

    async def finish_remaining(self, topic: str, wait_s: float) -> None:
        """Finish all jobs, each a moment after its delivery, while the next pop waits, until this is cancelled.

        The first delivery of some of a burst is not finished.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                for job in await self._pop(topic, count=100, wait_s=wait_s):
                    if job.attempt > 1 or job.id not in ABANDONED:
                        tasks.create_task(self._finish_soon(job))

    async def take_ends(self) -> None:
        """Record what the ends of jobs have put, and finish it, until `stopping` is set or this is cancelled.

        A job whose finish failed is handed out again, and recorded again.
        """
        while not self.stopping.is_set():
            try:
                jobs = await self._client().pop(END_TOPIC, count=20, wait=1)
                for job in jobs:
                    topic, ended, outcome, facts = end_facts(job)
                    self._recorder.ended(topic, ended, outcome, **facts)
                items = [{"id": job.id, "receipt": job.receipt} for job in jobs]
                if items:
                    await self._client().finish_many(END_TOPIC, items)
            except DeferdError:
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)

    async def _finish_soon(self, job: Delivery) -> None:
        await asyncio.sleep(FINISH_PAUSE_S)
        await self._finish(job)

    async def _pop(self, *topics: str, count: int, wait_s: float) -> Sequence[Delivery]:
        """Pop, and repeat the request by its id without a response, up to three times in all.

        Several topics are all of TOPICS: they are popped by patterns.
        """
        popped = topics[0] if len(topics) == 1 else PATTERNS
        self._requests += 1
        request = f"{self._name}-{self._requests}"
        for _ in range(3):
            client, via = self._any_client() if wait_s < RESPONSE_S else (self._client(), {})
            number = self._recorder.begin("pop", ",".join(topics), request=request, count=count, **via)
            call = client.pop(popped, count=count, wait=wait_s, request_id=request, consumer=self._name)
            jobs: list[Delivery] | None = await self._record(
                number,
                call,
                lambda popped: {"outcome": "jobs", "jobs": [delivery_facts(job) for job in popped]},
                wait_s,
            )
            if jobs is not None:
                return jobs
            if self.stopping.is_set():
                break
        return []

    async def _handle(self, job: Delivery) -> None:
        if job.id.endswith((COLLECTING, FOLLOWED)):  # so that puts find it held
            await asyncio.sleep(self._chance.choice((0, 0.1, 0.3)))
        what = self._chance.random()
        if what < 0.55:
            await self._end(job)
        elif what < 0.65:
            await self._touch_or_bury("touch", job)
            if self._chance.random() < 0.7:  # otherwise the job comes back when the extended lease expires
                await asyncio.sleep(self._chance.uniform(0, 0.3))
                await self._finish(job)
        elif what < 0.8:
            await self._release(job) if what < 0.75 else await self._snooze(job)
            then = self._chance.random()
            if then < 0.3:  # the receipt is stale by now
                await self._finish(self._chance.choice((job, JobRef(job.topic, job.id))))
            elif then < 0.6:  # in a group with strict order it keeps its place, unless it moves to another group
                await self._change(job.topic, job.id, self._chance.choice(DELAYS_MS))
        elif what < 0.85:
            await self._touch_or_bury("bury", job)
            if self._chance.random() < 0.6:
                await self._redrive(job.topic, job.id)
        elif what < 0.88:
            await self._change(job.topic, job.id, 0)  # refused while the job is held
            await self._finish(job)
        elif what < 0.92:
            await asyncio.sleep(job.ttr * self._chance.uniform(0.7, 1.3))  # about as long as its lease
            await self._finish(job)
        elif what < 0.96:
            await self._cancel(job.topic, job.id)
            await self._finish(job)

    async def _end(self, job: Delivery) -> None:
        """Finish the delivery in one of three ways; then perhaps once more, as after a lost response, or look at it."""
        if self._chance.random() < 0.2:
            await self._finish_and_put(job)
        else:
            await self._finish(job if self._chance.random() < 0.8 else JobRef(job.topic, job.id))
        then = self._chance.random()
        if then < 0.2:
            await self._finish(job)
        elif then < 0.32:
            await self._look(job.topic, job.id)  # a job drawn at random is seldom a finished one

    async def _finish(self, job: Delivery | JobRef) -> None:
        """Finish the delivery, or without a receipt the live one."""
        client, via = self._any_client()
        number, item = self._begin_finish(job, **via)
        await self._record(number, client.finish(job, item["result"]), lambda _: {"outcome": "done"})

    async def _finish_and_put(self, job: Delivery) -> None:
        """Finish the delivery and put another job in one step: two operations."""
        chain = f"{self._name}/{self._finishes}"
        number, item = self._begin_finish(job, chain=chain)
        next_job, terms, known = self._puts.draw(job.topic, collapses=False)
        numbers = [number, self._recorder.begin("put", job.topic, next_job, **known, chain=chain)]
        put = {"topic": job.topic, "id": next_job, "body": known["tag"], **terms}
        request = finish(job, item["result"], [put])

        def facts(response: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
            if "put" not in response:  # this delivery had finished the job before
                return [(response, {"outcome": "done"}), (response, {"outcome": NOT_SENT})]
            [put] = response["put"]
            outcome = "created" if put["status"] == CREATED else "kept"
            return [(response, {"outcome": "done"}), (put, {"outcome": outcome, "level": put["durability"]})]

        def refused(error: DeferdError) -> list[str]:
            is_put = isinstance(error, JobExists | JobReserved)
            return [NOT_SENT, _REFUSALS[type(error)]] if is_put else [_REFUSALS[type(error)], NOT_SENT]

        call = self._client().send(replace(request, read=json.loads))
        await self._record_all(numbers, call, facts, refused)

    async def _finish_all(self, jobs: Sequence[Delivery]) -> None:
        named = [job if self._chance.random() < 0.8 else JobRef(job.topic, job.id) for job in jobs]
        begun = [self._begin_finish(job) for job in named]

        def facts(results: Sequence[FinishResult]) -> list[tuple[FinishResult, dict[str, Any]]]:
            return [(one, {"outcome": "done" if one.code is None else _CODES[one.code]}) for one in results]

        call = self._client().finish_many(jobs[0].topic, [item for _, item in begun])
        await self._record_all([number for number, _ in begun], call, facts)

    def _begin_finish(self, job: Delivery | JobRef, **more: str) -> tuple[int, dict[str, str]]:
        """Record the start of a finish: its number, and its item for the client."""
        self._finishes += 1
        item = {"result": f"{self._name}/{self._finishes}"}
        if job.receipt is not None:
            item["receipt"] = job.receipt
        return self._recorder.begin("finish", job.topic, job.id, **item, **more), {"id": job.id, **item}

    async def _release(self, job: Delivery) -> None:
        is_by_backoff = isinstance(job.backoff, FixedBackoff)
        delay_ms = BACKOFF_MS if is_by_backoff else self._chance.choice((0, 50, 700))
        client, via = self._any_client()
        number = self._recorder.begin("release", job.topic, job.id, receipt=job.receipt, delay_ms=delay_ms, **via)
        delay_s = None if is_by_backoff else delay_ms / 1000

        def facts(released: Released) -> dict[str, Any]:
            if released.due_at is None:
                return {"outcome": str(released.state)}
            return {"outcome": "done", "at_ms": ms(released.due_at) - delay_ms}

        await self._record(number, client.release(job, delay=delay_s, error="not now"), facts)

    async def _snooze(self, job: Delivery) -> None:
        delay_ms = self._chance.choice((100, 500))
        client, via = self._any_client()
        number = self._recorder.begin("snooze", job.topic, job.id, receipt=job.receipt, delay_ms=delay_ms, **via)
        call = client.release(job, delay=delay_ms / 1000, count=False)
        await self._record(
            number,
            call,
            lambda released: (
                {"outcome": str(released.state)}
                if released.due_at is None
                else {"outcome": "done", "at_ms": ms(released.due_at) - delay_ms}
            ),
        )

    async def _touch_or_bury(self, kind: Literal["touch", "bury"], job: Delivery) -> None:
        (client, via), ttr_ms = self._any_client(), round(job.ttr * 1000)
        number = self._recorder.begin(kind, job.topic, job.id, receipt=job.receipt, **via)
        if kind == "bury":
            await self._record(number, client.bury(job), lambda _: {"outcome": "done"})
        else:
            await self._record(
                number,
                client.touch(job),
                lambda until: (
                    {"outcome": "done", "lease_end_ms": ms(until)}
                    | ({} if job.time_limit or job.deadline else {"at_ms": ms(until) - ttr_ms})
                ),
            )


def _outcome_of_reschedule(done: BulkResult) -> str:
    """As that of a change: of the one job that was meant."""
    if done.done:
        return "done"
    if not done.was:  # it may have been replaced after the call began
        return UNKNOWN
    return "held" if JobState.RESERVED in done.was else "not found"


def _changed(now: Job, delay_ms: int) -> dict[str, Any]:
    """What is known of a change. With a spread, the service computes the due time before the store makes the change."""
    due_ms = ms(now.due_at)
    if not now.spread:
        return {"outcome": "done", "at_ms": due_ms - delay_ms}
    moved_ms = due_ms - (due_ms if now.asked_for is None else ms(now.asked_for))
    return {"outcome": "done", "due_ms": due_ms, "delay_ms": delay_ms + moved_ms}


def _selector(topic: str, job: str, by: str) -> Selector:
    """Of a call on many jobs that is meant for one."""
    return {"tag": tag_of(job), "topics": topic} if by == "tag" else {"ids": [(topic, job)]}

"""The targets of pushed topics in a fault run: they respond, fail, hang and lie, and record what they got and did.

A request is recorded as a delivery, and its response as the call that the service has to make for it: a finish, a
release, a snooze or a bury whose outcome is unknown, since the service may die before it. So the checker of all other
histories checks pushes, too. While a request is under way, its lease is looked up, as the service extends it.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from email.utils import formatdate
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import convert

from deferd import AsyncClient, Delivery, Job, JobRef
from deferd.client.errors import NoAnswer
from deferd.contract.errors import DeferdError, JobCancelled, JobNotFound, ReceiptStale
from deferd.contract.model import JobState
from deferd.contract.webhook_signature import BadSignature, verify
from tests.faults.drawn_puts import BACKOFF_MS, BATCH_TOPIC, FAST_TOPIC, HANGING_TOPIC, PUSHED_TOPICS
from tests.faults.history import UNKNOWN, Kind, Recorder
from tests.faults.response_facts import delivery_facts, ms
from tests.push_receiver import OK, Received, Receiver, Reply, json_reply

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TIMEOUT_S = 1.0
MAX_IN_FLIGHT = 8
LOOK_S = 0.3
"""How often the lease of a request under way is looked up."""
LOOK_TIMEOUT_S = 0.4
HOLD_LOOK_S = 0.01
HOLD_MOST_S = TIMEOUT_S * 0.7
"""Requests that are held for longer would fail, and open circuits would let only one process push at a time."""
SOON_S = TIMEOUT_S / 2
"""Before that no service gives up."""
LATE_S = (0.05, 0.4)
TOO_LATE_S = TIMEOUT_S * 1.2
FINISHES = 3
RETRY_AFTER_MS = {"0": 100, "1": 1000, "date": 100}
"""How long jobs are snoozed at least, by the header; a date is that of the next second."""


class Behaviour(StrEnum):
    """What a target does with a request; the value is its description in reports."""

    OK = "200"
    LATE = "200 after a while"
    ERROR = "500, 404 or a redirect"
    GONE = "410"
    UNAVAILABLE = "429 or 503 with Retry-After"
    ACCEPTED = "202, and a finish by the receipt"
    ABANDONED = "202, and no finish"
    PARTLY = "200 that names a job as failed"
    HANGING = "no response"
    TOO_LATE = "200 after the time-out"
    CLOSED = "the connection is closed without a response"
    CUT = "200 and half of the body, then the connection is closed"
    GARBAGE = "bytes that are not HTTP"
    ENDLESS = "200 and a body without end"
    INTERIM = "1xx responses without end"
    TOO_LONG = "200 and a 410 that nobody asked for behind it"


_OF_STATUS_200 = {Behaviour.OK, Behaviour.LATE, Behaviour.PARTLY, Behaviour.TOO_LATE}
_DECK = [*Behaviour, *[Behaviour.OK] * 10, *[Behaviour.LATE] * 3]
"""The mixed targets behave like each of these before any comes again."""
_FINISHING = {*_OF_STATUS_200, Behaviour.ENDLESS, Behaviour.TOO_LONG}
_LEAVES_LEASE = {Behaviour.ACCEPTED, Behaviour.ABANDONED}
_REPLIES = {
    Behaviour.GONE: Reply(410),
    Behaviour.ACCEPTED: Reply(202),
    Behaviour.ABANDONED: Reply(202),
    Behaviour.CUT: Reply(raw=b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"half":', closes=True),
    Behaviour.CLOSED: Reply(raw=b"", closes=True),
    Behaviour.GARBAGE: Reply(raw=b"\x16\x03\x01 what is this\r\n\r\n" * 3, closes=True),
    Behaviour.ENDLESS: Reply(
        raw=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", endless=b"400\r\n%b\r\n" % (b"x" * 0x400)
    ),
    Behaviour.INTERIM: Reply(raw=b"", endless=b"HTTP/1.1 102 Processing\r\n\r\n" * 50),
    Behaviour.TOO_LONG: Reply(
        raw=b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"
    ),
}

_REFUSALS: dict[type[DeferdError], str] = {JobCancelled: "cancelled", JobNotFound: "not found", ReceiptStale: "stale"}


class PushTargets:
    """All targets of a run, on one port. Run it with `in_thread`; its other methods may be called from any thread."""

    def __init__(self, file: Path, seed: int) -> None:
        self.file = file
        self.port = 0
        self.requests: Counter[Behaviour] = Counter()
        self.beside = 0
        """Requests that arrived while another one of the same job was under way."""
        self.wrong: list[str] = []
        """Requests that are not what the service promises, and errors of the targets themselves."""
        self.delays_s: list[float] = []
        """How late the first requests of the fast target's jobs were."""
        self._chance = random.Random(f"{seed} targets")
        self._recorder = Recorder(file)
        self._receiver = Receiver()
        self._receiver.respond = self._respond
        self._deck: list[Behaviour] = []
        self._clients: list[AsyncClient] = []
        self._urls: list[str] = []
        self._is_settled = False
        self.holds = False
        """Respond late, to all requests but those of the fast target, until this is false again."""
        self._receipts: set[str] = set()
        self._under_way: set[str] = set()
        self._names: dict[str, str] = {}
        self._message_ids: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def under_way(self) -> int:
        """Requests without a response."""
        return self._receiver.under_way

    @property
    def closed(self) -> int:
        """Requests that their sender gave up, or that ended with it."""
        return self._receiver.closed

    def look_at(self, urls: Sequence[str]) -> None:
        """Look up leases at these services."""
        self._urls = list(urls)

    def settle(self) -> None:
        """Respond 200 to all requests from now on."""
        self._is_settled = True

    async def set_pushes(self, url: str) -> None:
        """Have the service at `url` push all topics; this also closes their circuits."""
        async with AsyncClient(url) as client:
            for topic in PUSHED_TOPICS:
                await client.set_push(
                    topic,
                    f"http://127.0.0.1:{self.port}/{topic}",
                    [SECRET],
                    timeout=TIMEOUT_S,
                    max_in_flight=MAX_IN_FLIGHT,
                    mode="batch" if topic == BATCH_TOPIC else "job",
                )

    # The server

    async def serve(self, ready: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._receiver.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for client in self._clients:
            await client.close()

    def stop(self) -> None:
        """End `serve`."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _respond(self, request: Received) -> Reply:
        try:
            return await self._handle(request)
        except Exception:  # noqa: BLE001 (the run must know)
            self.wrong.append(traceback.format_exc())
            return Reply(500)

    async def _handle(self, request: Received) -> Reply:
        arrived_s, arrived_ms = time.monotonic(), time.time() * 1000
        topic = request.target.removeprefix("/")
        deliveries = self._verified(topic, request)
        receipts = {str(one["receipt"]) for one in deliveries}
        if receipts & self._under_way:
            self.wrong.append(f"{topic}: the same delivery is sent twice at a time: {receipts}")
        self.beside += bool({_job_of(one) for one in receipts} & {_job_of(one) for one in self._under_way})
        self._under_way |= receipts
        # A request is sent again when the target had closed its connection.
        new = [one for one in deliveries if one["receipt"] not in self._receipts]
        self._receipts |= receipts
        watches: list[asyncio.Task[None]] = []
        try:
            for one in new:
                watches += await self._record_delivery(one, arrived_s, arrived_ms)
            while self.holds and topic != FAST_TOPIC and time.monotonic() < arrived_s + HOLD_MOST_S:
                await asyncio.sleep(HOLD_LOOK_S)
            behaviour = self._behaviour(topic)
            self.requests[behaviour] += 1
            reply = await self._reply(behaviour, deliveries)
        except asyncio.CancelledError:
            # The sender has closed the connection: because it waited for too long, or died. It may have done so long
            # before this is noticed, and have sent the request long before it arrived: machines are slow at times.
            self._may_release(deliveries, arrived_s)
            raise
        else:
            if behaviour not in _LEAVES_LEASE or time.monotonic() > arrived_s + SOON_S:
                self._may_release(deliveries, time.monotonic())
            return reply
        finally:
            self._under_way -= receipts
            for watch in watches:
                watch.cancel()

    def _verified(self, topic: str, request: Received) -> list[dict[str, Any]]:
        """The deliveries of a request; what is wrong with its headers is noted."""
        headers = request.headers
        try:
            verify([SECRET], headers, request.body, time.time())
        except BadSignature as error:
            self.wrong.append(f"{topic} {headers}: {error}")
        if topic == BATCH_TOPIC:
            return [delivery_facts(convert(fields, Delivery)) for fields in request.json["jobs"]]
        name, message_id = f"{topic}/{request.job_id} {request.json}", headers["webhook-id"]
        earlier = self._names.setdefault(message_id, name), self._message_ids.setdefault(name, message_id)
        if headers["deferd-topic"] != topic or earlier != (name, message_id):
            self.wrong.append(f"{name} {headers}: the message and its id were {earlier} before")
        return [
            {
                "topic": topic,
                "job": request.job_id,
                "tag": request.json,
                "attempt": int(headers["deferd-attempt"]),
                "receipt": headers["deferd-receipt"],
                "lease_end_ms": 0,
                "created_ms": 0,
                "at_ms": None,
            }
        ]

    async def _record_delivery(
        self, facts: dict[str, Any], arrived_s: float, arrived_ms: float
    ) -> list[asyncio.Task[None]]:
        """Record a delivery, made at some time before it arrived; the task that watches its lease."""
        topic = facts["topic"]
        number = self._recorder.begin("pop", topic, request=facts["receipt"], call_s=0.0)
        watches = []
        if not facts["lease_end_ms"]:
            touch = self._begin("touch", facts)
            job = await self._look(facts)
            if job is not None and job.reserved_until is not None:
                facts |= {"lease_end_ms": ms(job.reserved_until), "created_ms": ms(job.created_at)}
                watches.append(asyncio.create_task(self._watch(facts, touch)))
                if topic == FAST_TOPIC and facts["attempt"] == 1:
                    self.delays_s.append((arrived_ms - ms(job.due_at)) / 1000)
        self._recorder.end(number, "jobs", jobs=[facts], end_s=arrived_s)
        return watches

    def _may_release(self, deliveries: list[dict[str, Any]], from_s: float) -> None:
        """For the service the request may have failed, whatever the response: it may have come too late."""
        for one in deliveries:
            self._begin("release", one, delay_ms=BACKOFF_MS, call_s=from_s)

    async def _look(self, facts: dict[str, Any]) -> Job | None:
        """The job, if it is held by this delivery and a service responds."""
        try:
            job = await self._client().get(facts["topic"], facts["job"])
        except (DeferdError, NoAnswer):
            return None
        is_held = job.state is JobState.RESERVED and job.attempts == facts["attempt"] and job.body == facts["tag"]
        return job if is_held else None

    async def _watch(self, facts: dict[str, Any], touch: int) -> None:
        """Record each extension of the lease: it was made between the looks before and after it."""
        lease_end_ms = facts["lease_end_ms"]
        while True:
            await asyncio.sleep(LOOK_S)
            next_touch = self._begin("touch", facts)
            job = await self._look(facts)
            if job is None or job.reserved_until is None:
                continue
            if ms(job.reserved_until) > lease_end_ms:
                lease_end_ms = ms(job.reserved_until)
                self._recorder.end(touch, "done", lease_end_ms=lease_end_ms)
            touch = next_touch

    def _client(self) -> AsyncClient:
        if not self._clients:
            self._clients = [AsyncClient(url, retry_for=0, timeout=LOOK_TIMEOUT_S) for url in self._urls]
        return self._chance.choice(self._clients)

    def _begin(self, kind: Kind, facts: dict[str, Any], **more: Any) -> int:
        """Record a call that the service makes, unless it dies before that, and whose response nobody sees."""
        return self._recorder.begin(kind, facts["topic"], facts["job"], receipt=facts["receipt"], **more)

    # Responses

    def _behaviour(self, topic: str) -> Behaviour:
        if self._is_settled or topic == FAST_TOPIC:
            return Behaviour.OK
        if topic == HANGING_TOPIC:
            return Behaviour.HANGING
        if not self._deck:
            self._deck = list(_DECK)
            self._chance.shuffle(self._deck)
        behaviour = self._deck.pop()
        if behaviour is Behaviour.PARTLY and topic != BATCH_TOPIC:
            self._deck.insert(0, behaviour)
            return Behaviour.OK
        return behaviour

    async def _reply(self, behaviour: Behaviour, deliveries: list[dict[str, Any]]) -> Reply:
        """Do what the target does before its response, record what the service has to do after it, and respond."""
        match behaviour:
            case Behaviour.LATE:
                await asyncio.sleep(self._chance.uniform(*LATE_S))
            case Behaviour.TOO_LATE:
                await asyncio.sleep(TOO_LATE_S)
            case Behaviour.HANGING:
                await asyncio.Event().wait()
            case Behaviour.UNAVAILABLE:
                return self._snooze(deliveries)
            case Behaviour.ACCEPTED:
                for one in deliveries:
                    task = asyncio.create_task(self._finish_later(one))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        failed = deliveries[:1] if behaviour is Behaviour.PARTLY else []
        for one in deliveries[len(failed) :]:
            if behaviour is Behaviour.GONE:
                self._begin("bury", one)
            elif behaviour in _FINISHING:
                self._begin("finish", one, result="")
        if failed:
            return json_reply({"failures": [{"id": one["job"], "error": "not this one"} for one in failed]})
        if behaviour is Behaviour.ERROR:
            return Reply(self._chance.choice((500, 404, 302)), headers={"location": "/"})
        return _REPLIES.get(behaviour, OK)

    def _snooze(self, deliveries: list[dict[str, Any]]) -> Reply:
        retry_after, delay_ms = self._chance.choice(list(RETRY_AFTER_MS.items()))
        for one in deliveries:
            self._begin("snooze", one, delay_ms=delay_ms)
        if retry_after == "date":
            retry_after = formatdate(time.time() + 1, usegmt=True)
        return Reply(self._chance.choice((429, 503)), headers={"retry-after": retry_after})

    async def _finish_later(self, facts: dict[str, Any]) -> None:
        """Finish the job by its receipt, as the receiver of a request that it accepted."""
        await asyncio.sleep(self._chance.uniform(*LATE_S))
        for _ in range(FINISHES):
            number = self._begin("finish", facts, result="")
            try:
                await self._client().finish(JobRef(facts["topic"], facts["job"], facts["receipt"]))
            except (JobCancelled, JobNotFound, ReceiptStale) as error:
                self._recorder.end(number, _REFUSALS[type(error)])
                return
            except (DeferdError, NoAnswer):
                self._recorder.end(number, UNKNOWN)
                await asyncio.sleep(LOOK_S)
            else:
                self._recorder.end(number, "done")
                return


def _job_of(receipt: str) -> str:
    """What the receipts of all deliveries of one job have in common."""
    return receipt.partition(".")[0]

"""A client that disconnects before its response: its work is cancelled, and jobs popped for it return to the queue."""

from __future__ import annotations

import asyncio
import types
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

import deferd
from deferd.api.incoming_request import AsgiRequest, IncomingRequest
from deferd.api.operation import OperationRoute
from deferd.api.routes.deliveries import return_undelivered
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine.deliveries import HeldJobs
from deferd.engine.dispatcher import Dispatcher
from deferd.engine.engine import Engine
from deferd.engine.queue import JobQueue, PopReply
from deferd.engine.record import JobRecord
from deferd.engine.redis_keys import Keys
from deferd.engine.topic_search import TopicSearch
from deferd.server.http.protocol import FastPathRequest

_APP = Path(deferd.__file__).parent
_JOB = JobRecord("t", "j", JobState.RESERVED, 0, 0, 1, 1, b"null")


class Client:
    """A client whose request came through ASGI, or by the fast path."""

    def __init__(self, kind: str) -> None:
        self._gone = asyncio.Event()
        self._messages: list[Message] = [{"type": "http.request", "body": b""}] if kind == "asgi" else []
        self.request: IncomingRequest
        if kind == "fast path":
            self.request = FastPathRequest(
                cast("OperationRoute", None),
                {},
                method="POST",
                query=b"",
                headers=[],
                body_length=0,
                keep_alive=True,
                client=None,
            )
        else:
            scope = {"method": "POST", "query_string": b"", "headers": []}
            self.request = AsgiRequest(scope, self._receive, {}, 0)

    def disconnect(self) -> None:
        if isinstance(self.request, FastPathRequest):
            self.request.disconnect()
        else:
            self._gone.set()

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}


class Queue:
    """A queue whose one pop waits until the test sets its reply."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[PopReply] = asyncio.get_running_loop().create_future()
        self.pop_called = asyncio.Event()
        self.returned: list[JobRecord] = []

    async def pop(self, _topic: str, _requests: list[Any]) -> PopReply:
        self.pop_called.set()
        return await self.reply

    async def return_popped(self, jobs: list[JobRecord]) -> None:
        self.returned += jobs

    def hand_out(self, *jobs: JobRecord) -> None:
        self.reply.set_result(PopReply([list(jobs)], more=False, resend=set()))


@pytest.fixture(params=["asgi", "asgi, body read", "fast path"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


def pop(client: Client, queue: Queue) -> asyncio.Task[list[JobRecord]]:
    queue_and_held = cast("JobQueue", queue), cast("HeldJobs", queue)
    dispatcher = Dispatcher(*queue_and_held, lambda _topic: 0, cast("TopicSearch", None), Keys(1))
    return asyncio.create_task(client.request.cancel_on_disconnect(dispatcher.pop(["t"], wait_ms=60_000)))


async def no_task_is_left() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    coroutines = [cast("types.CoroutineType[Any, Any, Any]", task.get_coro()) for task in asyncio.all_tasks()]
    assert not [one for one in coroutines if Path(one.cr_code.co_filename).is_relative_to(_APP)]


async def test_a_client_that_waits_gets_its_jobs(client: Client) -> None:
    queue = Queue()
    popping = pop(client, queue)
    await queue.pop_called.wait()
    queue.hand_out(_JOB)
    assert await popping == [_JOB]
    assert queue.returned == []
    await no_task_is_left()


async def test_a_disconnect_ends_the_wait_and_jobs_that_come_later_return(client: Client) -> None:
    queue = Queue()
    popping = pop(client, queue)
    await queue.pop_called.wait()
    client.disconnect()
    with pytest.raises(ClientDisconnect):
        await popping
    queue.hand_out(_JOB)
    await no_task_is_left()
    assert queue.returned == [_JOB]


@pytest.mark.parametrize("steps", range(6))
async def test_jobs_that_come_as_the_client_disconnects_return_or_are_handed_out(client: Client, steps: int) -> None:
    queue = Queue()
    popping = pop(client, queue)
    await queue.pop_called.wait()
    queue.hand_out(_JOB)
    for _ in range(steps):  # of the event loop, between the reply and the disconnect
        await asyncio.sleep(0)
    client.disconnect()
    try:
        handed_out = await popping
    except ClientDisconnect:
        handed_out = []
    await no_task_is_left()
    assert [*handed_out, *queue.returned] == [_JOB]
    if not steps:
        assert queue.returned == [_JOB]


async def test_after_a_disconnect_no_work_begins(client: Client) -> None:
    client.request.disconnect()
    queue = Queue()
    with pytest.raises(ClientDisconnect):
        await pop(client, queue)
    assert not queue.pop_called.is_set()
    await no_task_is_left()


async def test_an_error_reaches_a_client_that_waits(client: Client) -> None:
    async def fail() -> None:
        raise StoreUnavailable("the store does not respond")

    with pytest.raises(StoreUnavailable):
        await client.request.cancel_on_disconnect(fail())
    await no_task_is_left()


async def test_an_error_for_a_client_that_is_gone_is_dropped(client: Client) -> None:
    async def fail_when_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise StoreUnavailable("the store does not respond")

    working = asyncio.create_task(client.request.cancel_on_disconnect(fail_when_cancelled()))
    await asyncio.sleep(0)
    client.disconnect()
    with pytest.raises(ClientDisconnect):
        await working


async def test_cancelling_the_request_cancels_its_pop(client: Client) -> None:
    queue = Queue()
    popping = pop(client, queue)
    await queue.pop_called.wait()
    popping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await popping
    queue.hand_out(_JOB)
    await no_task_is_left()
    assert queue.returned == [_JOB]


async def test_jobs_that_cannot_return_are_left_to_their_leases(caplog: pytest.LogCaptureFixture) -> None:
    class EngineOverNoStore:
        class held_jobs:  # noqa: N801 (an attribute of an Engine)
            @staticmethod
            async def return_popped(jobs: list[JobRecord]) -> None:
                raise StoreUnavailable("the store does not respond")

    await return_undelivered(cast("Engine", cast("Any", EngineOverNoStore())), [_JOB])
    assert "1 jobs of a refused pop become ready only when their leases end" in caplog.text

"""What becomes of a pop whose client does not wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from starlette.types import Message

from deferd.api.call import unless_gone
from deferd.engine.engine import Engine
from deferd.engine.record import JobRecord
from deferd.errors import StoreUnavailable
from deferd.model import JobState

_JOB = JobRecord("t", "j", JobState.RESERVED, 0, 0, 1, 1, b"null")


class Client:
    """The receiving end of a connection, as a server gives it to the application."""

    def __init__(self, *, request_read: bool = False) -> None:
        self._waiting: list[Message] = [] if request_read else [{"type": "http.request", "body": b""}]
        self._gone = asyncio.Event()

    def hang_up(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        if self._waiting:
            return self._waiting.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}


class Queue:
    """Remembers what was given back."""

    def __init__(self, error: Exception | None = None) -> None:
        self.given_back: list[JobRecord] = []
        self._error = error

    async def give_back(self, jobs: Sequence[JobRecord]) -> None:
        if self._error is not None:
            raise self._error
        self.given_back += jobs


class Pop:
    """A pop that waits until the test answers it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[JobRecord]] = asyncio.get_running_loop().create_future()
        self.was_cancelled = False
        self.task = asyncio.create_task(self._wait())

    async def _wait(self) -> list[JobRecord]:
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


@pytest.fixture
async def pop() -> AsyncIterator[Pop]:
    pop = Pop()
    await asyncio.sleep(0)  # so that it waits
    yield pop
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.sleep(0)
    assert not [task for task in others if not task.done() and "_hang_up" in repr(task.get_coro())]


def watch(pop: Pop, client: Client, queue: Queue) -> asyncio.Task[Sequence[JobRecord]]:
    class EngineWithQueue:
        def __init__(self) -> None:
            self.queue = queue

    return asyncio.create_task(unless_gone(pop.task, client.receive, cast("Engine", cast("Any", EngineWithQueue()))))


@pytest.mark.parametrize("request_read", [False, True])
async def test_a_client_that_waits_gets_its_jobs(pop: Pop, request_read: bool) -> None:
    queue = Queue()
    watched = watch(pop, Client(request_read=request_read), queue)
    pop.answer.set_result([_JOB])
    assert list(await watched) == [_JOB]
    assert queue.given_back == []


@pytest.mark.parametrize("request_read", [False, True])
async def test_hanging_up_ends_the_wait(pop: Pop, request_read: bool) -> None:
    client, queue = Client(request_read=request_read), Queue()
    watched = watch(pop, client, queue)
    client.hang_up()
    assert list(await watched) == []
    assert pop.was_cancelled
    assert queue.given_back == []


async def test_jobs_that_come_as_the_client_hangs_up_go_back(pop: Pop) -> None:
    client, queue = Client(request_read=True), Queue()
    client.hang_up()
    pop.answer.set_result([_JOB])
    await asyncio.wait((pop.task,))
    assert list(await watch(pop, client, queue)) == []
    assert queue.given_back == [_JOB]


async def test_jobs_that_cannot_go_back_are_left_to_their_leases(pop: Pop, caplog: pytest.LogCaptureFixture) -> None:
    client, queue = Client(request_read=True), Queue(StoreUnavailable("the store does not answer"))
    client.hang_up()
    pop.answer.set_result([_JOB])
    await asyncio.wait((pop.task,))
    assert list(await watch(pop, client, queue)) == []
    assert "1 jobs of a client that hung up" in caplog.text


async def test_an_error_of_the_pop_reaches_the_client(pop: Pop) -> None:
    watched = watch(pop, Client(), Queue())
    pop.answer.set_exception(StoreUnavailable("the store does not answer"))
    with pytest.raises(StoreUnavailable):
        await watched


async def test_an_error_of_the_pop_of_a_client_that_is_gone_is_dropped(pop: Pop) -> None:
    client = Client(request_read=True)
    client.hang_up()
    pop.answer.set_exception(StoreUnavailable("the store does not answer"))
    await asyncio.wait((pop.task,))
    assert list(await watch(pop, client, Queue())) == []


async def test_stopping_the_request_stops_its_pop(pop: Pop) -> None:
    watched = watch(pop, Client(), Queue())
    await asyncio.sleep(0)
    watched.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watched
    assert pop.was_cancelled

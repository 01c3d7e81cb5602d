"""What becomes of a pop, or of other long work, whose client does not wait for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from deferd.api.call import unless_gone
from deferd.api.routes.pop import give_back
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine.engine import Engine
from deferd.engine.record import JobRecord

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


def watch(pop: Pop, client: Client, given_back: list[JobRecord]) -> asyncio.Task[list[JobRecord]]:
    async def give_back(jobs: list[JobRecord]) -> None:
        given_back.extend(jobs)

    return asyncio.create_task(unless_gone(pop.task, client.receive, give_back))


@pytest.mark.parametrize("request_read", [False, True])
async def test_a_client_that_waits_gets_its_jobs(pop: Pop, request_read: bool) -> None:
    given_back: list[JobRecord] = []
    watched = watch(pop, Client(request_read=request_read), given_back)
    pop.answer.set_result([_JOB])
    assert await watched == [_JOB]
    assert given_back == []


@pytest.mark.parametrize("request_read", [False, True])
async def test_hanging_up_ends_the_wait(pop: Pop, request_read: bool) -> None:
    client = Client(request_read=request_read)
    given_back: list[JobRecord] = []
    watched = watch(pop, client, given_back)
    client.hang_up()
    with pytest.raises(ClientDisconnect):
        await watched
    assert pop.was_cancelled
    assert given_back == []


async def test_jobs_that_come_as_the_client_hangs_up_go_back(pop: Pop) -> None:
    client = Client(request_read=True)
    given_back: list[JobRecord] = []
    client.hang_up()
    pop.answer.set_result([_JOB])
    await asyncio.wait((pop.task,))
    with pytest.raises(ClientDisconnect):
        await watch(pop, client, given_back)
    assert given_back == [_JOB]


async def test_an_error_of_the_pop_reaches_the_client(pop: Pop) -> None:
    watched = watch(pop, Client(), [])
    pop.answer.set_exception(StoreUnavailable("the store does not answer"))
    with pytest.raises(StoreUnavailable):
        await watched


async def test_an_error_of_the_pop_of_a_client_that_is_gone_is_dropped(pop: Pop) -> None:
    client = Client(request_read=True)
    client.hang_up()
    pop.answer.set_exception(StoreUnavailable("the store does not answer"))
    await asyncio.wait((pop.task,))
    with pytest.raises(ClientDisconnect):
        await watch(pop, client, [])


async def test_stopping_the_request_stops_its_pop(pop: Pop) -> None:
    watched = watch(pop, Client(), [])
    await asyncio.sleep(0)
    watched.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watched
    assert pop.was_cancelled


async def test_jobs_that_cannot_go_back_are_left_to_their_leases(caplog: pytest.LogCaptureFixture) -> None:
    class EngineOverNoStore:
        class queue:  # noqa: N801 (an attribute of an Engine)
            @staticmethod
            async def return_to_queue(jobs: list[JobRecord]) -> None:
                raise StoreUnavailable("the store does not answer")

    await give_back(cast("Engine", cast("Any", EngineOverNoStore())), [_JOB])
    assert "1 jobs that nobody got come back when their leases end" in caplog.text

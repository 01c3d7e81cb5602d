"""Jobs move between a real store and real files while calls are lost, come late, and the process ends anywhere."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.ends import OnEnd
from deferd.contract.errors import JobExists, JobNotFound, StoreUnavailable
from deferd.contract.model import ChangeJob, JobState, PutJob
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import NO_BOUNDS
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Asked, Job, ShelfCalls
from deferd.shelf.moving import FilesClosed, Mover
from deferd.shelf.rows import Move, Rows
from deferd.store.connection import Store, connect
from tests.drawn_input import drawn
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.store.store_servers import StoreServer
from tests.shelving import ShelfInProcess, Shelved, let_go
from tests.waiting import until

IDS = ("a", "b", "c", "d", "e")
FAR_S, NEAR_S = 100_000, 50
BATCH = 3
FAULTS = ("call lost", "call late", "reply lost", "ends before", "ends after")
"""What may happen to a call of a script that moves jobs: the last two end the process."""


class Ended(BaseException):
    """The process ended."""


class FaultyScripts(Scripts):
    """Scripts whose next call has a fault."""

    fault: str | None = None
    late: list[tuple[Any, ...]]

    async def run(self, verb: str, keys: Sequence[str], args: Sequence[Any], **more: Any) -> Any:
        if verb == "shelve_pick" or self.fault is None:
            return await super().run(verb, keys, args, **more)
        fault, self.fault = self.fault, None
        if fault == "ends before":
            raise Ended
        if fault == "call late" and verb != "shelve_settle":
            self.late.append((verb, keys, args))
        if fault in {"reply lost", "ends after"}:
            await super().run(verb, keys, args, **more)
        raise Ended if fault == "ends after" else StoreUnavailable(fault)

    async def bring(self) -> None:
        """Let a call come that was thought to be lost."""
        if self.late:
            await super().run(*self.late.pop())


class NewestMover:
    """The mover of a world that lives now."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.mover, name)


class World:
    """A store, the shelf's files, and what must be in one of them."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.keys = Keys(1)
        self.rows = Rows(folder)
        self.scripts = FaultyScripts(store)
        self.scripts.late = []
        self.mover = Mover(self.rows, self.scripts, self.keys)
        self.engine = Engine(store, shelf=cast("ShelfCalls", NewestMover(self)))
        self.records: dict[str, bytes] = {}
        """What was stored under each id that is in use."""

    async def close(self) -> None:
        await self.mover.close()
        self.rows.close()
        await self.engine.close()

    async def do(self, step: str, number: int) -> None:
        chance = Random(number)
        job_id = chance.choice(IDS)
        try:
            await getattr(self, step)(chance, job_id)
        except StoreUnavailable:
            pass
        except Ended:
            self.mover = Mover(self.rows, self.scripts, self.keys)
            await self.settled()
        await self.check()

    async def settled(self) -> None:
        while True:
            try:
                await self.mover.settle_all()
            except StoreUnavailable:
                pass
            except Ended:
                self.mover = Mover(self.rows, self.scripts, self.keys)
            else:
                return

    async def failing_out(self, chance: Random, job_id: str) -> None:
        self.scripts.fault = chance.choice(FAULTS)
        await chance.choice((self.out, self.change_between))(chance, job_id)

    async def failing_back(self, chance: Random, job_id: str) -> None:
        self.scripts.fault = chance.choice(FAULTS)
        await self.back(chance, job_id)

    async def failing_settlement(self, chance: Random, job_id: str) -> None:
        await self.failing_out(chance, job_id)
        self.scripts.fault = chance.choice(FAULTS)

    async def late_call(self, *_: Any) -> None:
        await self.scripts.bring()

    async def put(self, chance: Random, job_id: str) -> None:
        if job_id in self.records:
            with pytest.raises(JobExists):
                await self.engine.puts.put(PutJob(topic=TOPIC, id=job_id))
            return
        await self.engine.puts.put(
            PutJob.model_validate(
                {
                    "topic": TOPIC,
                    "id": job_id,
                    "delay": chance.choice((FAR_S, FAR_S, NEAR_S)) + chance.randrange(3),
                    "body": "x" * chance.randrange(20),
                    **chance.choice(({}, {"tags": ["t", job_id]}, {"ttl": 5}, {"deadline": 7, "tags": ["t"]})),
                }
            )
        )
        await self._note(job_id)

    async def change(self, chance: Random, job_id: str) -> None:
        if job_id in self.records:
            wanted = chance.choice(({"tags": ["u"]}, {"delay": FAR_S + 9}, {"body": 7}, {"delay": NEAR_S}))
            await self.engine.queue.change(TOPIC, job_id, ChangeJob.model_validate(wanted))
            await self._note(job_id)
        else:
            with pytest.raises(JobNotFound):
                await self.engine.queue.change(TOPIC, job_id, ChangeJob(delay=1))

    async def cancel(self, _: Random, job_id: str) -> None:
        if job_id in self.records:
            assert await self.engine.cancels.cancel(TOPIC, job_id) is JobState.DELAYED
            del self.records[job_id]
        else:
            with pytest.raises(JobNotFound):
                await self.engine.cancels.cancel(TOPIC, job_id)

    async def change_between(self, chance: Random, job_id: str) -> None:
        """A job is changed, or cancelled and put again, between the steps of its move."""
        run, changed = self.scripts.run, False

        async def run_later(verb: str, *args: Any, **more: Any) -> Any:
            nonlocal changed
            if verb == "shelve_out" and not changed and await self._stored(job_id):
                changed = True
                wanted = chance.choice(({"body": 9}, {"delay": NEAR_S}, {"tags": ["v"]}))
                await self.engine.queue.change(TOPIC, job_id, ChangeJob.model_validate(wanted))
                await self._note(job_id)
            return await run(verb, *args, **more)

        self.scripts.run = run_later  # type: ignore[method-assign]
        try:
            await self.out(chance, job_id)
        finally:
            del self.scripts.run

    async def out(self, chance: Random, _: str) -> None:
        from_ms = int(time.time() + FAR_S / 2) * 1000
        let_go(self.mover)
        await self.mover.move_out(TOPIC, from_ms, pass_over=chance.choice((0, 0, 0, 1)), most=BATCH)

    async def back(self, chance: Random, _: str) -> None:
        await self.mover.move_in(TOPIC, chance.sample(IDS, BATCH))

    async def _stored(self, job_id: str) -> bytes | None:
        stored: bytes | None = await self.store.call("HGET", self.keys.named(TOPIC, "pool"), job_id)
        return stored

    async def _note(self, job_id: str) -> None:
        stored = await self._stored(job_id)
        assert stored is not None
        self.records[job_id] = stored

    async def check(self) -> None:
        """Each job is in one place; while a move is under way, its jobs may have rows besides."""
        expiring = await self.store.call("ZRANGE", self.keys.named(TOPIC, "expiry"), 0, -1)
        tagged = await self.store.call("HKEYS", self.keys.named(TOPIC, "tagged"))
        assert {*expiring, *tagged} <= set(await self.store.call("HKEYS", self.keys.named(TOPIC, "pool")))
        moving = {job_id for move in self.rows.moves() for job_id in move.ids}
        for job_id in IDS:
            row = [job.record for job in self.rows.jobs(TOPIC, [job_id])]
            stored = [record for record in [await self._stored(job_id)] if record is not None]
            expected = [self.records[job_id]] if job_id in self.records else []
            if job_id in moving:
                assert set(expected) <= {*row, *stored}, (job_id, row, stored)
            else:
                assert [*row, *stored] == expected, (job_id, row, stored)

    async def check_at_end(self) -> None:
        self.scripts.fault = None
        await self.settled()
        assert self.rows.moves() == []
        await self.check()
        shelved = self.rows.jobs(TOPIC, IDS)
        assert sorted(self.rows.due_until(TOPIC, 1 << 47, 100)) == sorted(job.id for job in shelved)
        for tag in ("t", "u", "v", *IDS):
            assert self.rows.with_tag(TOPIC, tag, 100) == sorted(job.id for job in shelved if tag in job.tags)
        assert await self._counts() == (len(shelved), sum(map(_size, shelved)), sum(len(job.tags) for job in shelved))
        while self.scripts.late:
            await self.scripts.bring()
        await self.check()
        await self.mover.move_in(TOPIC, IDS)
        await self.check()
        assert (await self._counts(), self.rows.jobs(TOPIC, IDS)) == ((0, 0, 0), [])
        if self.records:
            assert (await self.engine.consistency.audit_topic(TOPIC)).clean

    async def _counts(self) -> tuple[int, int, int]:
        jobs, size, tags = await self.store.call("HMGET", self.keys.named(TOPIC, "shelf"), "jobs", "bytes", "tags")
        return int(jobs or 0), int(size or 0), int(tags or 0)


def _size(job: Job) -> int:
    """As lua/lib/shelf.lua counts it: texts in the store, each tag also in its index."""
    size = 2 * len(job.id) + len(job.record)
    if job.tags:
        size += len(job.id) + 2 * len(" ".join(job.tags)) + len(job.tags) * (len(TOPIC) + len(job.id))
    return size


STEPS = (
    *("put", "put", "put", "out", "out", "change_between", "back", "change", "cancel", "late_call"),
    *("failing_out", "failing_out", "failing_back", "failing_settlement"),
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@drawn(150)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**32)), min_size=25, max_size=40))
def test_each_job_is_in_the_store_or_on_the_shelf(
    running_server: StoreServer, runner: asyncio.Runner, tmp_path: Path, steps: list[tuple[str, int]]
) -> None:
    async def live() -> None:
        running_server.command("FLUSHALL")
        store = await connect(running_server.url, timeout_s=5)
        world = World(store, tmp_path / f"{Random().random()}")
        try:
            for step, number in steps:
                await world.do(step, number)
            await world.check_at_end()
        finally:
            await world.close()
            await store.close()

    runner.run(live())


@pytest.fixture
async def world(store: Store, tmp_path: Path) -> AsyncIterator[World]:
    world = World(store, tmp_path)
    yield world
    await world.close()


async def test_a_batch_that_comes_back_late_does_nothing(world: World) -> None:
    await put_far(world, "a", "b")
    await world.mover.move_out(TOPIC, 0)
    world.scripts.fault = "call late"
    with pytest.raises(StoreUnavailable):
        await world.mover.move_in(TOPIC, ["a"])
    await world.cancel(Random(), "a")
    await world.scripts.bring()
    await world.check_at_end()


async def test_a_job_that_the_store_has_is_not_replaced_by_its_row(world: World) -> None:
    await put_far(world, "a")
    await world.mover.move_out(TOPIC, 0)
    await unaware_put(world, "a")
    await world.mover.move_in(TOPIC, ["a"])
    assert (await world.engine.queue.get(TOPIC, "a")).body == b'"unaware"'


async def test_a_put_that_comes_when_its_id_may_have_left_the_store_asks_again(world: World) -> None:
    """Between asking and putting, another put has stored the job, and it has left."""
    await put_far(world, "b")
    await world.mover.move_out(TOPIC, 0)
    with pytest.raises(JobExists):
        await world.engine.puts.put(PutJob(topic=TOPIC, id="b"))  # from now on the engine knows that jobs are there
    ask, asked = world.engine.shelf.ask, 0

    async def ask_slowly(topic: str, ids: Sequence[str], **_: Any) -> int:
        nonlocal asked
        generation = await ask(topic, ids)
        asked += 1
        if asked == 1:
            other = Engine(world.store, shelf=cast("ShelfCalls", NewestMover(world)))
            await other.puts.put(PutJob(topic=TOPIC, id="a", delay=FAR_S))
            await other.close()
            let_go(world.mover)
            assert await world.mover.move_out(TOPIC, 0) == (2, 2)
        return generation

    world.engine.shelf.ask = ask_slowly  # type: ignore[method-assign]
    with pytest.raises(JobExists):
        await world.engine.puts.put(PutJob(topic=TOPIC, id="a"))
    assert asked == 2


async def test_puts_go_on_when_the_files_are_older_than_the_store(world: World) -> None:
    """As when a copy of the shelf's folder was put back: its generations are those of an earlier start."""
    await put_far(world, "a")
    await world.mover.move_out(TOPIC, 0)
    await world.store.call("HSET", world.keys.named(TOPIC, "shelf"), "generation", 1 << 50)
    await put_far(world, "b")
    with pytest.raises(JobExists):
        await world.engine.puts.put(PutJob(topic=TOPIC, id="a"))


async def test_a_store_that_was_emptied_learns_again_what_is_on_the_shelf(world: World) -> None:
    await put_far(world, "a", "b")
    await world.engine.queue.change(TOPIC, "b", ChangeJob(on_end=OnEnd(topic="ended")))
    await world.mover.move_out(TOPIC, 0)
    await world.store.call("FLUSHALL")
    world.mover = Mover(world.rows, world.scripts, world.keys)
    await world.mover.settle_all()
    assert (await world._counts())[0] == 2
    with pytest.raises(JobExists):
        await world.engine.puts.put(PutJob(topic=TOPIC, id="a"))
    assert await world.engine.cancels.cancel(TOPIC, "b") is JobState.DELAYED
    [end] = await world.store.call("HVALS", world.keys.named("ended", "pool"))
    assert b'"outcome":"cancelled"' in end


async def test_ids_that_were_asked_for_do_not_leave_the_store(world: World) -> None:
    await put_far(world, "a", "b")
    await world.mover.move_out(TOPIC, 0)
    await world.mover.load(TOPIC, ["a", "c"])
    await put_far(world, "c")
    await unaware_put(world, "d")
    assert await world.mover.move_out(TOPIC, 0) == (3, 1)
    assert [job.id for job in world.rows.jobs(TOPIC, IDS)] == ["b", "d"]
    let_go(world.mover)
    assert await world.mover.move_out(TOPIC, 0) == (2, 2)


async def test_a_call_for_a_job_that_is_about_to_leave_has_it_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is not written yet: that it has none does not mean that it stays. A put would store a second job."""
    await put_far(world, "a", "b")
    begin, may_begin = world.rows.begin, threading.Event()

    def begin_later(move: Move, jobs: Sequence[Job] = ()) -> None:
        assert may_begin.wait(10)
        begin(move, jobs)

    monkeypatch.setattr(world.rows, "begin", begin_later)
    leaving = asyncio.create_task(world.mover.move_out(TOPIC, 0))
    await until(lambda: TOPIC in world.mover._unsettled, "the batch has begun to leave")
    asking = asyncio.create_task(world.mover.load(TOPIC, ["c", "b", "b"]))
    await asyncio.sleep(0)  # it has asked
    may_begin.set()
    assert await leaving == (2, 2)
    await asking
    assert [job.id for job in world.rows.jobs(TOPIC, IDS)] == ["a"]


async def test_ids_leave_the_store_once_all_puts_that_asked_for_them_have_ended(world: World) -> None:
    await put_far(world, "a", "b")
    await world.mover.move_out(TOPIC, 0)
    with pytest.raises(JobExists):
        await world.engine.puts.put(PutJob(topic=TOPIC, id="b"))  # from now on the engine knows that jobs are there
    generation = await world.mover.load(TOPIC, ["c"])  # as another process does
    await put_far(world, "c", "d")
    await world.engine.puts.put(PutJob(topic=TOPIC, id="e", delay=NEAR_S))  # its question tells of the puts before
    from_ms = int(time.time() + FAR_S / 2) * 1000
    assert await world.mover.move_out(TOPIC, from_ms) == (3, 2)
    assert [job.id for job in world.rows.jobs(TOPIC, IDS)] == ["a", "b", "d"]
    await world.mover.load(TOPIC, [], [Asked(generation, ["c"])])
    assert await world.mover.move_out(TOPIC, from_ms) == (1, 1)


async def test_jobs_that_are_dead_before_they_are_due_stay(world: World) -> None:
    await world.engine.puts.put(PutJob(topic=TOPIC, id="a", deadline=FAR_S))
    await world.engine.queue.pop(TOPIC, [PopRequest(1)])
    await world.engine.deliveries.release(TOPIC, "a", ANY_RECEIPT, delay_ms=2000 * FAR_S)
    assert await world.mover.move_out(TOPIC, 0) == (1, 0)


async def test_runs_and_jobs_that_collect_items_stay(world: World) -> None:
    await put_far(world, "a")
    items = {"topic": TOPIC, "id": "b", "delay": FAR_S, "body": [1], "on_conflict": "append", "max_items": 9}
    await world.engine.puts.put(PutJob.model_validate(items))
    schedule = PutSchedule.model_validate({"topic": TOPIC, "every": 2 * FAR_S})
    await world.engine.schedules.put("nightly", schedule, NO_BOUNDS, lambda *_: None)
    assert await world.mover.move_out(TOPIC, 0) == (3, 1)
    assert await world.mover.move_out(TOPIC, 0) == (2, 0)


async def test_a_call_that_comes_to_closed_files_is_told_so(shelved: Shelved) -> None:
    """The process makes it again once they are open."""
    await shelved.put("a", int(time.time() * 1000) + FAR_S * 1000)
    await shelved.move_out()
    await shelved.mover.close()
    shelved.rows.close()
    with pytest.raises(FilesClosed):
        await shelved.mover.load(TOPIC, ["a"])


async def unaware_put(world: World, job_id: str) -> None:
    """By a process that does not know of the shelf."""
    engine = Engine(world.store)
    await engine.puts.put(PutJob(topic=TOPIC, id=job_id, delay=FAR_S, body="unaware"))
    await engine.close()


async def put_far(world: World, *ids: str) -> None:
    for job_id in ids:
        await world.engine.puts.put(PutJob(topic=TOPIC, id=job_id, delay=FAR_S))
        await world._note(job_id)


async def test_a_batch_that_waits_for_a_backup_leaves_jobs_that_are_asked_for_meanwhile(shelved: Shelved) -> None:
    """A put that was told that its id is in the store, and may stay there, would store a second job."""
    await shelved.put("x", int(time.time() * 1000) + FAR_S * 1000)
    async with shelved.mover.checkpoint():
        leaving = asyncio.create_task(shelved.move_out())
        await asyncio.sleep(0.1)
        await shelved.mover.load(TOPIC, ["x"])
    await leaving
    assert await shelved.mover.count() == 0


async def test_a_batch_that_waits_for_a_backup_keeps_no_list_waiting(shelved: Shelved) -> None:
    await shelved.put("x", int(time.time() * 1000) + FAR_S * 1000)
    await shelved.move_out()
    await shelved.put("y", int(time.time() * 1000) + FAR_S * 1000)
    async with shelved.mover.checkpoint():
        moving = [
            asyncio.create_task(move)
            for move in (shelved.move_out(), shelved.mover.move_in(TOPIC, ["x"]), shelved.mover.load(TOPIC, ["x"]))
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1), shelved.mover.still(TOPIC):
            assert await shelved.mover.count() == 1
    await asyncio.gather(*moving)


async def test_a_batch_does_not_begin_in_a_backup_that_follows_another(shelved: Shelved) -> None:
    """The copy of the second would lack its note."""
    await shelved.put("x", int(time.time() * 1000) + FAR_S * 1000)
    await shelved.move_out()
    async with shelved.mover.checkpoint():
        moving = asyncio.create_task(shelved.mover.move_in(TOPIC, ["x"]))
        await asyncio.sleep(0.1)
    shelved.mover._may_begin.clear()  # in the same turn of the event loop
    await asyncio.sleep(0.1)
    assert await shelved.mover.count() == 1
    shelved.mover._may_begin.set()
    assert await moving == ["x"]


async def test_a_job_that_came_back_before_the_shelf_was_opened_again_is_found(store: Store, tmp_path: Path) -> None:
    """It was the only one of its topic, so nothing in the files tells that it was there when the store was asked."""
    shelved = Shelved(store, tmp_path)
    await shelved.put("x", int(time.time() * 1000) + FAR_S * 1000)
    await shelved.move_out()
    replies = [["missing"], ["found"]]

    async def send(_: str, ids: list[str]) -> list[str]:
        if len(replies) == 2:
            await shelved.mover.move_in(TOPIC, ids)
            shelved.engine.shelf.calls = await opened_again()
        return replies.pop(0)

    async def opened_again() -> ShelfInProcess:
        mover = ShelfInProcess(shelved.rows, Scripts(store), Keys(1))
        await mover.settle_all()
        return mover

    assert await shelved.engine.shelf.find(TOPIC, ["x"], str, send, "missing".__eq__) == ["found"]
    await cast("ShelfInProcess", shelved.engine.shelf.calls).close()
    await shelved.close()

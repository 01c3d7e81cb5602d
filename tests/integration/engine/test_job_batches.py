"""Batches of jobs: what they count, and the one job that they put, under random calls and under races."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.errors import BatchNotFound, BatchSealed, DeferdError, DifferentShard, InvalidInput, JobExists
from deferd.contract.model import ChangeJob, TopicSettings
from deferd.contract.operations.audits import FindingKind
from deferd.contract.operations.batches import PutBatchOfJobs
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.batches import ChangedMeanwhile, StoredBatch
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.redis_keys import Keys
from deferd.store.connection import connect
from tests.drawn_input import FACTOR, drawn
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job, started_engine
from tests.integration.engine.sweeping import redrive_jobs
from tests.integration.store.store_servers import StoreServer

Result = TypeVar("Result")
NAME, DONE = "b", "done"
KEY, COMPLETED = f"deferd:{{0}}:batch/{NAME}", "deferd:{0}:batches/completed"
ROUNDS = 30


async def put_batch(engine: Engine, name: str = NAME, **fields: Any) -> StoredBatch:
    batch = PutBatchOfJobs.model_validate({"on_end": {"topic": DONE}, **fields})
    stored, _ = await engine.batches.put(name, batch, await engine.batches.find(name))
    return stored


async def completions(engine: Engine) -> list[tuple[int, int, int]]:
    """The counts in the jobs that batches have put, which are finished then."""
    found = []
    while records := (await engine.queue.pop(DONE, [PopRequest(100)])).jobs[0]:
        for record in records:
            body = orjson.loads(record.body)
            found.append((body["finished"], body["dead"], body["cancelled"]))
            await engine.queue.finish(DONE, record.id, record.receipt)
    return found


def counts(batch: StoredBatch) -> tuple[int, int, int]:
    return batch.finished, batch.dead, batch.cancelled


async def finish(engine: Engine, job_id: str) -> None:
    await engine.queue.finish(TOPIC, job_id, ANY_RECEIPT)


async def test_an_undo_takes_the_ends_back_until_the_batch_is_completed(driver: EngineDriver) -> None:
    await put_batch(driver.engine)
    for job_id in ("a", "b"):
        await driver.put(job_id, batch=NAME, delay=60)

    async def cancel(request: str) -> None:
        select = {"tag": f"batch:{NAME}"}
        call = CancelSelected.model_validate({"select": select, "request_id": request, "undo": True})
        assert (await driver.engine.bulk.cancel(call)).done == 2

    await cancel("first")
    assert counts(await driver.engine.batches.get(NAME)) == (0, 0, 2)
    assert (await driver.engine.undos.undo_cancel("first", None, None)).put_back == 2
    assert counts(await driver.engine.batches.get(NAME)) == (0, 0, 0)
    await put_batch(driver.engine, seal=True)
    await cancel("second")
    assert await completions(driver.engine) == [(0, 0, 2)]
    assert (await driver.engine.undos.undo_cancel("second", None, None)).put_back == 2
    await driver.cancels.cancel(TOPIC, "a")
    assert counts(await driver.engine.batches.get(NAME)) == (0, 0, 2)
    assert await completions(driver.engine) == []


async def test_there_are_so_many_open_ones_and_completed_ones_make_room(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deferd.contract.limits.BATCHES_OPEN_MAX", 2)
    await put_batch(driver.engine, "first")
    await put_batch(driver.engine, "second")
    with pytest.raises(InvalidInput, match="one batch more than may be open in a shard of the store, 2"):
        await put_batch(driver.engine, "third")
    await put_batch(driver.engine, "first", expect=7)
    await put_batch(driver.engine, "first", seal=True)
    await put_batch(driver.engine, "third")
    await driver.engine.batches.delete(await driver.engine.batches.get("second"), None, "cancel")
    await put_batch(driver.engine, "fourth")
    first, (kept,) = 2_000_000_000_000, driver.server.command("ZRANGE", COMPLETED, 0, -1)
    members = [text for number in range(100_004) for text in (first + number, f"done-{number:06}")]
    driver.server.command("ZADD", COMPLETED, *members)
    await put_batch(driver.engine, "first")
    assert driver.server.command("ZCARD", COMPLETED) == 100_000
    assert driver.server.command("ZMSCORE", COMPLETED, kept, "done-000003", "done-000004")[:2] == [None, None]


async def test_a_batch_that_was_deleted_meanwhile_is_not_made_again(driver: EngineDriver) -> None:
    stored = await put_batch(driver.engine)
    await driver.engine.batches.delete(stored, None, "cancel")
    with pytest.raises(BatchNotFound):
        await driver.engine.batches.put(NAME, PutBatchOfJobs(seal=True), stored)
    driver.move_clock(1)
    await put_batch(driver.engine)
    with pytest.raises(BatchNotFound):
        await driver.engine.batches.delete(stored, None, "cancel")


async def test_a_batch_that_was_made_meanwhile_is_not_changed(driver: EngineDriver) -> None:
    await put_batch(driver.engine)
    driver.server.command("DEL", "deferd:{0}:batches")  # so that it is not found
    mine = PutBatchOfJobs.model_validate({"on_end": {"topic": "mine"}})
    with pytest.raises(ChangedMeanwhile):
        await driver.engine.batches.put(NAME, mine, await driver.engine.batches.find(NAME))
    found = await driver.engine.batches.get(NAME)
    assert found.topic == DONE
    await driver.engine.batches.put(NAME, mine, found)
    with pytest.raises(ChangedMeanwhile):
        await driver.engine.batches.put(NAME, mine, found)


async def test_a_name_is_made_in_one_shard_only(server: StoreServer) -> None:
    async def make(engine: Engine, name: str, topic: str) -> StoredBatch | None:
        while True:
            try:
                return await put_batch(engine, name, on_end={"topic": topic})
            except ChangedMeanwhile:
                continue
            except DifferentShard:
                return None

    async with started_engine(server.url, shards=2) as engine:
        topics = {Keys(2).shard_of(name): name for name in map(str, range(9))}
        names = [f"b{number}" for number in range(10)]
        made = await asyncio.gather(*(make(engine, name, topic) for name in names for topic in topics.values()))
        assert len([one for one in made if one is not None]) == len(names)
        assert sorted(one.name for one in (await engine.batches.page(None, 100, None))[0]) == names


async def test_its_job_needs_a_topic_with_one_partition(driver: EngineDriver) -> None:
    await driver.topics.set(DONE, TopicSettings(partitions=2))
    with pytest.raises(InvalidInput, match=r"body\.on_end\.topic: must be a topic with one partition"):
        await put_batch(driver.engine)


async def test_a_page_for_few_topics_does_not_ask_the_store_for_each_batch_of_others(driver: EngineDriver) -> None:
    for number in range(12):
        await put_batch(driver.engine, f"b{number:02}", on_end={"topic": "ours" if number in {4, 5} else DONE})
    driver.server.command("CONFIG", "RESETSTAT")
    page = await driver.engine.batches.page(None, 1, TopicPatterns(["ours"]))
    assert [one.name for one in page[0]] == ["b04"]
    page = await driver.engine.batches.page(page[1], 1, TopicPatterns(["ours"]))
    assert ([one.name for one in page[0]], page[1]) == (["b05"], None)
    assert driver.server.command("INFO", "commandstats")["cmdstat_zrange"]["calls"] == 2


async def test_completed_ones_are_forgotten_after_a_day(driver: EngineDriver) -> None:
    for number in range(25):
        await put_batch(driver.engine, f"old-{number:02}", seal=True)
    driver.move_clock(86_399)
    assert len((await driver.engine.batches.page(None, 100, None))[0]) == 25
    driver.move_clock(2)
    assert (await driver.engine.batches.page(None, 100, None)) == ([], None)
    with pytest.raises(BatchNotFound):
        await driver.put(batch="old-00")
    for _ in range(3):
        await put_batch(driver.engine)
    assert {key.decode() for key in driver.server.command("KEYS", "deferd:{0}:batch*")} == {KEY, "deferd:{0}:batches"}


async def test_a_deleted_batch_counts_no_more_while_its_jobs_are_cancelled(driver: EngineDriver) -> None:
    stored = await put_batch(driver.engine)
    await driver.put(batch=NAME)
    await driver.engine.batches._delete_step(stored, 0)
    with pytest.raises(BatchSealed):
        await driver.put("b", batch=NAME)
    await driver.pop_one()
    await finish(driver.engine, "a")
    assert await completions(driver.engine) == []
    assert (await driver.engine.batches.get(NAME)).completed_ms is not None
    assert await driver.engine.batches.delete(stored, None, "cancel") == (0, True)
    with pytest.raises(BatchNotFound):
        await driver.engine.batches.delete(stored, None, "cancel")


async def test_a_damaged_batch_does_not_keep_its_jobs_from_ending(driver: EngineDriver) -> None:
    await put_batch(driver.engine)
    for job_id in ("a", "b"):
        await driver.put(job_id, batch=NAME)
    await driver.pop(2)
    driver.server.command("SET", KEY, "damaged")
    await finish(driver.engine, "a")
    driver.server.command("DEL", KEY)
    await finish(driver.engine, "b")
    assert await driver.counts() == {}
    assert driver.server.command("EXISTS", KEY) == 0


async def test_a_plain_put_runs_no_more_commands(driver: EngineDriver) -> None:
    """Neither does one that replaces a job."""

    async def commands_of(*, on_conflict: str) -> list[str]:
        driver.server.command("CONFIG", "RESETSTAT")
        await driver.put("x", delay=60, on_conflict=on_conflict)
        stats: dict[str, Any] = driver.server.command("INFO", "commandstats")
        return sorted(name for name in stats if name.split("_", 1)[-1] in {"hmget", "hget", "hexists", "hincrby"})

    assert "cmdstat_hmget" not in await commands_of(on_conflict="reject")
    replacing = await commands_of(on_conflict="replace")
    assert "cmdstat_hexists" not in replacing


@pytest.mark.parametrize("damage", [("HSET", KEY, "dead", 5), ("HSET", KEY, "dead", -1), ("DEL", "deferd:{0}:batches")])
async def test_an_audit_finds_and_repairs_impossible_counts(driver: EngineDriver, damage: tuple[Any, ...]) -> None:
    await put_batch(driver.engine)
    await driver.put(batch=NAME)
    assert (await driver.engine.consistency.audit_store()).clean
    driver.server.command(*damage)
    for repair in (False, True):
        report = await driver.engine.consistency.audit_store(repair=repair)
        assert report.findings.counts == {FindingKind.BATCH_WRONG: 1}
    assert (await driver.engine.consistency.audit_store()).clean


@pytest.mark.parametrize(
    "last", ["two finishes", "a finish and the seal", "a finish and a cancel", "a finish and a put"]
)
async def test_exactly_one_of_two_calls_at_the_end_completes(
    driver: EngineDriver, server: StoreServer, last: str
) -> None:
    async with started_engine(server.url, movable_clock=True) as rival:
        for number in range(ROUNDS):
            name = f"race-{number}"
            await put_batch(driver.engine, name)
            await driver.puts.put_many([job(f"{number}-{job_id}", batch=name) for job_id in "ab"])
            await driver.pop(2)
            first = finish(driver.engine, f"{number}-a")
            other: Coroutine[Any, Any, Any]
            if last == "two finishes":
                await put_batch(driver.engine, name, seal=True)
                other = finish(rival, f"{number}-b")
            elif last == "a finish and a cancel":
                await put_batch(driver.engine, name, seal=True)
                other = rival.cancels.cancel(TOPIC, f"{number}-b")
            elif last == "a finish and the seal":
                await finish(driver.engine, f"{number}-b")
                other = put_batch(rival, name, seal=True)
            else:
                await put_batch(driver.engine, name, expect=3)
                await finish(driver.engine, f"{number}-b")
                other = rival.puts.put(job(f"{number}-c", batch=name))
            calls = [first, other]
            await asyncio.gather(*(calls if number % 2 else reversed(calls)))
            if last == "a finish and a put":
                assert await completions(driver.engine) == []
                await driver.pop(1)
                await finish(driver.engine, f"{number}-c")
            [found] = await completions(driver.engine)
            assert found == {"a finish and a cancel": (1, 0, 1), "a finish and a put": (3, 0, 0)}.get(last, (2, 0, 0))


IDS = st.sampled_from(["a", "b", "c", "d"])
Outcome = Literal["finished", "dead", "cancelled"]


@dataclass
class Model:
    """What a batch must have counted. `members`: by id, whether the job that has it now is of the batch."""

    expect: int | None
    joined: int = 0
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("finished", "dead", "cancelled"), 0))
    is_sealed: bool = False
    is_completed: bool = False
    members: dict[str, bool] = field(default_factory=dict)
    dead: dict[str, bool] = field(default_factory=dict)
    completions: int = 0

    def join(self, job_id: str) -> None:
        self.joined += 1
        self.is_sealed |= self.joined == self.expect
        self.members[job_id] = True

    def end(self, outcome: Outcome, *, counts: bool) -> None:
        if counts and not self.is_completed:
            self.ended[outcome] += 1
            self.settle()

    def settle(self) -> None:
        if self.is_sealed and not self.is_completed and sum(self.ended.values()) == self.joined:
            self.is_completed = True
            self.completions += 1


class BatchLives(RuleBasedStateMachine):
    """Puts, ends, redrives and seals of one batch, beside jobs that are not of it."""

    server: StoreServer

    @initialize(expect=st.sampled_from([None, None, 2, 4]))
    def begin(self, expect: int | None) -> None:
        self.runner = asyncio.Runner()
        self.server.command("FLUSHALL")
        self.store = self.runner.run(connect(self.server.url, timeout_s=5))
        self.engine = Engine(self.store, movable_clock=True)
        self.driver = EngineDriver(self.engine, self.server)
        self.model = Model(expect)
        self.others = 0
        self.run(put_batch(self.engine, expect=expect))

    def teardown(self) -> None:
        self.runner.run(self.engine.close())
        self.runner.run(self.store.close())
        self.runner.close()

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(call)

    @rule(
        job_id=IDS, joins=st.booleans(), on_conflict=st.sampled_from(["reject", "keep", "replace"]), more=st.booleans()
    )
    def put(self, job_id: str, joins: bool, on_conflict: str, more: bool) -> None:
        spec = job(job_id, on_conflict=on_conflict, delay=60, **({"batch": NAME} if joins else {}))
        model = self.model
        is_live, was_member = job_id in model.members, model.members.get(job_id, False)
        try:
            if more:  # with another job, as puts of several take another way
                self.others += 1
                other = job(f"other-{self.others}", delay=60)
                [_, result] = self.run(self.driver.puts.put_many([other, spec]))
                refused = result.code
            else:
                refused = None
                self.run(self.driver.puts.put(spec))
        except DeferdError as error:
            refused = error.code
        is_taken = is_live or job_id in model.dead
        if is_taken and on_conflict != "replace":
            assert refused == (None if on_conflict == "keep" else JobExists.code)
        elif joins and model.is_sealed and not (is_live and was_member):
            assert refused == BatchSealed.code
        else:
            assert refused is None
            model.dead.pop(job_id, None)
            stays = is_live and was_member and joins
            model.members[job_id] = joins
            if joins and not stays:
                model.join(job_id)
            if was_member and not stays:
                model.end("cancelled", counts=True)

    @rule(job_id=IDS, outcome=st.sampled_from(["finished", "dead", "cancelled"]))
    def end(self, job_id: str, outcome: Outcome) -> None:
        if job_id not in self.model.members:
            return
        if outcome == "cancelled":
            self.run(self.driver.cancels.cancel(TOPIC, job_id))
        else:
            self._hold(job_id)
            if outcome == "finished":
                self.run(finish(self.engine, job_id))
            else:
                self.run(self.driver.deliveries.bury(TOPIC, job_id, ANY_RECEIPT))
        counts = self.model.members.pop(job_id)
        if outcome == "dead":
            self.model.dead[job_id] = counts
        self.model.end(outcome, counts=counts)

    def _hold(self, job_id: str) -> None:
        self.run(self.engine.queue.change(TOPIC, job_id, ChangeJob(delay=0)))
        held = self.run(self.driver.pop(10))
        assert [record.id for record in held] == [job_id]

    @rule()
    def redrive(self) -> None:
        if self.model.dead:
            self.run(redrive_jobs(self.engine, TOPIC))
        for job_id, counts in self.model.dead.items():
            self.model.members[job_id] = counts
            if counts and not self.model.is_completed:
                self.model.ended["dead"] -= 1
            self.run(self.engine.queue.change(TOPIC, job_id, ChangeJob(delay=60)))
        self.model.dead = {}

    @rule()
    def seal(self) -> None:
        self.run(put_batch(self.engine, seal=True))
        self.model.is_sealed = True
        self.model.settle()

    @invariant()
    def it_counts_as_the_model_does(self) -> None:
        batch = self.run(self.engine.batches.get(NAME))
        model = self.model
        assert (batch.joined, batch.is_sealed) == (model.joined, model.is_sealed)
        assert counts(batch) == tuple(model.ended.values())
        assert (batch.completed_ms is not None) is model.is_completed
        found = self.run(completions(self.engine))
        assert found == [tuple(model.ended.values())] * model.completions
        model.completions = 0


@pytest.mark.hypothesis
@pytest.mark.timeout(600 * max(FACTOR, 1))
def test_it_puts_exactly_one_job(server: StoreServer) -> None:
    class Lives(BatchLives):
        pass

    Lives.server = server
    run_state_machine_as_test(Lives, settings=drawn(100))

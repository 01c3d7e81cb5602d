"""Random calls on three ids: appends, follow-ups, chains, calls on many jobs, and all ends of deliveries.

After every third call the consistency check finds nothing. No id has two live deliveries, no item is delivered in two
different bodies, and, unless jobs are removed, every item is delivered, and each finish has put a job. Half of the
topics have limits, which hold.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import DeferdError, TopicNotFound
from deferd.contract.flow import FlowLimits, TopicLimits
from deferd.contract.model import ChangeJob, JobState, PutJob, TopicSettings
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs

pytestmark = pytest.mark.slow(seconds=30)
IDS = ("a", "b", "c")
ENDED = "ended"
CALLS = 120
CHECK_EVERY = 3
"""Calls: a check takes longer than they."""
OF_ANY_RUN = {"put": 6, "batch": 1, "pop": 4, "finish": 3, "chain": 1, "release": 1, "snooze": 1, "touch": 1}
OF_ANY_RUN |= {"return_popped": 3, "change": 1, "move_many": 1, "pass_time": 2}
REMOVING = {"cancel": 1, "cancel_holder": 1, "cancel_many": 1, "bury": 1, "purge": 1, "redrive": 1}
CHANGES: tuple[dict[str, Any], ...] = ({"delay": 2}, {"tags": ["y"]}, {"tags": None}, {"time_limit": 2})
CHANGES += ({"group": "g"}, {"group": None}, {"priority": 4})
LIMITS = TopicLimits(max_in_flight=2, per_group=FlowLimits(max_in_flight=1))


class Run:
    """One run. With `removes` jobs may also be cancelled, replaced, or dead."""

    def __init__(self, driver: EngineDriver, seed: int, *, removes: bool) -> None:
        self.driver = driver
        self.chance = random.Random(seed)
        self.removes = removes
        self.has_limits = seed % 2 > 0
        self.calls = OF_ANY_RUN | (REMOVING if removes else {})
        self.held: defaultdict[str, list[JobRecord]] = defaultdict(list)
        self.bodies: dict[int, bytes] = {}
        """The body in which each item was delivered."""
        self.stored: set[int] = set()
        """Items of appends that were not refused."""
        self.items = 0
        self.calls_made: list[Any] = []

    def now_ms(self) -> int:
        seconds, microseconds = self.driver.server.command("TIME")
        offset = self.driver.server.command("GET", "deferd:{0}:clock") or 0
        return int(seconds) * 1000 + int(microseconds) // 1000 + int(offset)

    def spec(self, job_id: str) -> PutJob:
        chance, fields = self.chance, {}
        of_any: dict[str, tuple[Any, ...]] = {"delay": (0, 1, 5), "ttr": (1, 5), "time_limit": (1, 3), "retain": (0, 3)}
        of_any |= {"tags": (["x"], ["x", "y"], ["z"]), "unique_for": (1, 4), "group": ("g", "h"), "priority": (1, 9)}
        if self.removes:
            of_any |= {"deadline": (2, 20), "ttl": (2, 20), "dead_retain": (0, 3, 100), "max_attempts": (1, 2)}
        for name, values in of_any.items():
            if chance.random() < 0.2:
                fields[name] = chance.choice(values)
        if not self.removes or chance.random() < 0.3:
            fields["on_end"] = {"topic": ENDED, "body": True}
        kinds = ["append", "append", "append", "keep", "reject", *(["replace", "replace"] if self.removes else [])]
        on_conflict = chance.choice(kinds)
        if on_conflict in {"append", "replace"} and chance.random() < 0.3:
            fields["max_wait"] = 6
        if on_conflict == "append" and chance.random() < 0.3:
            fields["max_items"] = chance.choice([1, 3])
        if on_conflict != "reject" and chance.random() < 0.6:
            fields["if_reserved"] = "after"
        if chance.random() < 0.3:
            fields["conflict_with"] = "live"
        self.items += 1
        return job(job_id, body=self.items, on_conflict=on_conflict, **fields)

    def note_stored(self, spec: PutJob) -> None:
        if spec.on_conflict == "append":
            self.stored.add(spec.body)

    def note_delivered(self, jobs: list[JobRecord]) -> None:
        for one in jobs:
            assert all(
                other.reserved_until_ms <= self.now_ms() for other in self.held[one.id] if other.reserved_until_ms
            )
            self.held[one.id].append(one)
            for item in self.items_of(one):
                assert self.bodies.setdefault(item, one.body) == one.body

    def items_of(self, record: JobRecord) -> list[int]:
        body = orjson.loads(record.body)
        assert record.items == (len(body) if isinstance(body, list) else 0)
        return self.items_in(body)

    @staticmethod
    def items_in(body: Any) -> list[int]:
        if not isinstance(body, list):
            return [body]
        assert body
        assert body == sorted(body)
        return body

    async def step(self) -> None:
        [name] = self.chance.choices(list(self.calls), list(self.calls.values()))
        self.calls_made.append(name)
        call: Callable[[], Awaitable[None]] = getattr(self, name)
        try:
            await call()
        except DeferdError as error:
            self.calls_made[-1] = (name, error)
        if len(self.calls_made) % CHECK_EVERY:
            return
        assert (await self.driver.engine.consistency.audit_store()).clean
        try:
            assert (await self.driver.engine.consistency.audit_topic(TOPIC)).clean
        except TopicNotFound:
            assert not self.driver.keys_left() - {"taken", "cancelled"}

    # Calls

    async def put(self) -> None:
        spec = self.spec(self.chance.choice(IDS))
        await self.driver.puts.put(spec)
        self.note_stored(spec)

    async def batch(self) -> None:
        specs = [self.spec(self.chance.choice(IDS)) for _ in range(self.chance.randrange(1, 6))]
        for spec, result in zip(specs, await self.driver.puts.put_many(specs), strict=True):
            if result.code is None:
                self.note_stored(spec)

    async def pop(self) -> None:
        self.note_delivered(await self.driver.pop(self.chance.randrange(1, 4)))
        if self.has_limits:
            reserved, _ = await self.driver.topics.jobs(TOPIC, JobState.RESERVED)
            groups = [one.group for one in reserved if one.group]
            assert len(reserved) <= 2
            assert len(groups) == len(set(groups))

    def some_held(self, *, stays: bool = False) -> JobRecord:
        """A delivery, maybe one that has ended; it is not live afterwards unless it `stays`."""
        held = [one for some in self.held.values() for one in some]
        if not held:
            raise TopicNotFound(TOPIC)
        chosen = self.chance.choice(held)
        if not stays:
            self.held[chosen.id].remove(chosen)
        return chosen

    async def finish(self) -> None:
        held = self.some_held()
        await self.driver.queue.finish(TOPIC, held.id, held.receipt)

    async def chain(self) -> None:
        held = self.some_held(stays=True)
        specs = [self.spec(self.chance.choice(IDS)) for _ in range(self.chance.randrange(1, 4))]
        results = await self.driver.queue.finish_and_put(TOPIC, held.id, held.receipt, specs)
        self.held[held.id].remove(held)
        assert all(result.code is None for result in results)
        if results:
            for spec in specs:
                self.note_stored(spec)

    async def release(self) -> None:
        held = self.some_held()
        await self.driver.deliveries.release(TOPIC, held.id, held.receipt, delay_ms=self.chance.choice([0, 1000]))

    async def snooze(self) -> None:
        held = self.some_held()
        await self.driver.deliveries.release(TOPIC, held.id, held.receipt, delay_ms=500, counts=False)

    async def bury(self) -> None:
        held = self.some_held()
        await self.driver.deliveries.bury(TOPIC, held.id, held.receipt)

    async def touch(self) -> None:
        held = self.some_held(stays=True)
        held.reserved_until_ms = await self.driver.deliveries.touch(TOPIC, held.id, held.receipt)

    async def return_popped(self) -> None:
        held = self.some_held()
        for item in self.items_of(held):  # nobody has seen it
            self.bodies.pop(item, None)
        await self.driver.held_jobs.return_popped([held])

    async def change(self) -> None:
        changes = (*CHANGES, {"deadline": 5}) if self.removes else CHANGES
        change = ChangeJob.model_validate(self.chance.choice(changes))
        await self.driver.queue.change(TOPIC, self.chance.choice(IDS), change)

    async def move_many(self) -> None:
        select = {"state": self.chance.choice(["ready", "delayed"]), "topics": ["*"]}
        call = {"select": select, "by": self.chance.choice([-2, 2])}
        await self.driver.engine.bulk.reschedule(RescheduleSelected.model_validate(call))

    async def pass_time(self) -> None:
        await self.driver.pass_time(self.chance.choice([0.5, 1, 2, 6]))

    async def cancel(self) -> None:
        job_id = self.chance.choice(IDS)
        await self.driver.cancels.cancel(TOPIC, job_id)
        self.held[job_id].clear()

    async def cancel_holder(self) -> None:
        job_id = self.chance.choice(IDS)
        await self.driver.cancels.cancel(TOPIC, job_id, keep_follow_up=True)
        if not self.driver.server.command("HEXISTS", f"{KEY}:pool", job_id):
            self.held[job_id].clear()

    async def cancel_many(self) -> None:
        await self.driver.engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "x"}}))
        self.held.clear()

    async def purge(self) -> None:
        state = self.chance.choice([None, JobState.READY, JobState.DEAD])
        await purge_jobs(self.driver.engine, TOPIC, state, tag=self.chance.choice([None, "x"]))
        self.held.clear()

    async def redrive(self) -> None:
        await redrive_jobs(self.driver.engine, TOPIC)


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_nothing_is_lost_or_runs_twice(driver: EngineDriver, seed: int, removes: bool) -> None:
    run = Run(driver, seed, removes=removes)
    if run.has_limits:
        await driver.topics.set(TOPIC, TopicSettings(limits=LIMITS))
    for _ in range(CALLS):
        await run.step()
    if removes:
        assert (await driver.engine.consistency.audit_topic(ENDED)).clean
        return
    while driver.server.command("EXISTS", f"{KEY}:pool"):
        await driver.pass_time(10)
        run.held.clear()
        jobs = await driver.pop(len(IDS))
        run.note_delivered(jobs)
        for held in jobs:
            await driver.queue.finish(TOPIC, held.id, held.receipt)
    assert run.stored <= run.bodies.keys()
    keys = (f"{KEY}:tally", "deferd:{0}:tally")  # the latter if the topic was forgotten
    finished = sum(int(driver.server.command("HGET", key, "finished") or 0) for key in keys)
    ends = [orjson.loads(one.body) for one in (await driver.queue.pop(ENDED, [PopRequest(1000)])).jobs[0]]
    assert len(ends) == finished > 0
    assert {item for end in ends for item in run.items_in(end["body"])} >= run.stored
    assert not {key for key in driver.keys_left() if key.startswith(("follow", "items", "tagged"))}

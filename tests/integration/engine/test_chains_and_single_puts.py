"""A finish with puts, against the same calls one by one: it does what all of them do, or nothing if one is refused."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

from deferd.contract.errors import DeferdError, JobNotFound
from deferd.contract.model import PutJob, TopicSettings
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.script_arguments import PutBounds
from tests.integration.engine.engine_driver import TOPIC, EngineDriver

OTHER = "orders.single"
IDS = ["a", "b", "c"]
BODY_BYTES = 40
"""The bound of what appends collect: a few items."""
KEYS = ("delay", "ready", "reserved", "dead", "finished", "expiry", "taken")
HASHES = ("tagged", "items", "holders")


def drawn_put(draw: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": draw.choice(IDS), "body": draw.choice([1, "x" * 9, "y" * 25])}
    fields["on_conflict"] = on_conflict = draw.choice(["reject", "keep", "replace", "append", "append"])
    fields |= draw.choice([{}, {"delay": 60}])
    if on_conflict != "reject" and draw.random() < 0.5:
        fields["if_reserved"] = "after"
    more: dict[str, Any] = {"conflict_with": "live", "unique_for": 60, "retain": 60, "tags": ["x"], "deadline": 90}
    return fields | {name: value for name, value in more.items() if draw.random() < 0.25}


def put_of(topic: str, fields: dict[str, Any]) -> PutJob:
    return PutJob.model_validate({"topic": topic, **fields})


class Twins:
    """Two topics that get the same calls."""

    def __init__(self, driver: EngineDriver, bounds: PutBounds) -> None:
        self.driver = driver
        self.queue = driver.queue
        self.bounds = bounds

    async def put(self, fields: dict[str, Any]) -> None:
        for topic in (TOPIC, OTHER):
            await self.driver.puts.put_many([put_of(topic, fields)], self.bounds)

    async def pop(self, count: int) -> dict[str, list[JobRecord]]:
        """The jobs of each, in the same order: those that are due in the same ms have any."""
        popped = {topic: (await self.queue.pop(topic, [PopRequest(count)])).jobs[0] for topic in (TOPIC, OTHER)}
        return {topic: sorted(jobs, key=lambda job: job.id) for topic, jobs in popped.items()}

    async def end(self, job: JobRecord, how: str) -> None:
        if how == "finish":
            await self.queue.finish(job.topic, job.id, job.receipt)
        elif how == "bury":
            await self.queue.bury(job.topic, job.id, job.receipt)
        else:
            await self.queue.release(job.topic, job.id, job.receipt, delay_ms=0 if how == "release" else 100,
                                     counts=how == "release")  # fmt: skip

    async def put_each(self, puts: list[dict[str, Any]]) -> DeferdError | None:
        """Put the jobs one by one, up to the first that is refused: its error."""
        for fields in puts:
            try:
                await self.driver.puts.put(put_of(OTHER, fields), self.bounds)
            except DeferdError as error:
                return error
        return None

    async def stored_in(self, topic: str) -> dict[str, Any]:
        """What the store has of a topic, without instants, which differ between calls."""
        command = self.driver.server.command
        found: dict[str, Any] = {}
        for name in KEYS:
            found[name] = sorted(command("ZRANGE", f"deferd:{{0}}:{topic}:{name}", 0, -1))
        for name in HASHES:
            found[name] = command("HGETALL", f"deferd:{{0}}:{topic}:{name}")
        found["follow"] = sorted(command("HKEYS", f"deferd:{{0}}:{topic}:follow"))
        tally = command("HGETALL", f"deferd:{{0}}:{topic}:tally")
        found["tally"] = {name: count for name, count in tally.items() if count != b"0"}
        for job_id in IDS:
            try:
                job = await self.queue.get(topic, job_id)
            except JobNotFound:
                continue
            followed_by = None if job.followed_by is None else (job.followed_by.body, job.followed_by.items)
            found[job_id] = (
                job.state,
                job.body,
                job.attempts,
                job.items,
                job.tags,
                job.stored("deadline"),
                followed_by,
            )
        return found

    async def begin(self, draw: random.Random) -> None:
        """Put some jobs, some of which have ended or were handed out."""
        for _ in range(draw.randrange(1, 5)):
            await self.put(drawn_put(draw))
            if draw.random() < 0.4:
                how = draw.choice(["finish", "bury", "release", "snooze", "hold"])
                for job in chain.from_iterable((await self.pop(1)).values()):
                    if how != "hold":
                        await self.end(job, how)
        fields: dict[str, Any] = {
            "id": "held",
            **draw.choice([{}, {"retain": 60}, {"unique_for": 60}, {"tags": ["x"]}]),
        }
        for topic in (TOPIC, OTHER):
            await self.driver.puts.put(put_of(topic, fields))
        self.driver.move_clock(120)
        await self.driver.run_timer()


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 80))])
async def test_a_chain_ends_as_its_calls_one_by_one(driver: EngineDriver, seed: int) -> None:
    draw = random.Random(seed)
    twins = Twins(driver, PutBounds(body_bytes=BODY_BYTES, max_jobs=draw.choice([None, None, 2])))
    await twins.begin(draw)
    if seed % 7 == 0:
        for topic in (TOPIC, OTHER):
            await driver.topics.set(topic, TopicSettings(max_jobs=3))
    held = await twins.pop(5)
    for _ in range(draw.randrange(3)):
        await twins.put(drawn_put(draw))
    (job, other) = draw.choice(list(zip(held[TOPIC], held[OTHER], strict=True)))
    puts = [drawn_put(draw) for _ in range(draw.randrange(1, 5))]
    if draw.random() < 0.5:
        puts[0]["id"] = job.id
    before = await twins.stored_in(TOPIC)
    assert before == await twins.stored_in(OTHER)

    error = None
    try:
        specs = [put_of(TOPIC, fields) for fields in puts]
        await driver.queue.finish_and_put(TOPIC, job.id, job.receipt, specs, bounds=twins.bounds)
    except DeferdError as refused:
        error = refused
    await driver.queue.finish(OTHER, other.id, other.receipt)
    expected = await twins.put_each(puts)
    if expected is None:
        assert error is None, puts
        assert await twins.stored_in(TOPIC) == await twins.stored_in(OTHER)
    else:
        assert type(error) is type(expected), puts
        assert getattr(error, "state", None) == getattr(expected, "state", None)
        assert await twins.stored_in(TOPIC) == before
    for topic in (TOPIC, OTHER):
        check = await driver.engine.consistency.audit_topic(topic)
        assert check.clean, check

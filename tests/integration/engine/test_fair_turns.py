"""Random walks with many groups: whose turn it is, and what rates allow, by rules that know nothing of the scripts."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import pairwise
from typing import Any

import pytest

from deferd.contract.flow import FlowLimits, LimitsOfGroup, Rate, TopicLimits
from deferd.contract.model import ChangeJob, JobState, TopicSettings
from deferd.engine.record import JobRecord
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.job_model import JobModel
from tests.integration.engine.modelled_job import Delivery

STEPS = 200
SPAN_MS, PARTS = 600_000, 1000
"""What rates count in, and in how many parts (lib/rate.lua)."""
RATES = {"": 9, "a": 4, "b": 6}
TTR_MS = 86_400_000
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"groups": {"g1": {"weight": 3}, "g2": {"weight": 2, "max_in_flight": 4}}},
    {"max_in_flight": 9, "per_group": {"max_in_flight": 2}},
    {"per_group": {"max_in_flight": 1}, "groups": {"g0": {"max_in_flight": 3}}},
)


class Walk:
    """Puts, pops and ends of deliveries, of the engine and of its model. No time passes."""

    def __init__(self, driver: EngineDriver, seed: int) -> None:
        self.driver = driver
        self.chance = random.Random(seed)
        self.model = JobModel(TOPIC, known=True)
        self.held: dict[str, tuple[JobRecord, Delivery]] = {}
        self.puts = 0

    async def step(self) -> None:
        calls = {
            "put": 8,
            "pop": 8,
            "finish": 6,
            "release": 2,
            "give_back": 2,
            "cancel": 3,
            "change": 1,
            "set_limits": 1,
        }
        [name] = self.chance.choices(list(calls), list(calls.values()))
        await getattr(self, name)()

    async def put(self) -> None:
        """A few jobs of one flow, maybe of a group that there has not been yet."""
        group = self.chance.choice(["", "new", *(f"g{number}" for number in range(6))])
        fields: dict[str, Any] = {"group": f"new{self.puts}" if group == "new" else group} if group else {}
        if self.chance.random() < 0.2:
            fields["priority"] = self.chance.choice([1, 9])
        ids = [f"j{self.puts + number}" for number in range(self.chance.randrange(1, 9))]
        self.puts += len(ids)
        await self.driver.puts.put_many([job(one, **fields) for one in ids])
        for one in ids:
            self.model.put(one, None, fields)

    async def pop(self) -> None:
        count = self.chance.choice([1, 1, 2, 5, 20])
        records = await self.driver.pop(count)
        for record, delivery in zip(records, self.model.pop(count, [one.id for one in records]), strict=True):
            self.held[record.id] = record, delivery

    def some_held(self) -> list[tuple[JobRecord, Delivery]]:
        ids = self.chance.sample(sorted(self.held), min(len(self.held), self.chance.randrange(1, 5)))
        return [self.held.pop(one) for one in ids]

    async def finish(self) -> None:
        for record, delivery in self.some_held():
            await self.driver.queue.finish(TOPIC, record.id, record.receipt)
            self.model.finish(record.id, delivery)

    async def release(self) -> None:
        for record, delivery in self.some_held():
            await self.driver.deliveries.release(TOPIC, record.id, record.receipt, delay_ms=0)
            self.model.release(record.id, delivery, delay_s=0)
            await self.come()

    async def give_back(self) -> None:
        for record, delivery in self.some_held():
            await self.driver.held_jobs.return_popped([record])
            delivery.receipt = record.receipt
            self.model.return_popped([delivery])

    def waiting(self) -> str | None:
        ids = [one.id for one in self.model.in_state(JobState.READY)]
        return self.chance.choice(ids) if ids else None

    async def cancel(self) -> None:
        if one := self.waiting():
            await self.driver.cancels.cancel(TOPIC, one)
            self.model.cancel(one, refuse_reserved=True)

    async def change(self) -> None:
        if one := self.waiting():
            fields: dict[str, Any] = self.chance.choice([{"group": "g1"}, {"group": None}, {"priority": 4}])
            await self.driver.queue.change(TOPIC, one, ChangeJob.model_validate(fields))
            self.model.change(one, fields)

    async def set_limits(self) -> None:
        limits = self.chance.choice(LIMITS)
        await self.driver.topics.set(TOPIC, TopicSettings.model_validate({"limits": limits}))
        self.model.set_topic({"limits": limits} if limits else {})
        await self.come()

    async def come(self) -> None:
        """The timer comes."""
        await self.driver.run_timer()
        self.model.run_timer()


@pytest.mark.parametrize("seed", [0, 1, 27, 33])
async def test_groups_have_their_turns_whatever_happens(driver: EngineDriver, seed: int) -> None:
    walk = Walk(driver, seed)
    for _ in range(STEPS):
        await walk.step()
    await driver.topics.set(TOPIC, TopicSettings())
    walk.model.set_topic({})
    await walk.come()
    while walk.waiting() or walk.held:  # the model says that each pop gets as much as it may
        await walk.pop()
        await walk.finish()
    assert await driver.counts() == {}
    assert await driver.pop() == []
    assert driver.keys_left() <= {"settings"}


async def test_a_stream_of_new_groups_keeps_no_group_from_its_turn(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"{name}{number}", group=name) for name in ("a", "zz") for number in range(50)])
    popped: list[str] = []
    for number in range(20):
        await driver.puts.put_many([job(f"new{number}-{index}", group=f"n{number:02}{index}") for index in range(2)])
        popped += [record.id for record in await driver.pop(2)]
    places = [place for place, one in enumerate(popped) if one.startswith("zz")]
    assert popped[:2] == ["a0", "zz0"]
    # Each round has two jobs taken and two groups more: a turn is as long as there are groups that wait.
    assert len(places) >= 3
    assert max(later - earlier for earlier, later in pairwise(places)) <= 16


# Rates


def most_in_any(span_ms: int, begun_ms: list[int]) -> int:
    """How many deliveries began in that half-open span of time that has the most."""
    ordered = sorted(begun_ms)
    return max((bisect_left(ordered, since + span_ms) - at for at, since in enumerate(ordered)), default=0)


class RateWalk:
    """Pops at random times, of a topic with a rate whose groups have one, too. Now and then the clock is set back."""

    def __init__(self, driver: EngineDriver, seed: int) -> None:
        self.driver = driver
        self.chance = random.Random(seed)
        self.begun_ms: dict[str, list[int]] = {"": [], "a": [], "b": []}
        """By group, '' for the topic, in time that is never set back."""
        self.set_back_ms = 0
        self.puts = 0

    def now_ms(self) -> int:
        """The time of the store, as if it had never been set back."""
        seconds, microseconds = self.driver.server.command("TIME")
        moved_ms = self.driver.server.command("GET", "deferd:{0}:clock") or 0
        return int(seconds) * 1000 + int(microseconds) // 1000 + int(moved_ms) + self.set_back_ms

    async def step(self) -> None:
        ids = [f"{group}{self.puts + number}" for number in range(2) for group in "ab"]
        await self.driver.puts.put_many([job(one, group=one[0]) for one in ids])
        self.puts += 2
        part_s = SPAN_MS / PARTS / 1000
        moves_s = (0, 0.01, part_s * self.chance.random(), 30, 120, SPAN_MS / 1000 - part_s * self.chance.random())
        self.driver.move_clock(self.chance.choice(moves_s))
        came_ms = self.now_ms()
        await self.driver.run_timer()
        await self.pop(self.chance.randrange(1, 4), came_ms)

    async def set_back(self) -> None:
        """The clock of the store loses up to an hour."""
        lost_s = self.chance.choice([0.5, 50, 3600])
        self.driver.move_clock(-lost_s)
        self.set_back_ms += round(lost_s * 1000)

    async def pop(self, count: int, came_ms: int) -> None:
        jobs = await self.driver.pop(count, ttr_ms=TTR_MS)
        for one in jobs:
            assert one.reserved_until_ms is not None
            began_ms = one.reserved_until_ms - TTR_MS + self.set_back_ms
            for name in ("", one.id[0]):
                self.begun_ms[name].append(began_ms)
        if len(jobs) < count and not self.set_back_ms:
            # What keeps the others back: what began in the last span, which may be longer by one of its parts.
            since_ms = came_ms - SPAN_MS - SPAN_MS // PARTS
            reached = {name: sum(at > since_ms for at in of) >= RATES[name] for name, of in self.begun_ms.items()}
            assert reached[""] or (reached["a"] and reached["b"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_set_back", [False, True])
async def test_no_span_of_time_has_more_deliveries_than_the_rates(
    driver: EngineDriver, seed: int, is_set_back: bool
) -> None:
    of_topic, of_group, of_b = (Rate(count=RATES[name], per=SPAN_MS / 1000) for name in ("", "a", "b"))
    limits = TopicLimits(
        rate=of_topic, per_group=FlowLimits(rate=of_group), groups={"b": LimitsOfGroup(rate=of_b, weight=2)}
    )
    await driver.topics.set(TOPIC, TopicSettings(limits=limits))
    walk = RateWalk(driver, seed)
    for number in range(120):
        await walk.step()
        if is_set_back and number % 40 == 20:
            await walk.set_back()
    for name, begun_ms in walk.begun_ms.items():
        assert len(begun_ms) > 2 * RATES[name]
        assert most_in_any(SPAN_MS, begun_ms) <= RATES[name]
    assert most_in_any(SPAN_MS, walk.begun_ms[""]) == RATES[""]
    driver.move_clock(2 * SPAN_MS / 1000)
    await driver.run_timer()
    assert len(await driver.pop(100)) == min(RATES[""], RATES["a"] + RATES["b"])

"""Type checkers find every error in programs that use deferd, and report none in correct ones."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from deferd.contract import limits
from deferd.contract.model import DurabilityLevel
from tests.mypy_check import mypy_errors

RIGHT = """
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import deferd
from pydantic import BaseModel
from deferd import (
    AsyncClient, AsyncJob, Backoff, BlockingJob, Cancelled, Client, Context, DurabilityLevel, ExponentialBackoff,
    FixedBackoff, Job, JobDefinition, PutJob, PutOptions, PutResult, ScheduleBackoff, TopicSettings, Worker, job,
)
from typing_extensions import TypedDict, Unpack


class Order(BaseModel):
    number: int


class Trial(TypedDict):
    days: int


@dataclass
class Point:
    x: int


version: str = deferd.__version__
waits: list[Backoff] = [
    ExponentialBackoff(), FixedBackoff(seconds=10), ScheduleBackoff(seconds=[1, 2], then="repeat_last"),
    {"kind": "exponential", "base": 3}, {"kind": "fixed", "seconds": 10}, {"kind": "schedule", "seconds": [1, 2]},
]
level: DurabilityLevel = "replicated:2"
close = job("orders.close", Order, delay=timedelta(minutes=30), max_attempts=5, backoff=FixedBackoff(seconds=1))
trial: JobDefinition[Trial] = job("trials", Trial, backoff={"kind": "fixed"}, ttl=None)
move = job("points", Point)
numbers = job("numbers", list[int])
maybe: JobDefinition[int | None] = job("maybe", int | None)
worker = Worker()


@worker.handler(close, time_limit=5)
async def close_order(order: Order, context: Context) -> None: ...


def put_order(client: Client, number: int, **options: Unpack[PutOptions]) -> Job:
    return close.bind(client).put(Order(number=number), **options)


def produce(client: Client, orders: list[Order]) -> Iterator[PutResult]:
    client.put("t", {"any": 1}, id="a", delay=1, ttr=timedelta(seconds=1), max_attempts=None, backoff=waits[0])
    client.put("t", run_at=datetime.now(UTC), ttl=None, retain=0, on_conflict="keep", durability="fsync")
    client.put("t", backoff={"kind": "fixed", "seconds": 10, "jitter": 0.1}, durability=level)
    stored: Job = client.put("t", {"any": 1}, delay=1, backoff=FixedBackoff(), durability="memory")
    client.put(**close.fields(orders[0], id="x"))
    client.put_batch([PutJob(topic="t"), PutJob(topic="t", durability="fsync", backoff=FixedBackoff(seconds=1))])
    client.set_topic("t", TopicSettings(ttr=5, backoff=ScheduleBackoff(seconds=[1])))
    client.change("t", "a", delay=4, backoff=FixedBackoff(seconds=2))
    close_order: BlockingJob[Order] = close.bind(client)
    put: Job = close_order.put(orders[0], delay=5, id="order-1")
    gone: Cancelled = close_order.cancel("order-1", if_reserved="refuse")
    trial.bind(client).put({"days": 30})
    move.bind(client).put(Point(1))
    numbers.bind(client).put([1, 2])
    maybe.bind(client).put(None)
    [delivery] = client.pop("orders.close")
    order: Order = close.read(delivery)
    return client.put_many(close.fields(order) for order in orders)


async def produce_async(client: AsyncClient) -> Job:
    stored: Job = await client.put("t", {"any": 1}, delay=1, backoff={"kind": "fixed"}, durability="fsync")
    close_order: AsyncJob[Order] = close.bind(client)
    put: Job = await close_order.put(Order(number=1), run_at=datetime.now(UTC))
    put, again = await asyncio.gather(close_order.put(Order(number=1)), close_order.put(Order(number=2)))
    gone: Cancelled = await close_order.cancel("order-1")
    return await client.put("t", backoff={"kind": "fixed", "seconds": 10}, durability="fsync")
"""

WRONG = """
from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel
from deferd import AsyncClient, Client, FixedBackoff, Job, PutJob, ScheduleBackoff, TopicSettings, job


class Order(BaseModel):
    number: int


close = job("orders.close", Order)
client, async_client = Client(), AsyncClient()
{}
"""

WRONG_LINES = [
    # backoffs
    'client.put("t", backoff={"kind": "fixd"})',
    'client.put("t", backoff={"kind": "fixed", "second": 10})',
    'client.put("t", backoff={"kind": "fixed", "seconds": "10"})',
    'client.put("t", backoff={"kind": "schedule"})',
    'client.put("t", backoff={"kind": "schedule", "seconds": [1], "then": "repeat"})',
    'client.put("t", backoff={"seconds": 10})',
    'client.change("t", "a", backoff={"kind": "fixd"})',
    'async_client.put("t", backoff={"kind": "fixd"}).close()',
    'close.bind(client).put(Order(number=1), backoff={"kind": "fixd"})',
    'job("t", Order, backoff={"kind": "fixd"})',
    'PutJob(topic="t", backoff={"kind": "fixd"})',
    'TopicSettings(backoff={"kind": "fixd"})',
    'FixedBackoff(kind="fixd")',
    "FixedBackoff(second=10)",
    "ScheduleBackoff()",
    'ScheduleBackoff(seconds=[1], then="repeat")',
    # levels
    'client.put("t", durability="foo")',
    'client.put("t", durability="replicated:0")',
    'async_client.put("t", durability="foo").close()',
    'close.bind(client).put(Order(number=1), durability="foo")',
    'job("t", Order, durability="foo")',
    'PutJob(topic="t", durability="foo")',
    'TopicSettings(durability="foo")',
    # options
    'client.put("t", dely=5)',
    'client.put("t", delay="5")',
    'client.put("t", on_conflict="ignore")',
    'job("t", Order, id="a")',
    # definitions
    "close.put(Order(number=1))",
    'close.bind(client).put({"number": 1})',
    "close.bind(client).put(1)",
    "close.bind(client).cancel(1)",
    "put: Job = close.bind(async_client).put(Order(number=1))",
    "close.bind(Order(number=1))",
    "text: str = close.read(client.pop('orders.close')[0])",
    "close.topic = 'other'",
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The errors in both programs: one run of mypy, because it takes seconds to load its imports."""
    programs = {"right": RIGHT, "wrong": WRONG.replace("{}", "\n".join(WRONG_LINES))}
    return mypy_errors(programs, tmp_path_factory.mktemp("programs"))


@pytest.mark.slow
def test_a_correct_program_has_no_type_errors(errors: list[str]) -> None:
    assert [error for error in errors if not error.startswith("wrong.py:")] == []


@pytest.mark.slow
def test_each_wrong_call_is_a_type_error(errors: list[str]) -> None:
    first = WRONG.splitlines().index("{}") + 1
    found = {int(match.group(1)) for error in errors if (match := re.match(r"wrong\.py:(\d+):", error))}
    missed = [line for number, line in enumerate(WRONG_LINES, first) if number not in found]
    assert missed == []
    assert min(found) >= first, errors


def test_the_levels_of_durability_are_those_of_the_contract() -> None:
    levels = get_args(DurabilityLevel)
    assert set(levels) == {"memory", "fsync", *(f"replicated:{n}" for n in range(1, limits.REPLICAS_MAX + 1))}
    assert all(re.fullmatch(limits.DURABILITY_PATTERN, level) for level in levels)

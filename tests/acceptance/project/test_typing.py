"""Type checkers find every error in programs that use deferd, and report none in correct ones."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from textwrap import dedent
from typing import Any, get_args

import pytest

import deferd
import deferd.testing
from deferd import Worker
from deferd.contract import limits
from deferd.contract.model import DurabilityLevel
from deferd.testing import EagerJobs
from tests.acceptance.project import test_tutorial
from tests.acceptance.project.test_readme import DOCUMENTS, ROOT, blocks

CHECK_S = 280
CACHE = ROOT / ".mypy_cache" / "programs"
"""Kept, for most of the time goes into the packages that the programs import."""

RIGHT = """
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import deferd
import psycopg
import sqlalchemy
from pydantic import BaseModel
from deferd import (
    AsyncClient, AsyncJob, Backoff, BlockingJob, Cancelled, Client, Context, DurabilityLevel, ExponentialBackoff,
    FixedBackoff, Job, JobDefinition, PutJob, PutOptions, PutResult, ScheduleBackoff, TopicSettings, Worker, job,
    outbox,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
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
    office = {"days": ["mon", "tue"], "from": "08:00", "to": "18:00", "zone": "Europe/Berlin"}
    client.put("t", window=office)
    client.put("t", window=[office, {"from": "20:00", "to": "21:00"}])
    client.set_topic("t", {"window": office})
    client.put_calendar("office", [office])
    client.put_schedule("s", topic="t", every=60, window=[office])
    written: str = close.to_json(orders[0], id="a", window=office)
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


def in_transaction(
    session: Session, connection: sqlalchemy.Connection, psycopg_connection: psycopg.Connection, cursor: psycopg.Cursor
) -> str:
    outbox.cancel(session, "t", "a", if_reserved="refuse")
    outbox.reschedule(connection, "t", "a", delay=5, ttl=None, backoff={"kind": "fixed"})
    outbox.cancel_tag(cursor, "order-1")
    put: str = outbox.put(psycopg_connection, **close.fields(Order(number=1), id="a"))
    return outbox.put(session, "t", {"any": 1}, delay=timedelta(minutes=1), backoff=waits[0])


async def in_async_transaction(
    session: AsyncSession, connection: AsyncConnection, psycopg_connection: psycopg.AsyncConnection,
    cursor: psycopg.AsyncCursor,
) -> str:
    await outbox.cancel(session, "t", "a", if_reserved="refuse")
    await outbox.reschedule(connection, "t", "a", delay=5, ttl=None)
    await outbox.cancel_tag(cursor, "order-1")
    put: str = await outbox.put(psycopg_connection, **close.fields(Order(number=1), id="a"))
    return await outbox.put(session, "t", {"any": 1}, delay=timedelta(minutes=1))
"""

WRONG = """
from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel
from deferd import AsyncClient, Client, FixedBackoff, Job, PutJob, ScheduleBackoff, TopicSettings, job, outbox
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session


class Order(BaseModel):
    number: int


close = job("orders.close", Order)
client, async_client = Client(), AsyncClient()
session, async_session = Session(), AsyncSession()
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
    # the outbox
    'outbox.put(session, "t", dely=5)',
    'outbox.put(client, "t")',
    'outbox.put(async_session, "t").upper()',
    'outbox.put(session, "t").close()',
    'outbox.cancel_tag(async_session, "order-1")',  # without `await`
    'outbox.put(async_session, "t", backoff={"kind": "fixd"}).close()',
    'outbox.cancel(session, "t", "a", if_reserved="keep")',
    'outbox.reschedule(session, "t", "a", id="b")',
    "outbox.cancel_tag(session, 1)",
]


ORDER = "from pydantic import BaseModel\nclass Order(BaseModel):\n    number: int\n"
NAMES: dict[Any, str] = {
    deferd: "",
    deferd.testing: "",
    deferd.job: "from datetime import timedelta\nfrom pydantic import BaseModel\n"
    "from deferd import Client, Worker, job\nclient, worker = Client(), Worker()\n",
    Worker: f"{ORDER}from deferd import Worker\n",
    EagerJobs: f"{ORDER}from datetime import timedelta\nfrom deferd import Worker, job\n"
    "from deferd.testing import EagerJobs\nworker, close = Worker(), job('orders.close', Order)\n",
}
"""Documented objects with an example each, and what the example takes as known."""


def documented() -> dict[str, str]:
    """The programs of the documents, the docstrings and the examples, by names of their own."""
    programs = {
        f"{document.replace('-', '_')}_{number}": block
        for document in DOCUMENTS
        if document not in ("redis-protocol", "transactions", "tutorial")  # redis-py's `execute_command` has no types
        for number, block in enumerate(blocks(document, "python"))
    }
    programs["transactions"] = "\n".join(blocks("transactions", "python"))
    programs |= {name.removesuffix(".py"): source for name, source in test_tutorial.files().items()}
    programs |= {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests/examples").glob("*.py")}
    for explained, names in NAMES.items():
        [example] = re.findall(r"::\n\n((?:    .*\n|\n)+)", f"{inspect.getdoc(explained)}\n")
        programs[f"docstring_of_{explained.__name__.replace('.', '_')}"] = names + dedent(example)
    return programs


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The errors in each program, such as ``right.py:3: error: ...``.

    They are checked as their authors do, with mypy --strict and without this project's settings and plugins. All in one
    run, because most of its time goes into what they import.
    """
    programs = {"right": RIGHT, "wrong": WRONG.replace("{}", "\n".join(WRONG_LINES)), **documented()}
    folder = tmp_path_factory.mktemp("programs")
    for name, source in programs.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-color-output", "--no-error-summary"]
    checked = subprocess.run(
        [*command, "--cache-dir", str(CACHE), *(f"{name}.py" for name in programs)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=CHECK_S,
        check=False,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr  # as `WRONG` has errors
    found: dict[str, list[str]] = {name: [] for name in programs}
    for line in checked.stdout.splitlines():
        if ": error: " in line:
            found[line.partition(".py:")[0]].append(line)
    return found


@pytest.mark.slow
def test_a_correct_program_has_no_type_errors(errors: dict[str, list[str]]) -> None:
    assert errors["right"] == []


@pytest.mark.slow
def test_the_programs_of_the_documents_the_docstrings_and_the_examples_are_strictly_typed(
    errors: dict[str, list[str]],
) -> None:
    counts = {document: len(blocks(document, "python")) for document in DOCUMENTS if blocks(document, "python")}
    others = {
        "tracing": 1,
        "redis-protocol": 1,
        "push": 1,
        "transactions": 4,
        "tutorial": 6,
        "flow-control": 4,
        "outcomes": 1,
        "encryption": 2,
        "outbox": 1,
    }
    assert counts == {
        "readme": 2,
        "client": 9,
        "events": 1,
        "worker": 4,
        "schedules": 2,
        "testing": 2,
        "outbox": 1,
        **others,
    }, (
        "each has a test that runs it: in test_readme.py, of tracing in tests/unit/client/test_spans.py, and of "
        "redis-protocol, push, transactions, tutorial and outbox in the tests with their names"
    )
    assert {name: errors[name] for name in documented() if errors[name]} == {}


@pytest.mark.slow
def test_each_wrong_call_is_a_type_error(errors: dict[str, list[str]]) -> None:
    first = WRONG.splitlines().index("{}") + 1
    found = {int(match.group(1)) for error in errors["wrong"] if (match := re.match(r"wrong\.py:(\d+):", error))}
    missed = [line for number, line in enumerate(WRONG_LINES, first) if number not in found]
    assert missed == []
    assert min(found) >= first, errors["wrong"]


def test_the_levels_of_durability_are_those_of_the_contract() -> None:
    levels = get_args(DurabilityLevel)
    assert set(levels) == {"memory", "fsync", *(f"replicated:{n}" for n in range(1, limits.REPLICAS_MAX + 1))}
    assert all(re.fullmatch(limits.DURABILITY_PATTERN, level) for level in levels)

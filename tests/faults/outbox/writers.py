"""Writers: random transactions that call the outbox, and write each call into the journal.

Most calls are for ids that several writers use, and for jobs that are not due in the run. The others put jobs that are
due at once. Some transactions are made on purpose: two that overlap on one id and end in either order, a put, a cancel
and another put of an id in three transactions, one that is open for seconds, and a commit that takes long and is
followed by a cancel at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tests.faults.outbox import journal

LATER_TOPICS = ("outbox.later.a", "outbox.later.b")
"""Their jobs are due far beyond the run."""
NOW_TOPICS = KEPT_TOPIC, TAKEN_TOPIC = "outbox.kept", "outbox.taken"
"""Their jobs are due at once. When they are finished, they are kept, or their ids stay taken."""
_LATER_S = (4 * 3600.0, 20 * 86400.0)
_KEPT_S = 86400
_TTR_S = 5
_SHARED_IDS = 40
_USES = 30
"""How often a shared id is used on average before another one takes its place."""
_OPEN_S = (0.5, 3.0)
_SLOW_COMMIT_S = (0.05, 2.5)
_PAUSE_S = 0.05
_RECONNECT_S = 0.1
_PUT_MANY = """
insert into journal
select %s, step, 'put', %s, deferd.put(%s, jsonb_build_object('number', number), run_at => %s),
    jsonb_build_object('number', number, 'due', jsonb_build_array(%s::float8, %s::float8))
from unnest(%s::bigint[]) with ordinality as put (number, step)
"""


class Writers:
    """So many writers, which go on through failures of the database until `stop`."""

    def __init__(self, url: str, seed: int, count: int) -> None:
        self._url = url
        self._chance = random.Random(seed)
        self._count = count
        self._transactions = itertools.count(1)
        self._puts = itertools.count(1)
        self._names = itertools.count(1)
        self._shared = [self._new_id() for _ in range(_SHARED_IDS)]
        self._stopping = asyncio.Event()
        self.commits: dict[int, tuple[float, float]] = {}
        """When the commit of each transaction began and ended, also if it got no response."""
        self.made: Counter[str] = Counter()
        """Transactions by how they were made, and calls by their verb."""

    async def run(self) -> None:
        """Write until `stop`, and until the transactions that are open then have ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._count):
                group.create_task(self._write())

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    async def put_now(self) -> tuple[str, str]:
        """Commit one put that is due at once, whatever it takes; returns topic and id."""
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                async with self._transaction() as transaction:
                    return await transaction.put_now(f"probe-{next(self._names)}")
            await asyncio.sleep(_RECONNECT_S)

    async def _write(self) -> None:
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._ordinary, 60),
            (self._immediate, 15),
            (self._open_for_long, 6),
            (self._overlapping, 8),
            (self._put_cancel_put, 6),
            (self._slow_commit, 8),
            (self._many_at_once, 4),
        ]
        while not self._stopping.is_set():
            [kind] = self._chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            try:
                await kind()
                self.made[kind.__name__.removeprefix("_")] += 1
            except psycopg.OperationalError:  # the database is down, or is starting
                self.made["lost its connection"] += 1
                await asyncio.sleep(_RECONNECT_S)
            await asyncio.sleep(self._chance.expovariate(1 / _PAUSE_S))

    async def _ordinary(self) -> None:
        """One to five calls, some of them in a savepoint that is rolled back; some transactions are rolled back."""
        async with self._transaction(commits=self._chance.random() > 0.15) as transaction:
            for _ in range(self._chance.randint(1, 5)):
                draw = self._chance.random()
                if draw < 0.2:
                    await transaction.in_savepoint(rolled_back=draw < 0.14)
                else:
                    await transaction.any_call()

    async def _immediate(self) -> None:
        """Puts that are due at once; some for an id of which the job may have been finished."""
        async with self._transaction(commits=self._chance.random() > 0.15) as transaction:
            for _ in range(self._chance.randint(1, 3)):
                name = next(self._names)
                await transaction.put_now(f"now-{name if self._chance.random() > 0.2 else max(name - 50, 0)}")

    async def _open_for_long(self) -> None:
        """The commit comes long after the calls, and long after the commits of others."""
        async with self._transaction() as transaction:
            await transaction.any_call()
            await transaction.put(self._id(), on_conflict="keep")
            await asyncio.sleep(self._chance.uniform(*_OPEN_S))

    async def _overlapping(self) -> None:
        """Two transactions are open at once and call for one id; they commit one after the other, in either order."""
        key = self._id()
        async with contextlib.AsyncExitStack() as first_ends, contextlib.AsyncExitStack() as second_ends:
            first = await first_ends.enter_async_context(self._transaction())
            second = await second_ends.enter_async_context(self._transaction())
            await first.put(key, on_conflict=self._chance.choice(["keep", "replace"]))
            await second.call_of(key)
            for ends in self._chance.sample([first_ends, second_ends], 2):
                await ends.aclose()

    async def _put_cancel_put(self) -> None:
        """Three transactions for one id, one right after the other."""
        key = self._id()
        async with self._transaction() as transaction:
            await transaction.put(key, on_conflict="keep")
        async with self._transaction() as transaction:
            await transaction.cancel(key)
        if self._chance.random() < 0.5:
            async with self._transaction() as transaction:
                await transaction.put(key, on_conflict="keep")

    async def _many_at_once(self) -> None:
        """More puts in one transaction than the relay sends in one call, or nearly so."""
        async with self._transaction() as transaction:
            await transaction.put_many(self._chance.randint(100, 1200))

    async def _slow_commit(self) -> None:
        await self.commit_slowly(self._chance.uniform(*_SLOW_COMMIT_S))

    async def commit_slowly(self, seconds: float) -> None:
        """A commit that takes so long after it has begun, and a cancel of the same id as soon as it has ended."""
        key = self._new_id()
        async with self._transaction() as transaction:
            await transaction.put(key, on_conflict="keep")
            await transaction.connection.execute("insert into slow_commits values (%s)", (seconds,))
        async with self._transaction() as transaction:
            await transaction.cancel(key)

    async def put_and_cancel(self, between: Callable[[], Awaitable[None]]) -> None:
        """Commit a put, await what is done between, and commit a cancel of the same id."""
        key = self._new_id()
        async with self._transaction() as transaction:
            await transaction.put(key, on_conflict="keep")
        await between()
        async with self._transaction() as transaction:
            await transaction.cancel(key)

    @contextlib.asynccontextmanager
    async def _transaction(self, *, commits: bool = True) -> AsyncIterator[Transaction]:
        """A transaction on a connection of its own, rolled back at the end unless it `commits`."""
        connection = await psycopg.AsyncConnection.connect(self._url)
        try:
            number = next(self._transactions)
            yield Transaction(connection, number, self)
            if not commits:
                await connection.rollback()
                self.made["rolled back"] += 1
                return
            began_s = time.monotonic()
            try:
                await connection.commit()
            finally:
                self.commits[number] = began_s, time.monotonic()
        finally:
            await connection.close()

    def _new_id(self) -> tuple[str, str]:
        number = next(self._names)
        return LATER_TOPICS[number % len(LATER_TOPICS)], f"id-{number}"

    def _id(self) -> tuple[str, str]:
        """One of those that all writers use."""
        index = self._chance.randrange(_SHARED_IDS)
        if self._chance.random() < 1 / _USES:
            self._shared[index] = self._new_id()
        return self._shared[index]

    def later(self) -> timedelta:
        """A delay beyond the run."""
        return timedelta(milliseconds=round(self._chance.uniform(*_LATER_S) * 1000))

    @property
    def chance(self) -> random.Random:
        """What draws."""
        return self._chance

    def next_put(self) -> int:
        """The number of a put."""
        return next(self._puts)

    def any_id(self) -> tuple[str, str]:
        """An id of those that all writers use, or a new one."""
        return self._id() if self._chance.random() < 0.7 else self._new_id()


class Transaction:
    """The calls of one transaction."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], number: int, writers: Writers) -> None:
        self.connection = connection
        self._number = number
        self._writers = writers
        self._chance = writers.chance
        self._steps = 0

    async def in_savepoint(self, *, rolled_back: bool) -> None:
        """One or two calls in a savepoint."""
        await self.connection.execute("savepoint one")
        for _ in range(self._chance.randint(1, 2)):
            await self.any_call()
        await self.connection.execute("rollback to savepoint one" if rolled_back else "release savepoint one")
        self._writers.made["savepoint rolled back" if rolled_back else "savepoint released"] += 1

    async def any_call(self) -> None:
        """A call for any id, a put without an id, or a cancel by tag."""
        draw = self._chance.random()
        if draw < 0.15:
            await self.put((self._chance.choice(LATER_TOPICS), None), on_conflict="keep")
        elif draw < 0.2:
            await self.cancel_tag(_tag_of(self._writers.any_id()[1]))
        else:
            await self.call_of(self._writers.any_id())

    async def call_of(self, key: tuple[str, str]) -> None:
        """A put, a cancel or a reschedule of this id."""
        draw = self._chance.random()
        if draw < 0.4:
            await self.put(key, on_conflict="keep")
        elif draw < 0.55:
            await self.put(key, on_conflict="replace")
        elif draw < 0.8:
            await self.cancel(key)
        else:
            await self.reschedule(key)

    async def put(self, key: tuple[str, str | None], *, on_conflict: str) -> None:
        """Put a job that is due beyond the run."""
        topic, name = key
        number = self._writers.next_put()
        tag = None if name is None or self._chance.random() < 0.3 else _tag_of(name)
        when, due_s = self._when()
        [stored_id], due = await self._call(
            f"select deferd.put(%s, %s, id => %s, on_conflict => %s, tags => %s, {when} => %s)",
            (topic, Jsonb({"number": number}), name, on_conflict, None if tag is None else [tag], due_s),
            due_s,
        )
        assert name in {None, stored_id}
        details = {"number": number, "replaces": on_conflict == "replace", "tag": tag, "due": due}
        await self._note("put", topic, stored_id, details)

    async def put_many(self, count: int) -> None:
        """Put so many jobs without ids, in one statement."""
        due = datetime.now(UTC).replace(microsecond=0) + self._writers.later()
        due_ms = due.timestamp() * 1000
        numbers = [self._writers.next_put() for _ in range(count)]
        values = (self._number, LATER_TOPICS[0], LATER_TOPICS[0], due, due_ms, due_ms, numbers)
        await self.connection.execute(_PUT_MANY, values)
        self._writers.made["put"] += count

    async def put_now(self, id: str) -> tuple[str, str]:
        """Put a job that is due at once; returns topic and id."""
        number = self._writers.next_put()
        topic, once = self._chance.choice([(KEPT_TOPIC, "retain"), (TAKEN_TOPIC, "unique_for")])
        await self._call(
            f"select deferd.put(%s, %s, id => %s, ttr => %s, {once} => %s)",
            (topic, Jsonb({"number": number}), id, timedelta(seconds=_TTR_S), timedelta(seconds=_KEPT_S)),
        )
        await self._note("put", topic, id, {"number": number})
        return topic, id

    async def cancel(self, key: tuple[str, str]) -> None:
        """Cancel the job of this id."""
        await self._call("select deferd.cancel(%s, %s)", key)
        await self._note("cancel", *key, {})

    async def reschedule(self, key: tuple[str, str]) -> None:
        """Move the due time of the job of this id."""
        when, due_s = self._when()
        _, due = await self._call(f"select deferd.reschedule(%s, %s, {when} => %s)", (*key, due_s), due_s)
        await self._note("reschedule", *key, {"due": due})

    async def cancel_tag(self, tag: str) -> None:
        """Cancel all jobs with this tag."""
        await self._call("select deferd.cancel_tag(%s)", (tag,))
        await self._note("cancel_tag", None, None, {"tag": tag})

    def _when(self) -> tuple[str, timedelta | datetime]:
        """The argument for the due time, and its value."""
        if self._chance.random() < 0.5:
            return "delay", self._writers.later()
        return "run_at", datetime.now(UTC).replace(microsecond=0) + self._writers.later()

    async def _call(
        self, statement: str, values: tuple[Any, ...], due: timedelta | datetime | None = None
    ) -> tuple[tuple[Any, ...], tuple[float, float]]:
        """What it returns, and between which instants the job is due, in ms."""
        before_ms = time.time() * 1000
        found = await (await self.connection.execute(statement, values)).fetchone()
        after_ms = time.time() * 1000
        assert found is not None
        if isinstance(due, datetime):
            return found, (due.timestamp() * 1000, due.timestamp() * 1000)
        later_ms = 0.0 if due is None else due.total_seconds() * 1000
        return found, (before_ms + later_ms, after_ms + later_ms)

    async def _note(self, verb: str, topic: str | None, id: str | None, details: dict[str, Any]) -> None:
        self._writers.made[verb] += 1
        self._steps += 1
        await journal.Call(self._number, self._steps, verb, topic, id, details).write(self.connection)


def _tag_of(id: str) -> str:
    """Some ids in turn share a tag."""
    return f"group:{int(id.removeprefix('id-')) // 4}"

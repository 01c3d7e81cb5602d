"""The outbox in PostgreSQL as the relay and the commands use it: one connection, and the statements that they run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import args_row

from deferd.contract.clocks import monotonic_s
from deferd.contract.limits import OUTBOX_COUNTED
from deferd.outbox.schema import COMMIT_LOCK, NO_OUTBOX, SLEEP_LOCK, version_problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Result = TypeVar("Result")

READ_ROWS = 1000
READ_BYTES = 4 * 1024 * 1024
"""How many rows, and how much JSON, one read returns at most; a single row may be larger."""
STATEMENT_S = 20.0
"""The longest time for a statement: then the connection counts as broken."""
_CONNECT_S = 5
_CONNECTION: dict[str, Any] = {
    "application_name": "deferd relay",
    "connect_timeout": _CONNECT_S,
    "target_session_attrs": "primary",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""What a URL may override."""
_LOCK = int.from_bytes(b"relay", "big")
"""Key of the advisory lock that the relay which works holds."""

_SETTINGS = """
select set_config('statement_timeout', %s, false), set_config('search_path', 'pg_catalog', false),
    set_config('jit', 'off', false),
    -- These hold for any defaults of the database or the role: in other styles of dates psycopg reads none, and
    -- serializable statements fail because of those of applications.
    set_config('datestyle', 'ISO', false), set_config('timezone', 'UTC', false),
    set_config('default_transaction_isolation', 'read committed', false),
    -- The server, too, must note soon that the machine of a relay has gone: the lock is free only then.
    set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10000', false),
    -- A plan for these positions looks them up in a hash table, one for any positions compares each.
    set_config('plan_cache_mode', 'force_custom_plan', false),
    -- A plan that was made while the table was nearly empty must not sort a million rows later.
    set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false)
"""
_READ = """
select position, verb, topic, id, fields::text, written_at
from (
    select *, sum(bytes) over (order by position rows unbounded preceding) - bytes as bytes_before
    from (
        select *, case
            when pg_column_compression(fields) is null then pg_column_size(fields)
            else octet_length(fields::text)
        end as bytes
        from deferd.outbox
        where position > %(after)s and (topic is null or topic <> all (%(topics)s::text[]))
            and (position > %(last)s or position <> all (%(known)s::bigint[]))
        order by position
        limit %(rows)s
    ) as next
) as measured
where bytes_before < %(bytes)s
order by position
"""
_BEGIN = """
update deferd.relay set name = %s, since = clock_timestamp(), clean_stop = false returning name, since, clean_stop
"""
_HOLDERS = """
select virtualtransaction from pg_locks
where locktype = 'advisory' and objsubid = 1 and granted and mode = %s
    and (classid::bigint << 32) + objid::bigint = any (%s::bigint[])
    and database = (select oid from pg_database where datname = current_database())
"""
_DELETE = "delete from deferd.outbox where position = any (%(done)s::bigint[]) and written_at <= %(written_until)s"
_REFUSE = """
with gone as (
    delete from deferd.outbox using unnest(%(refused)s::bigint[], %(problems)s::text[]) as refusal (refused, problem)
    where position = refused and written_at <= %(written_until)s
    returning position, verb, topic, id, fields, written_at, refusal.problem::jsonb
)
insert into deferd.refused (position, verb, topic, id, fields, written_at, problem) select * from gone
on conflict (position) do nothing
"""
_DROP_TAGGED = """
with held as (
    select position, topic, id, is_replacing from (
        select position, topic, id, is_tagged, is_replacing,
            bool_or(not is_tagged) over (partition by topic, id order by position desc) as is_tagged_otherwise
        from (
            select position, topic, id, fields ->> 'on_conflict' = 'replace' as is_replacing,
                verb = 'put' and fields -> 'tags' ? %(tag)s as is_tagged,
                verb = 'reschedule' and fields ? 'tags' as is_tagging
            from deferd.outbox
            where position < %(before)s and topic = any (%(topics)s::text[])
        ) as row
        where is_tagged or is_tagging
    ) as row
    where is_tagged and not is_tagged_otherwise
), needless as (
    select position from (
        select position, is_keeping, max(held_at) over earlier as held_at, max(cancel_at) over earlier as cancel_at
        from (
            select position, topic, id, verb = 'put' and fields ->> 'on_conflict' = 'keep' as is_keeping,
                case when position in (select position from held) then position end as held_at,
                case when verb = 'cancel' then position end as cancel_at
            from deferd.outbox
            where position < %(before)s and topic = any (%(topics)s::text[])
                and case when (topic, id) in (select topic, id from held) then true end
        ) as row
        window earlier as (
            partition by topic, id order by position rows between unbounded preceding and 1 preceding
        )
    ) as row
    where is_keeping and held_at > coalesce(cancel_at, -1)
), gone as (
    delete from deferd.outbox
    where position in (select position from held where not is_replacing union all select position from needless)
)
update deferd.outbox set verb = 'cancel', fields = jsonb_build_object('if_reserved', %(if_reserved)s::text)
where position in (select position from held where is_replacing)
"""
_STATUS = """
select
    case when counted <= %(most)s then counted else greatest(counted, estimated) end,
    refused,
    coalesce(greatest(extract(epoch from clock_timestamp() - oldest), 0), 0)::float8
from
    (select count(*) as counted from (select from deferd.outbox limit %(most)s + 1) as first) as rows,
    (select coalesce(max(n_live_tup), 0) as estimated from pg_stat_all_tables where relid = 'deferd.outbox'::regclass)
        as statistics,
    (select count(*) as refused from (select from deferd.refused limit %(most)s + 1) as first) as refusals,
    (select max(written_at) as oldest from (select written_at from deferd.outbox order by position limit 1) as first)
        as oldest
"""


class OutboxRow(NamedTuple):
    """A committed call that has not been sent. `fields` is its JSON as text; `topic` and `id` are None of a cancel_tag.

    Positions are in the order of commits. None is used again, unless the database has lost commits: see `settle`.
    """

    position: int
    verb: str
    topic: str | None
    id: str | None
    fields: str
    written_at: datetime


class Refusal(NamedTuple):
    """A row that the service refused for good, and its problem document."""

    position: int
    problem: Mapping[str, Any]


class OutboxStatus(NamedTuple):
    """How many rows wait, by an estimate if there are many, and how many were refused, counted only so far.

    `lag_s` is the age of the oldest row, 0 without rows.
    """

    rows: int
    refused: int
    lag_s: float


class Worker(NamedTuple):
    """The relay that works, or did last, and whether it ended its calls before it stopped."""

    name: str | None
    since: datetime
    clean_stop: bool


class OutboxMissing(Exception):
    """The database has no outbox, or one of a later release."""


class OutboxDatabase:
    """A connection to the database of an outbox. Its calls may be concurrent; it runs them one after the other.

    Each raises psycopg.Error or TimeoutError when the connection breaks, or the database does not respond in time.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], version: int) -> None:
        self._connection = connection
        self.version = version
        """Of the schema."""
        self._loop = asyncio.get_running_loop()
        self._notified = asyncio.Event()
        connection.add_notify_handler(lambda _: self._notified.set())
        info = connection.info
        self.name = f"{info.host or 'localhost'}:{info.port}/{info.dbname}"
        """Where it is, without user and password."""
        self.confirmed_s = 0.0
        """When the last statement that succeeded was sent: the session, and with it the lock, was there later still."""

    # The relay

    async def listen(self) -> None:
        """Let commits wake `wait`; see `try_to_sleep`."""
        await self._run("listen deferd_outbox")

    async def try_to_lock(self) -> bool:
        """Get the lock of the relay that works, which this connection holds until its end."""
        return bool((await self._one("select pg_try_advisory_lock(%s)", _LOCK))[0])

    async def worker(self) -> Worker:
        """The relay that works now, or did last."""
        return Worker(*await self._one("select name, since, clean_stop from deferd.relay"))

    async def is_worked_on(self) -> bool:
        """Whether a relay works now."""
        return bool(await self._holders("ExclusiveLock", _LOCK))

    async def _holders(self, mode: str, *locks: int) -> set[str]:
        """The transactions that hold one of these advisory locks."""

        async def run() -> set[str]:
            cursor = await self._connection.execute(_HOLDERS, (mode, list(locks)))
            return {transaction for (transaction,) in await cursor.fetchall()}

        return await self._timed(run())

    async def begin(self, name: str) -> Worker:
        """Note that this relay works."""
        return Worker(*await self._one(_BEGIN, name))

    async def end(self) -> None:
        """Note that all calls of this relay have ended."""
        await self._run("update deferd.relay set clean_stop = true")

    async def settle(self, done: Sequence[int], refused: Sequence[Refusal], written_until: datetime) -> None:
        """Delete the rows that are done, and move those that were refused. All of them were written until then.

        After a crash without synchronous commits, or a failover to a server that was behind, a sequence may give
        positions again. So a relay that connects once more could meet other rows at them, which are newer.
        """
        if refused:
            positions = [refusal.position for refusal in refused]
            problems = [json.dumps(refusal.problem).replace("\\u0000", "\\ufffd") for refusal in refused]
            await self._run(_REFUSE, refused=positions, problems=problems, written_until=written_until)
        await self._run(_DELETE, done=list(done), written_until=written_until)

    async def read(
        self, after: int, without_topics: Sequence[str], without_positions: Sequence[int] = ()
    ) -> list[OutboxRow]:
        """The next rows behind a position, but those of some topics, and those at some positions."""
        values = {
            "after": after,
            "topics": list(without_topics),
            "known": list(without_positions),
            "last": max(without_positions, default=0),
            "rows": READ_ROWS,
            "bytes": READ_BYTES,
        }

        async def run() -> list[OutboxRow]:
            async with self._connection.cursor(row_factory=args_row(OutboxRow)) as cursor:
                return await (await cursor.execute(_READ, values)).fetchall()

        return await self._timed(run())

    async def last_position(self) -> int:
        """The last position that a row got, which may not be visible yet."""
        return int((await self._one("select coalesce(pg_sequence_last_value('deferd.outbox_position'), 0)"))[0])

    async def commits_under_way(self) -> set[str]:
        """The transactions that have positions, or will get them, and whose rows are not visible yet.

        Also prepared ones: they keep their names.
        """
        return await self._holders("ShareLock", SLEEP_LOCK, COMMIT_LOCK)

    async def try_to_sleep(self) -> bool:
        """From now on, each commit of rows wakes `wait`. False if one that does not is under way."""
        return bool((await self._one("select pg_try_advisory_lock(%s)", SLEEP_LOCK))[0])

    async def wake_up(self) -> None:
        """Let commits be quick: they wake nobody."""
        await self._run("select pg_advisory_unlock(%s)", SLEEP_LOCK)

    async def drop_tagged(self, topics: Sequence[str], tag: str, if_reserved: str, before: int) -> None:
        """Remove the puts with this tag in front of a cancel by tag that overtakes them.

        A put that would have replaced a job becomes a cancel of that. With them go puts that would have found their job
        there, and so had no effect; none does of which a cancel is before them.
        """
        values = {"topics": list(topics), "tag": tag, "if_reserved": if_reserved, "before": before}
        await self._run(_DROP_TAGGED, **values)

    async def wait(self, seconds: float, stopped: asyncio.Future[Any]) -> None:
        """Wait until somebody has committed a row since the last call, until `stopped` is done, or so long."""
        if not self._notified.is_set():
            readable = self._loop.create_future()
            descriptor = self._connection.fileno()
            self._loop.add_reader(descriptor, _set, readable)
            try:
                await asyncio.wait({readable, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._loop.remove_reader(descriptor)
            if readable.done():
                self._connection.pgconn.consume_input()
                while self._connection.pgconn.notifies() is not None:
                    pass
        self._notified.clear()

    # The relay and the commands

    async def status(self) -> OutboxStatus:
        """How much waits."""
        return OutboxStatus(*await self._one(_STATUS, most=OUTBOX_COUNTED))

    async def _run(self, statement: str, *values: Any, **named: Any) -> None:
        await self._timed(self._connection.execute(statement, named or values))

    async def _one(self, statement: str, *values: Any, **named: Any) -> tuple[Any, ...]:
        async def run() -> tuple[Any, ...]:
            row = await (await self._connection.execute(statement, named or values)).fetchone()
            assert row is not None  # noqa: S101 (for mypy: each of these statements returns a row)
            return tuple(row)

        return await self._timed(run())

    async def _timed(self, call: Awaitable[Result]) -> Result:
        began_s = monotonic_s()
        async with asyncio.timeout(STATEMENT_S + 1):
            result = await call
        self.confirmed_s = max(self.confirmed_s, began_s)
        return result


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def place_of(url: str) -> str:
    """Where the database is that a URL names, without user and password, also if it can't be reached."""
    given = conninfo_to_dict(url)
    port = f":{given['port']}" if given.get("port") else ""
    return f"{given.get('host') or 'localhost'}{port}/{given.get('dbname') or given.get('user') or ''}"


@asynccontextmanager
async def open_outbox(url: str) -> AsyncIterator[OutboxDatabase]:
    """Connect to the database of an outbox.

    Raises:
        OutboxMissing: it has no outbox, or one of a later release.
        psycopg.Error, TimeoutError: it cannot be reached, or it refuses.
    """
    given = _CONNECTION | conninfo_to_dict(url) | {"client_encoding": "UTF8", "autocommit": True}
    async with asyncio.timeout(2 * _CONNECT_S):
        connection = await psycopg.AsyncConnection.connect(**given)
    try:
        async with asyncio.timeout(STATEMENT_S):
            await connection.execute(_SETTINGS, (f"{STATEMENT_S:.0f}s",))
            version = await _read_version(connection)
        yield OutboxDatabase(connection, version)
    finally:
        await connection.close()


async def _read_version(connection: psycopg.AsyncConnection[Any]) -> int:
    try:
        [(version,)] = await (await connection.execute("select max(version) from deferd.version")).fetchall()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise OutboxMissing(NO_OUTBOX) from error
    if (problem := version_problem(version)) is not None:
        raise OutboxMissing(problem)
    return int(version)

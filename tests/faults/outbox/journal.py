"""What a run knows of its calls of the outbox: a table that each transaction writes beside them, and when it committed.

A row of the table is there if its transaction was committed, and the calls of that transaction took effect with it: so
the table is the truth, also where a commit got no response. The order of two transactions is known where one of them
had ended before the commit of the other began.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.types.json import Jsonb

SCHEMA = """
create table journal(
  transaction bigint, step int, verb text, topic text, id text, details jsonb, primary key (transaction, step));
create table slow_commits(seconds float8);
create function commit_slowly() returns trigger language plpgsql as
  $$ begin perform pg_sleep(new.seconds); return null; end $$;
create constraint trigger commits_slowly after insert on slow_commits
  deferrable initially deferred for each row execute function commit_slowly();
"""
"""A row of `slow_commits` makes its commit take as long, behind all triggers of rows that were inserted before it."""
_INSERT = "insert into journal values (%s, %s, %s, %s, %s, %s)"


class Due(NamedTuple):
    """Bounds of the instant, in ms since 1970, for which a job was put or rescheduled."""

    earliest_ms: float
    latest_ms: float

    def has(self, instant_ms: float) -> bool:
        """Whether this may be the instant: deferd keeps whole milliseconds."""
        return self.earliest_ms - 1 <= instant_ms <= self.latest_ms + 1


class Committed(NamedTuple):
    """A call of the outbox in a committed transaction.

    The commit began at `began_s` at the earliest and had ended at `ended_s`. `number` is that of a put, which is also
    in the body of its job; a cancel has none. `tag` is that of the put job, or the one by which jobs were cancelled.
    """

    transaction: int
    step: int
    verb: str
    topic: str | None
    id: str | None
    began_s: float
    ended_s: float
    number: int = 0
    replaces: bool = False
    tag: str | None = None
    due: Due = Due(0, 0)

    def precedes(self, other: Committed) -> bool:
        """Whether this one must take effect first."""
        if self.transaction == other.transaction:
            return self.step < other.step
        return self.ended_s < other.began_s


class Call(NamedTuple):
    """A call of the outbox that a transaction made as its `step`."""

    transaction: int
    step: int
    verb: str
    topic: str | None
    id: str | None
    details: dict[str, Any]

    async def write(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Write it into the journal, in the transaction that made it."""
        await connection.execute(_INSERT, (*self[:-1], Jsonb(self.details)))


async def read(url: str, commits: dict[int, tuple[float, float]]) -> list[Committed]:
    """All committed calls. `commits` has when the commit of each transaction began and ended."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        rows = await (await connection.execute("select * from journal order by transaction, step")).fetchall()
    calls = []
    for row in rows:
        call = Call(*row)
        due = Due(*call.details.pop("due", (0, 0)))
        calls.append(Committed(*call[:-1], *commits[call.transaction], due=due, **call.details))
    return calls

"""The relay: sends the committed rows of an outbox to the service, and deletes those that it has acknowledged.

Of any number of relays of a database one works: the one whose connection holds an advisory lock. It sends nothing
unless the connection was alive CONFIRMED_S ago, and a call has no effect after CALL_S. So a relay that takes over from
one that did not end in order waits for longer than both together, and no call of the other overtakes its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg

from deferd.client.request_body import encode
from deferd.client.requests import request_for
from deferd.client.sender import RetryPolicy
from deferd.contract.clocks import monotonic_s
from deferd.contract.errors import Forbidden
from deferd.contract.operations.relays import REPORT_RELAY
from deferd.outbox.administration import DatabaseFailed, error_text
from deferd.outbox.database import OutboxDatabase, OutboxMissing, OutboxRow, OutboxStatus, Worker, open_outbox, place_of
from deferd.outbox.read_mark import ReadMark
from deferd.outbox.sending import CALL_S, LOG, RowSender, Service, Stopped
from deferd.worker.log import FailureLog
from deferd.worker.worker import default_name

FULL_FOR_S = 600.0
"""How long a topic may be full before its rows are refused, unless a relay says otherwise."""
CONFIRMED_S = 1.0
"""No call begins unless a statement that was sent less long ago has shown that this relay holds the lock."""
TAKEOVER_S = 5.0
assert TAKEOVER_S > CONFIRMED_S + CALL_S  # noqa: S101 (see the module)
_POLL_S = 1.0
"""How often a relay looks for rows without being notified, and a waiting one whether it can take over."""
_REPORT_S = 5.0
_AHEAD_ROWS = 100
"""While so many rows are sent, those that were sent before are deleted, and the next ones are read."""
_RECHECK_S = 10.0
"""How often all rows are read, also those that were inserted without the trigger that gives them a position."""
_RECHECK_SHARE = 20
"""The next such read is so many times later than it took: there may be many rows of topics that are full."""
_PAUSE_S, _MOST_PAUSE_S = 0.002, 0.05
"""The pause until the next read while commits are under way."""
_STABLE_S = 10.0
"""After a connection that lasted so long, the next one is tried soon."""
_RECONNECT = RetryPolicy(first_pause_s=0.1, max_pause_s=2.0)


class Relay:
    """One relay of the outbox in a database. `name` has the form of a job id; by default it is host and process id."""

    def __init__(
        self, database_url: str, service: Service, *, name: str | None = None, full_for_s: float = FULL_FOR_S
    ) -> None:
        self._url = database_url
        self._service = service
        self._name = name or default_name()
        self._full_for_s = full_for_s
        self._database: OutboxDatabase
        self._database_name = place_of(database_url)
        self._sender: RowSender
        self._stopped: asyncio.Future[Any]
        self._works = False
        self._own: Worker | None = None
        self._status = OutboxStatus(0, 0, 0.0)
        self._next_report_s = 0.0
        self._may_send = True
        self._database_log = FailureLog(f"using the outbox of {place_of(database_url)}", LOG)
        self._report_log = FailureLog("reporting to the service", LOG)
        self._mark: ReadMark
        self._excluded: list[str] = []
        self._written_until = datetime.min.replace(tzinfo=UTC)
        self._recheck_s = 0.0
        self._sleeps = False
        self._pause_s = _PAUSE_S

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set, then end within some seconds: the calls under way have an end."""
        self._stopped = asyncio.create_task(stop.wait())
        self._sender = RowSender(
            self._service,
            confirm=self._before_call,
            drop_tagged=self._drop_tagged,
            stopped=self._stopped,
            full_for_s=self._full_for_s,
        )
        urls, place = ",".join(self._service.urls), place_of(self._url)
        facts = {"relay": self._name, "database": place, "url": urls}
        LOG.info("relay %s starts: it sends the outbox of %s to %s", self._name, place, urls, extra=facts)
        failures = 0
        try:
            while not self._stopped.done():
                began_s = monotonic_s()
                try:
                    async with open_outbox(self._url) as self._database:
                        self._database_name = self._database.name
                        await self._serve()
                except (psycopg.Error, TimeoutError, OutboxMissing) as error:
                    failures = 0 if monotonic_s() - began_s > _STABLE_S else failures + 1
                    self._works = False
                    self._database_log.failed(DatabaseFailed(error_text(error)))
                    await self._report_if_due(is_connected=False)
                    await self._sleep(_RECONNECT.pause_s(failures))
        finally:
            self._stopped.cancel()
            await asyncio.wait({self._stopped})
            await self._service.close()
        LOG.info("relay %s has ended", self._name, extra=facts)

    async def _serve(self) -> None:
        """Wait for the turn of this relay, and work, until it is stopped or the connection breaks."""
        is_first = True
        while not self._stopped.done():
            if await self._database.try_to_lock():
                if await self._take_over():
                    await self._work()
                return
            if is_first:
                LOG.info("relay %s waits: another one works", self._name, extra=self._facts())
                is_first = False
            self._database_log.succeeded()
            await self._report_if_due()
            await self._sleep(_POLL_S)

    async def _take_over(self) -> bool:
        """Wait until no call of the relay before can have an effect. Returns False if this one is stopped before."""
        last = await self._database.worker()
        if not last.clean_stop and last != self._own:
            text = "relay %s takes over from %s, which did not end in order, in %g s"
            LOG.info(text, self._name, last.name, TAKEOVER_S, extra=self._facts(before=last.name))
            await self._sleep(TAKEOVER_S)
        if self._stopped.done():
            return False
        self._own = await self._database.begin(self._name)
        return True

    def _facts(self, **more: Any) -> dict[str, Any]:
        return {"relay": self._name, "database": self._database_name, **more}

    # Work

    async def _work(self) -> None:
        self._mark = ReadMark(self._database)
        self._recheck_s = 0.0
        self._sleeps = False
        await self._database.listen()
        try:
            await self._send_rows()
        except Stopped:  # a call whose response was lost may still have an effect
            await self._record()
        else:
            await self._record()
            await self._database.end()
        self._works = False
        self._next_report_s = 0.0
        await self._report_if_due()

    async def _send_rows(self) -> None:
        rows: list[OutboxRow] = []
        while not self._stopped.done():
            if not rows:
                if self._sender.done or self._sender.refused:
                    await self._record()
                rows = await self._read()
            if not self._works:
                self._works = True
                self._next_report_s = 0.0
                self._database_log.succeeded()
                LOG.info("relay %s works on %s", self._name, self._database_name, extra=self._facts())
            await self._report_if_due()
            if not self._may_send:
                await self._sleep(self._next_report_s - monotonic_s())
            elif rows:
                rows = await self._send(rows)
            else:
                await self._idle()

    async def _send(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Send rows. Returns the next ones if they were read meanwhile."""
        reads_ahead = len(rows) >= _AHEAD_ROWS and not self._must_read_from_start()
        meanwhile = self._read_ahead(rows) if reads_ahead else self._wake_up()
        is_settled, ahead = await asyncio.gather(self._sender.send(rows), meanwhile, return_exceptions=True)
        if isinstance(is_settled, BaseException):
            raise is_settled
        if isinstance(ahead, BaseException):
            raise ahead
        if is_settled:
            return ahead
        self._mark.reset()  # rows have stayed, and go before those behind them
        return []

    async def _read_ahead(self, under_way: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Delete the rows before those that are being sent, and read those behind them."""
        await self._wake_up()
        await self._record()
        return await self._read_from_mark([row.position for row in under_way])

    async def _read(self) -> list[OutboxRow]:
        """The next rows. Those of a topic that is tried again are before the mark."""
        is_from_start, began_s = self._must_read_from_start(), monotonic_s()
        if is_from_start:
            self._mark.reset()
        self._excluded = self._sender.full_topics()
        rows = await self._read_from_mark()
        if is_from_start:
            now_s = monotonic_s()
            self._recheck_s = now_s + max(_RECHECK_S, _RECHECK_SHARE * (now_s - began_s))
        return rows

    def _must_read_from_start(self) -> bool:
        return monotonic_s() >= self._recheck_s or not set(self._excluded) <= set(self._sender.full_topics())

    async def _read_from_mark(self, without_positions: Sequence[int] = ()) -> list[OutboxRow]:
        await self._mark.prove()
        rows = await self._database.read(self._mark.position, self._excluded, without_positions)
        self._written_until = max([self._written_until, *[row.written_at for row in rows]])
        self._mark.note_read(rows)
        return rows

    async def _idle(self) -> None:
        """Wait for rows. Commits are quick while they do not wake this relay, so it sleeps only if there are none."""
        if self._sleeps:
            left_s = min(self._next_report_s - monotonic_s(), self._sender.next_retry_s(), _POLL_S)
            await self._database.wait(max(left_s, 0), self._stopped)
        elif await self._database.try_to_sleep():
            self._sleeps = True  # what was committed until now is read before the wait
        else:
            await self._sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)

    async def _wake_up(self) -> list[OutboxRow]:
        """Stop sleeping, as there are rows. Returns none."""
        self._pause_s = _PAUSE_S
        if self._sleeps:
            self._sleeps = False
            await self._database.wake_up()
        return []

    # What became of rows

    async def _before_call(self) -> None:
        """Make sure that this relay still has the lock. Raises psycopg.Error or TimeoutError if it may not have it.

        A statement that took too long proves nothing: this process, or its machine, may have stood still meanwhile.
        """
        await self._report_if_due()
        while monotonic_s() >= self._database.confirmed_s + CONFIRMED_S:
            await self._record()

    async def _drop_tagged(self, topics: Sequence[str], tag: str, if_reserved: str, before: int) -> None:
        await self._database.drop_tagged(topics, tag, if_reserved, before)

    async def _record(self) -> None:
        """Delete the rows that are done, and move those that were refused; what fails is repeated later."""
        sender = self._sender
        done, sender.done = sender.done, []
        refused, sender.refused = sender.refused, []
        try:
            await self._database.settle(done, refused, self._written_until)
        except BaseException:
            sender.done, sender.refused = done + sender.done, refused + sender.refused
            raise

    # Reports

    async def _report_if_due(self, *, is_connected: bool = True) -> None:
        """Tell the service how this relay and its outbox are doing, every few seconds."""
        now_s = monotonic_s()
        if now_s < self._next_report_s:
            return
        self._next_report_s = now_s + _REPORT_S
        if is_connected:
            self._status = await self._database.status()
        fields = {
            "database": self._database_name,
            "working": self._works,
            "rows": self._status.rows,
            "refused": self._status.refused,
            "lag": self._status.lag_s,
        }
        reply = await self._service.call(request_for(REPORT_RELAY, self._name, body=encode(fields)))
        # With a key that may not even report, each row would be refused for good.
        self._may_send = not isinstance(reply.error, Forbidden)
        if reply.error is None:
            self._report_log.succeeded()
        else:
            self._report_log.failed(reply.error)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.wait({self._stopped}, timeout=seconds)

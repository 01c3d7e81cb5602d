"""The relays that send outboxes of databases to the service, and what they last reported of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import msgspec

from deferd.contract.limits import RELAYS_MAX
from deferd.contract.operations.relays import RelayState
from deferd.engine.caches import SharedReads
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType

SILENT_MS = 30_000
"""Six reports are missing: the relay is gone. Another one takes over in a quarter of this time."""
_LEFT_OUT_MS = 300_000
_REPORT_KEPT_MS = 86_400_000
"""So that it is known for a day that nobody sends an outbox."""
_KEPT_S = 2.0
_STATES: tuple[RelayState, ...] = ("works", "waits", "silent")


class Report(msgspec.Struct, frozen=True):
    """What a relay reports: whether it works, the rows and the refused rows of the outbox, the age of the oldest row.

    `rows` may be an estimate. `lag_s` is 0 without rows.
    """

    database: str
    is_working: bool
    rows: int
    refused: int
    lag_s: float


class SeenRelay(NamedTuple):
    """A relay with its last report: when it was, when it first reported, and last that it works (0: never)."""

    name: str
    report: Report
    seen_ms: int
    first_ms: int
    worked_ms: int
    state: RelayState = "silent"


class Outbox(NamedTuple):
    """The outbox of a database: its relay that works, None without one, and else since when none does.

    `last` is the last report of one that worked, or the last report at all.
    """

    database: str
    worker: SeenRelay | None
    last: SeenRelay
    stopped_ms: int


@dataclass(slots=True)
class Relays:
    """All relays by database, those that work first; `now_ms` is the store's clock."""

    now_ms: int = 0
    relays: list[SeenRelay] = field(default_factory=list)

    def outboxes(self) -> Iterator[Outbox]:
        """The outbox of each database."""
        for database, of_database in groupby(self.relays, key=lambda one: one.report.database):
            relays = list(of_database)
            worker = relays[0] if relays[0].state == "works" else None
            last = max(relays, key=lambda one: (one.worked_ms, one.seen_ms))
            begun_ms = min(one.first_ms for one in relays)
            yield Outbox(database, worker, last, last.worked_ms or begun_ms)


class RelayRegistry:
    """Keeps the last reports of at most RELAYS_MAX relays in the store. What was read is cached for 2 s."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._key = keys.of_shard(0, "relays")
        self._reads: SharedReads[Relays] = SharedReads(_KEPT_S, 1)

    async def report(self, name: str, report: Report) -> int:
        """Keep a report, in place of the last one of the relay. Returns ms of it. Raises StoreUnavailable."""
        args = (name, msgspec.json.encode(report), int(report.is_working), _REPORT_KEPT_MS, RELAYS_MAX)
        try:
            reported_ms: int = await self._scripts.run("report_relay", (self._key,), args)
        finally:
            self._reads.forget(None)
        return reported_ms

    async def read(self) -> Relays:
        """The relays. Raises StoreUnavailable."""
        return await self._reads.get(None, self._read)

    async def _read(self) -> Relays:
        try:
            now_ms, fields = await self._scripts.run("relays", (self._key,), ())
        except WrongType:  # another program has damaged it; the next report makes it again
            return Relays()
        read = (_read(fields[at], fields[at + 1]) for at in range(0, len(fields), 2))
        return Relays(now_ms, _in_order(now_ms, [one for one in read if one is not None]))


def _read(name: bytes, value: bytes) -> SeenRelay | None:
    """A relay of the list; None for what another program has written there."""
    try:
        seen_ms, first_ms, worked_ms, report = value.split(b" ", 3)
        read = msgspec.json.decode(report, type=Report)
        return SeenRelay(name.decode(), read, int(seen_ms), int(first_ms), int(worked_ms))
    except ValueError:  # those of msgspec are, too
        return None


def _in_order(now_ms: int, found: list[SeenRelay]) -> list[SeenRelay]:
    """With their states, and without those that went while others of the same database reported."""
    latest: dict[str, SeenRelay] = {}
    worker: dict[str, SeenRelay] = {}
    for one in sorted(found, key=lambda one: one.seen_ms):
        latest[one.report.database] = one
        if one.report.is_working:
            worker[one.report.database] = one
    relays = []
    for one in found:
        database = one.report.database
        if latest[database].seen_ms - one.seen_ms > _LEFT_OUT_MS:
            continue
        is_silent = abs(now_ms - one.seen_ms) > SILENT_MS
        is_replaced = one.report.is_working and one is not worker[database]
        state: RelayState = "silent" if is_silent or is_replaced else "works" if one.report.is_working else "waits"
        relays.append(one._replace(state=state))
    return sorted(relays, key=lambda one: (one.report.database, _STATES.index(one.state), one.name))

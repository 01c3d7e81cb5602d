"""What people and keys changed: the lists behind `GET /activity`, in the store for 30 days.

Changes by administrators are in a list of their own, so that no number of other changes displaces them.

Entries are recorded behind the call that made the change, so that it takes no longer and does not fail with them. One
task of a process writes them, several in one call of the store, for a while again when the store fails. What cannot be
written is logged as a warning with all its fields. Both lists are in shard 0 of the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from deferd.contract.errors import StoreUnavailable
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_LOG = logging.getLogger(__name__)
KEPT_MS = 30 * 86_400_000
KEPT = 10_000
_WRITTEN_AT_ONCE = 50
_WAITING = 1000
_TRIES = 10
_RETRY_S = 1.0
_READ_AT_ONCE = 400
_WAIT_FOR_WRITES_S = 1.0


class FieldValues(NamedTuple):
    """What a field was and is now, None for nothing; both None: it changed, and there was no room for more."""

    field: str
    was: str | None = None
    now: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change as it is recorded; None for what is not known or does not apply.

    `by` is the name of the key, without keys the client's address. `subject` is the name of a job, schedule or
    calendar. `filter` selected the jobs. `count` is how many it changed. `via` is `console`, `cli` or `api`. `outcome`
    is `done`, or `unknown` when the store failed. `joins`: calls like it within ten minutes become one entry.
    `by_admin`: the key has the scope `admin`. `fields` have what was changed, and what it was; of a change that stands
    for several those of the last one.
    """

    operation: str
    by: str | None
    via: str
    outcome: str
    topic: str | None = None
    subject: str | None = None
    filter: str | None = None
    count: int | None = None
    fields: tuple[FieldValues, ...] = ()
    joins: bool = False
    by_admin: bool = False


_SHOWN = tuple(name for name in Change.__slots__ if name not in {"joins", "by_admin"})


class RecordedChange(NamedTuple):
    """An entry of the list. It stands for `times` calls from `at_ms` to `last_at_ms`; `change` is the last one, with
    the `count` of all.
    """

    at_ms: int
    change: Change
    times: int
    last_at_ms: int


class ActivityList:
    """Records changes and reads them."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = [keys.of_shard(0, "activity"), keys.of_shard(0, "activity/admin")]
        self._waiting: list[bytes] = []
        self._writing: asyncio.Task[None] | None = None
        self._retry_s = _RETRY_S

    def record(self, change: Change) -> None:
        """Add a change to the list, soon. Never raises and never waits."""
        fields = {name: getattr(change, name) for name in Change.__slots__}
        entry = {name: value for name, value in fields.items() if value is not None and value is not False}
        entry["fields"] = list(map(list, change.fields))
        entry["id"] = os.urandom(8).hex()
        entry |= {name: 1 for name in ("joins", "by_admin") if name in entry}
        encoded = orjson.dumps(entry)
        if len(self._waiting) >= _WAITING:
            _warn_lost(encoded, "too many changes wait to be recorded")
            return
        self._waiting.append(encoded)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="deferd-activity")

    async def _write(self) -> None:
        failures = 0
        while self._waiting:
            some = self._waiting[:_WRITTEN_AT_ONCE]
            try:
                await self._scripts.run("record_activity", self._keys, (KEPT_MS, KEPT, *some))
            except Exception as exc:  # noqa: BLE001 (nothing else depends on this)
                failures += 1
                if isinstance(exc, StoreUnavailable) and failures < _TRIES:
                    await asyncio.sleep(self._retry_s)
                    continue
                for encoded in some:
                    _warn_lost(encoded, str(exc) or type(exc).__name__)
            failures = 0
            del self._waiting[: len(some)]

    async def close(self) -> None:
        """Write what waits, if the store responds; log the rest."""
        self._retry_s = 0.1
        if self._writing is not None and not self._writing.done():
            await asyncio.wait((self._writing,), timeout=_WAIT_FOR_WRITES_S)
            self._writing.cancel()
            await asyncio.wait((self._writing,))
        for encoded in self._waiting:
            _warn_lost(encoded, "the service stopped")
        self._waiting.clear()

    async def page(
        self, is_visible: Callable[[Change], bool], cursor: str | None, limit: int
    ) -> tuple[list[RecordedChange], str | None]:
        """Up to `limit` changes that are visible, the newest first, and the cursor of the next page.

        Includes what this process has recorded so far.

        Raises:
            InvalidInput: this method did not return the cursor.
            StoreUnavailable.
        """
        [before] = read_cursor(cursor, (0,), (int,))
        if before < 0 or before > 2**53:
            raise bad_cursor(cursor)
        await self._wait_for_writes()
        found: list[RecordedChange] = []
        last_number = before
        most = min(limit + 1, _READ_AT_ONCE)
        while True:
            now_ms, *rows = await self._scripts.run("activity", self._keys, (before or "", most))
            for number, raw in zip(rows[::2], rows[1::2], strict=True):
                before = number
                entry = _read(raw)
                if entry is None or entry.at_ms <= now_ms - KEPT_MS or not is_visible(entry.change):
                    continue
                if len(found) == limit:
                    return found, write_cursor(last_number)
                found.append(entry)
                last_number = number
            if len(rows) < 2 * most:
                return found, None
            most = _READ_AT_ONCE

    async def forget(self) -> None:
        """Delete both lists, for tests. Raises StoreUnavailable."""
        await self._wait_for_writes()
        for key in self._keys:
            await self._scripts.write("UNLINK", key)

    async def _wait_for_writes(self) -> None:
        if self._writing is not None and not self._writing.done():
            await asyncio.wait((self._writing,), timeout=_WAIT_FOR_WRITES_S)


def _read(raw: bytes) -> RecordedChange | None:
    """An entry; None for what something other than deferd has written."""
    try:
        fields: dict[str, Any] = orjson.loads(raw)
        known = {name: fields[name] for name in _SHOWN if name in fields}
        at_ms = fields["at"]
        values = tuple(FieldValues(*one) for one in known.pop("fields", ()))
        change = Change(**{"by": None, **known}, fields=values)
        return RecordedChange(at_ms, change, fields.get("times", 1), fields.get("last_at", at_ms))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _warn_lost(encoded: bytes, why: str) -> None:
    _LOG.warning("a change is missing from the activity: %s: %s", why, encoded.decode(), extra={"reason": why})

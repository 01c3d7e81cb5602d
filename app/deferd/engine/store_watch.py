"""Refuses calls while the store would not run them correctly: its user lacks a permission, or its shard guard differs.

A script whose user lacks a permission fails halfway, and what it did until then stays. So after the first such error no
call is sent until the self-test passes again: only the calls under way can have been cut short.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from deferd.contract.errors import StoreUnavailable
from deferd.store import shard_guard
from deferd.store.connection import Store
from deferd.store.preflight import SelfTestResult, missing_permission, permissions_message, run_self_test

_STOPPED_S = 30.0
"""A process that was stopped for so long looks at its store before it calls it: the format may have been raised without
it, after a minute (`deferd.engine.store_processes`)."""
_UNREAD_S = 60.0
"""A process of a cluster that has not reached the shard guard for so long no longer counts. The format may be raised
half a minute later, though the process reaches other nodes."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""One that goes on while the machine is suspended; on Linux `time.monotonic` does not, so that a process would take an
hour for a moment."""
_LOG = logging.getLogger(__name__)


class StoreWatch:
    """One for each process. `admit` is called before every store call; `run` checks the store about once a second.

    `run` repeats the self-test on each new connection (in a cluster: when the primaries change) and while calls are
    refused. It also checks the shard guard, and writes it again when it is missing. A store that is `exclusive` to this
    service needs neither until a permission is missing. `on_mismatch` is called with the error of calls when the guard
    begins to differ: nothing in the store wakes who waits in this process. `may_be_raised` says whether there are
    processes that know a later format, as far as that is known.
    """

    def __init__(
        self,
        store: Store,
        shards: int,
        *,
        exclusive: bool,
        on_mismatch: Callable[[StoreUnavailable], None] = lambda _error: None,
        may_be_raised: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._shards = shards
        self._exclusive = exclusive
        self._on_mismatch = on_mismatch
        self._may_be_raised = may_be_raised
        self._read_at_s = time.clock_gettime(_CLOCK)
        self._unfit: str | None = None
        """Why the store cannot run scripts."""
        self._logged: str | None = None
        """The reason that was logged last."""
        self._guard: str | None = None
        """The shard guard, as it was last right; None before this was seen."""
        self._is_outdated = False
        """Whether the store had a format above those that this process knows."""
        self._mismatch: str | None = None
        """What is wrong with the shard guard."""
        self._tested_at: object = None
        self._naming: asyncio.Task[None] | None = None
        """The self-test that names all missing permissions."""
        self._is_unfit = asyncio.Event()
        self._looks_again_by_s = math.inf
        """When this process has been stopped; it looks every second."""

    def admit(self) -> None:
        """Return if calls may be sent. Raises StoreUnavailable with the reason if not."""
        if self._unfit is not None:
            raise _refused(self._unfit)
        if self._mismatch is not None:
            raise _refused(f"the store {self._mismatch}")
        if time.clock_gettime(_CLOCK) > self._looks_again_by_s:
            raise _refused("this process was stopped for some time, so it looks at the store first")

    async def refuse(self, permission: str) -> StoreUnavailable:
        """A call failed without `permission`: refuse calls until the self-test passes; return the error for its caller.

        The server names one permission or none; the self-test, run once for all failed calls, finds all.
        """
        if self._unfit is None:
            self._unfit = permissions_message((permission,))
            self._is_unfit.set()
            self._naming = asyncio.create_task(self._test(permission), name="deferd-self-test")
        if self._naming is not None:
            await asyncio.shield(self._naming)
        return _refused(self._unfit or permissions_message((permission,)))

    async def run(self) -> None:
        """Check the store until cancelled. An unreachable store is not reported here: calls find that out."""
        while True:
            if self._exclusive:
                await self._is_unfit.wait()
                await asyncio.sleep(shard_guard.CHECK_INTERVAL_S)
                await self._test()
            else:
                await self.check()
                await asyncio.sleep(shard_guard.CHECK_INTERVAL_S)

    async def check(self) -> None:
        """Repeat the self-test if it is due, and check the shard guard."""
        try:
            await self._check()
        finally:  # also when the store cannot be reached
            self._looks_again_by_s = time.clock_gettime(_CLOCK) + _STOPPED_S + self._store.timeout_s

    async def _check(self) -> None:
        if self._unfit is not None or self._tested_at != self._store.topology():
            await self._test()
        try:
            stored = await shard_guard.read(self._store.call)
            if stored is None:
                if self._is_outdated:
                    return  # other nodes of a cluster may still have data that this process would damage
                stored = await shard_guard.write(self._store.call, self._guard or shard_guard.value(self._shards))
                _LOG.warning("%s was gone from the store and was written again", shard_guard.SHARDS_KEY)
            elif self._has_lost_its_format(stored):
                stored = await shard_guard.overwrite(self._store.call, self._guard or stored)
                _LOG.warning(
                    "%s had an older format again, as after a failover, and was set to %s",
                    shard_guard.SHARDS_KEY,
                    stored,
                )
        except (RedisError, OSError):
            unread_s = time.clock_gettime(_CLOCK) - self._read_at_s
            if self._store.cluster and self._mismatch is None and unread_s > _UNREAD_S and self._may_be_raised():
                self._set_mismatch(
                    f"has data of a later format, perhaps: {shard_guard.SHARDS_KEY} could not be read for "
                    f"{_UNREAD_S:g} s, and processes of a later release use the store"
                )
            return
        self._read_at_s = time.clock_gettime(_CLOCK)
        mismatch = None if stored is None else shard_guard.mismatch(stored, self._shards)
        if mismatch is None and self._mismatch is not None:
            _LOG.warning("%s of the store is right again (%s); calls are sent again", shard_guard.SHARDS_KEY, stored)
        self._set_mismatch(mismatch)
        if stored is not None and mismatch is None:
            self._guard = stored
        found = None if stored is None else shard_guard.format_in(stored)
        self._is_outdated = found is not None and found > shard_guard.FORMAT

    def _set_mismatch(self, mismatch: str | None) -> None:
        before, self._mismatch = self._mismatch, mismatch
        if mismatch is not None and mismatch != before:
            _LOG.critical("the store %s. Calls are refused", mismatch)
        if mismatch is not None and before is None:
            self._on_mismatch(_refused(f"the store {mismatch}"))

    def _has_lost_its_format(self, stored: str) -> bool:
        """Whether the store went back to an older format: what other nodes of a cluster hold did not."""
        if self._guard is None or shard_guard.mismatch(stored, self._shards) is not None:
            return False
        before, found = shard_guard.format_in(self._guard), shard_guard.format_in(stored)
        return before is not None and found is not None and found < before

    async def _test(self, known: str | None = None) -> None:
        """Run the self-test. `known` is a permission that is missing, whether or not the self-test notices."""
        reached = self._store.topology()
        try:
            probed = await run_self_test(self._store, every=False)
        except (RedisError, OSError) as exc:
            permission = missing_permission(exc) if isinstance(exc, RedisError) else None
            if permission is None and known is None:
                return  # it is away
            probed = SelfTestResult(() if permission is None else (permission,), ())
        missing = probed.missing if known is None else (*probed.missing, known)
        if missing:
            self._close(permissions_message(missing))
        elif probed.wrong:
            self._close(f"the store does not do what Valkey and Redis do: {'; '.join(probed.wrong)}")
        else:
            self._tested_at = reached
            if self._unfit is not None:
                _LOG.warning("the store passes the self-test again; calls are sent again")
                self._unfit = self._logged = self._naming = None
                self._is_unfit.clear()

    def _close(self, reason: str) -> None:
        """Refuse calls; each reason is logged once."""
        if reason != self._logged:
            _LOG.critical(
                "%s. Calls are refused until the self-test passes. Those under way may have been cut short: "
                "`deferd audit --repair` repairs what they left",
                reason,
            )
        self._unfit = self._logged = reason
        self._is_unfit.set()


def _refused(reason: str) -> StoreUnavailable:
    return StoreUnavailable(f"the service has stopped using its store: {reason}")

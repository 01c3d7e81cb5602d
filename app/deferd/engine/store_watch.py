"""Keeps calls from a store that would not carry them out right: its user lost a right, or its shard guard is another's.

A script whose user lacks a right fails in its middle, and what it did until then stays. So after the first such error
nothing is sent until the self-test passes again: only calls that were under way can have been cut short.
"""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from deferd.contract.errors import StoreUnavailable
from deferd.store import shard_guard
from deferd.store.acl import missing_permission, permissions_message
from deferd.store.connection import Store
from deferd.store.self_test import SelfTestResult, run_self_test

_LOG = logging.getLogger(__name__)


class StoreWatch:
    """One for a process. `admit` stands before every call; `run` looks after the store, about once a second.

    `run` repeats the self-test on each new connection (in a cluster: when the primaries are others), and while calls
    are refused; and it looks at the shard guard, and writes it again when it is gone. A store that is `exclusive`,
    this service's alone, needs neither until a right is missing.
    """

    def __init__(self, store: Store, shards: int, *, exclusive: bool) -> None:
        self._store = store
        self._shards = shards
        self._exclusive = exclusive
        self._unfit: str | None = None
        """Why the store is not fit for scripts."""
        self._logged: str | None = None
        """The reason that was logged last."""
        self._mismatch: str | None = None
        """What the shard guard says instead of `shards`."""
        self._tested_at: object = None
        self._naming: asyncio.Task[None] | None = None
        self._is_unfit = asyncio.Event()

    def admit(self) -> None:
        """Return when calls may be sent. Raises StoreUnavailable, with the reason."""
        if self._unfit is not None:
            raise _refused(self._unfit)
        if self._mismatch is not None:
            raise _refused(f"the store {shard_guard.mismatch_message(self._mismatch, self._shards)}")

    async def refuse(self, right: str) -> StoreUnavailable:
        """A call failed for want of `right`: admit no more until the self-test passes. The error for its caller.

        The server names one right or none; the self-test, here run once for all such calls, finds all.
        """
        if self._unfit is None:
            self._unfit = permissions_message((right,))
            self._is_unfit.set()
            self._naming = asyncio.create_task(self._test(right), name="deferd-self-test")
        if self._naming is not None:
            await asyncio.shield(self._naming)
        return _refused(self._unfit or permissions_message((right,)))

    async def run(self) -> None:
        """Look after the store until cancelled. While it is away there is nothing to do here: calls find that out."""
        while True:
            if self._exclusive:
                await self._is_unfit.wait()
                await asyncio.sleep(shard_guard.CHECK_INTERVAL_S)
                await self._test()
            else:
                await self.look()
                await asyncio.sleep(shard_guard.CHECK_INTERVAL_S)

    async def look(self) -> None:
        """Repeat the self-test if it is time to, and look at the shard guard."""
        if self._unfit is not None or self._tested_at != self._store.topology():
            await self._test()
        try:
            stored = await shard_guard.read(self._store.call)
            if stored is None:
                stored = await shard_guard.write(self._store.call, self._shards)
                _LOG.warning("%s was gone from the store and was written again", shard_guard.SHARDS_KEY)
        except (RedisError, OSError):
            return
        mismatch = None if stored in {None, str(self._shards)} else stored
        if mismatch is not None and mismatch != self._mismatch:
            _LOG.critical("the store %s. Calls are refused", shard_guard.mismatch_message(mismatch, self._shards))
        elif mismatch is None and self._mismatch is not None:
            _LOG.warning("the store has --shards %d again; calls go on", self._shards)
        self._mismatch = mismatch

    async def _test(self, known: str | None = None) -> None:
        """Run the self-test. `known` is a right that is missing for certain, though the self-test may find it there."""
        reached = self._store.topology()
        try:
            probed = await run_self_test(self._store, every=False)
        except (RedisError, OSError) as exc:
            right = missing_permission(exc) if isinstance(exc, RedisError) else None
            if right is None and known is None:
                return  # it is away
            probed = SelfTestResult(() if right is None else (right,), ())
        missing = probed.missing if known is None else (*probed.missing, known)
        if missing:
            self._close(permissions_message(missing))
        elif probed.wrong:
            self._close(f"the store does not do what Valkey and Redis do: {'; '.join(probed.wrong)}")
        else:
            self._tested_at = reached
            if self._unfit is not None:
                _LOG.warning("the store passes the self-test again; calls go on")
                self._unfit = self._logged = self._naming = None
                self._is_unfit.clear()

    def _close(self, reason: str) -> None:
        """Refuse calls; said once for each reason."""
        if reason != self._logged:
            _LOG.critical(
                "%s. Calls are refused until the self-test passes. Those under way may have been cut short: "
                "`deferd audit --repair` repairs what they left",
                reason,
            )
        self._unfit = self._logged = reason
        self._is_unfit.set()


def _refused(reason: str) -> StoreUnavailable:
    return StoreUnavailable(f"the service does not use its store: {reason}")

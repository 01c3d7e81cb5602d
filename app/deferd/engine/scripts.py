"""Runs the scripts of `lua/` on the store, and turns the store's errors into deferd's: the only place that does.

The folder is the registry: `lua/<verb>.lua` is called by its verb. A script names the pieces of `lua/lib/` that it
builds on in one line, ``-- @include clock topic``.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from redis import exceptions as redis_errors

from deferd.contract.errors import StoreUnavailable
from deferd.engine import metrics
from deferd.engine.store_watch import StoreWatch
from deferd.store.acl import missing_permission, permissions_message
from deferd.store.connection import Store
from deferd.store.durability_levels import FSYNC, name_of
from deferd.store.replication import MissingPermission, NotReplicated, TooFewReplicas

_INCLUDE = "-- @include "
_FIRST_WORD = re.compile(r"(?:^|: -)([A-Z]+)\b")
"""An error's first word; servers before 7.0 wrap an error inside a script: `Error running script (...): -OOM ...`."""
_REFUSALS = ("MISCONF", "READONLY", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN")
"""First words of error replies by which a store says that it cannot do it now."""

_SLOT_IS_MOVING = "access a non local key in a cluster node"
"""What a script meets that touches a key which it has emptied while the key's slot is being moved to another node."""

_OUT_OF_MEMORY = "the store is out of memory and refuses to store more"
_UNAVAILABLE: tuple[tuple[tuple[type[Exception], ...], str, int], ...] = (
    ((redis_errors.OutOfMemoryError,), _OUT_OF_MEMORY, 5),
    ((redis_errors.ReadOnlyError,), "the store is a read-only replica just now", 1),
    ((redis_errors.BusyLoadingError,), "the store is loading its data", 1),
    (
        (redis_errors.AuthenticationError, redis_errors.AuthorizationError),
        "the store refuses the service's user",
        30,
    ),
    (
        (redis_errors.ClusterError, redis_errors.AskError, redis_errors.TryAgainError),
        "the store's cluster is being rearranged",
        1,
    ),
    ((redis_errors.ConnectionError, redis_errors.InvalidResponse, OSError), "the store cannot be reached", 1),
)
"""Errors of the client, the narrower before the wider; the detail for the caller, and seconds until a retry."""


class Scripts:
    """All scripts, ready to run. With `movable_clock` tests can shift time by `deferd:{s}:clock`.

    `watch` says whether calls may be sent, and is told of rights that the store's user lacks. `on_late_run` is called
    when a script has run that the store did not know at first: it came after calls that were begun after it.
    """

    def __init__(self, store: Store, *, movable_clock: bool = False, watch: StoreWatch | None = None) -> None:
        self._store = store
        self._watch = watch
        self.on_late_run: Callable[[], None] = lambda: None
        folder = files("deferd.engine") / "lua"
        self._sources: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        for script in folder.iterdir():
            if script.name.endswith(".lua"):
                verb = script.name.removesuffix(".lua")
                source = _with_includes(script.read_text(), folder, movable_clock)
                self._sources[verb] = source
                self._digests[verb] = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def run(
        self,
        verb: str,
        keys: Sequence[str],
        args: Sequence[str | bytes | int | float],
        *,
        call: Callable[..., Awaitable[Any]] | None = None,
    ) -> Any:
        """Run one script; its reply as the store gives it (bytes, ints, lists, None).

        A script is sent once: whether it was carried out is not known after StoreUnavailable. `call` sends it another
        way than the common one.

        Raises:
            StoreUnavailable: the store cannot be reached, did not answer in time, or refused.
        """
        if self._watch is not None:
            self._watch.admit()
        with observed(verb if call is None else f"{verb}_replicated"):
            try:
                return await self._send(call or self._store.call, verb, (len(keys), *keys, *args))
            except redis_errors.RedisError as exc:
                await self._look_for_missing_right(exc)
                raise

    async def _send(self, call: Callable[..., Awaitable[Any]], verb: str, args: tuple[Any, ...]) -> Any:
        try:
            return await call("EVALSHA", self._digests[verb], *args)
        except redis_errors.NoScriptError:  # the store is new, or SCRIPT FLUSH was called
            reply = await call("EVAL", self._sources[verb], *args)
            self.on_late_run()
            return reply

    async def command(self, name: str, *args: str | bytes | int) -> Any:
        """Run one plain command. Raises StoreUnavailable as `run` does."""
        if self._watch is not None:
            self._watch.admit()
        with observed(name.lower()):
            try:
                return await self._store.call(name, *args)
            except redis_errors.RedisError as exc:
                await self._look_for_missing_right(exc)
                raise

    async def _look_for_missing_right(self, exc: redis_errors.RedisError) -> None:
        """Raise what tells of it if the store's user lacks a right, and let the watch admit no further calls."""
        right = missing_permission(exc)
        if self._watch is not None and right is not None and not isinstance(exc, MissingPermission):
            raise await self._watch.refuse(right) from exc


@contextmanager
def observed(call: str) -> Iterator[None]:
    """Time a call of the store, count it if it fails, and turn its errors into StoreUnavailable."""
    began = time.perf_counter()
    try:
        yield
    except Exception as exc:
        metrics.STORE_ERRORS.labels(call).inc()
        unavailable = translate(exc)
        if unavailable is None:
            raise
        raise unavailable from exc
    finally:
        metrics.STORE_CALLS.labels(call).observe(time.perf_counter() - began)


def translate(exc: Exception) -> StoreUnavailable | None:
    """The StoreUnavailable that a client error means, or None when it is a fault of ours (a broken script)."""
    if isinstance(exc, (redis_errors.TimeoutError, TimeoutError)):
        return StoreUnavailable("the store did not answer in time", timed_out=True)
    if isinstance(exc, MissingPermission):
        return StoreUnavailable(str(exc))
    if isinstance(exc, redis_errors.RedisError) and (right := missing_permission(exc)) is not None:
        return StoreUnavailable(permissions_message((right,)))
    if isinstance(exc, TooFewReplicas):
        level = name_of(FSYNC + exc.required)
        return StoreUnavailable(f"durability {level!r} is not to be had just now: {exc}; nothing was stored", 2)
    if isinstance(exc, NotReplicated):
        level = name_of(FSYNC + exc.required)
        return StoreUnavailable(
            f"the job may exist; it is not confirmed at durability {level!r}: {exc}; asking again with the same id is "
            "safe"
        )
    for kinds, detail, retry_after_s in _UNAVAILABLE:
        if isinstance(exc, kinds):
            return StoreUnavailable(detail, retry_after_s)
    if isinstance(exc, redis_errors.ResponseError):
        said = _FIRST_WORD.search(str(exc))
        word = said[1] if said is not None else ""
        if word == "OOM":
            return StoreUnavailable(_OUT_OF_MEMORY, 5)
        if _SLOT_IS_MOVING in str(exc):
            return StoreUnavailable("the store's cluster is being rearranged")
        if word in _REFUSALS:
            return StoreUnavailable(f"the store refuses to work just now ({word})")
    return None


def _with_includes(source: str, folder: Any, movable_clock: bool) -> str:
    pieces = []
    for line in source.splitlines():
        if line.startswith(_INCLUDE):
            for name in line.removeprefix(_INCLUDE).split():
                file_name = "clock_movable" if movable_clock and name == "clock" else name
                pieces.append((folder / "lib" / f"{file_name}.lua").read_text())
            break
    return "\n".join([*pieces, source])

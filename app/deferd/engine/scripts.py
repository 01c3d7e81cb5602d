"""Runs the scripts of `lua/` on the store, at a durability level where that is asked for.

This is the only place that translates the store's errors into deferd's.

The folder is the registry: `lua/<verb>.lua` is called by its verb. The store keeps all scripts as one library of
functions (`script_library.py`). It is loaded where a call finds that it is missing: on a new store or node, or because
a service of another release removed it at its start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from functools import cache, partial
from importlib.resources import files
from math import inf
from types import TracebackType
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from deferd.engine import metrics
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.script_library import NAME_PREFIX, Library, build
from deferd.engine.store_watch import StoreWatch
from deferd.store.connection import KeyCalls, Store
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated, name_of, replicas_of
from deferd.store.pipeline import NOT_AFTER, CallTooLate, NotAfter
from deferd.store.preflight import missing_permission, permissions_message
from deferd.store.server_calls import MissingPermission, NotReplicated, ServerCalls, TooFewReplicas, WaitUnsupported
from deferd.store.server_info import LoadWatch
from deferd.store.task_cancellation import forget_error

_LOG = logging.getLogger("deferd.store.calls")
_LOG.addHandler(logging.NullHandler())  # a command, which configures no log, reports the error itself
REPEATED_S = 60.0
_REASONS_KEPT = 20
_REPLICATED = "_replicated"
"""The end of the label of a script that replicas confirm."""
_FIRST_WORD = re.compile(r"(?:^|: -)([A-Z]+)\b")
"""An error's first word; servers before 7.0 wrap an error inside a script: `Error running script (...): -OOM ...`."""
_SCRIPT_LINE = " script: "
"""What follows it is added by the server to an error inside a script."""
_WRONG_TYPE = "WRONGTYPE"
_NOT_FOUND = "Function not found"
"""The error of a call whose server has not loaded the library; nothing was done."""
_LOADS = 2
"""How often a call loads the library: the second server is one that a slot of a cluster is being moved to."""
_REMOVING = frozenset({"DEL", "UNLINK", "HDEL", "ZREM", "PEXPIRE"})
"""Commands that a store runs also while it is out of memory."""
_REFUSALS = ("MISCONF", "READONLY", "LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN")
"""First words of error replies for a call that the store cannot run now."""

_OF_TEXTS = {
    # The error of a script that uses a key which it has emptied, while the key's slot is moved to another node.
    "access a non local key in a cluster node": "the store's cluster is being rearranged",
    _NOT_FOUND: "the store lost deferd's functions while the call was made; nothing was done",
}
"""Parts of error replies that have no word of their own; the detail for the caller."""

_CLOSED_CONNECTION = "the handler is closed"
"""In the text of the RuntimeError that uvloop raises for a write to a connection that the other side has closed."""
_UNREACHABLE = "the store cannot be reached"
_OUT_OF_MEMORY = "the store is out of memory and refuses to store more (its maxmemory)"
_UNAVAILABLE: tuple[tuple[tuple[type[Exception], ...], str, int], ...] = (
    ((redis_errors.OutOfMemoryError,), _OUT_OF_MEMORY, 5),
    ((redis_errors.ReadOnlyError,), "the store is currently a read-only replica", 1),
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
    ((redis_errors.ConnectionError, redis_errors.InvalidResponse, OSError), _UNREACHABLE, 1),
)
"""Errors of the client, subclasses first; the detail for the caller, and the seconds until a retry."""


class FailureLog:
    """Logs why calls of the store fail: what the responses say is what the operator needs, and nothing else logs it.

    A reason is logged at once, and again when it holds for longer than REPEATED_S; a bounded number in that time.
    """

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def note(self, call: str, reason: str) -> None:
        """A call failed for this reason."""
        now_s = time.monotonic()
        if now_s - self._logged_s.get(reason, -REPEATED_S) < REPEATED_S:
            return
        if len(self._logged_s) >= _REASONS_KEPT:
            self._logged_s = {text: at_s for text, at_s in self._logged_s.items() if now_s - at_s < REPEATED_S}
        if len(self._logged_s) < _REASONS_KEPT:
            self._logged_s[reason] = now_s
            _LOG.warning("calls fail: %s", reason, extra={"call": call})


_FAILURES = FailureLog()


class WrongType(redis_errors.ResponseError):
    """Another program has replaced a key of the store by one of another type, and the call needs it."""


Call = Callable[..., Awaitable[Any]]
"""Sends one command to the store."""


class Sending(NamedTuple):
    """How a script is sent, if not by the store's own `call`: by `call`, which is one of `calls`.

    `is_replicated`: replicas confirm it.
    """

    calls: KeyCalls
    call: Call
    is_replicated: bool


@cache
def library(movable_clock: bool) -> Library:
    """The library of all scripts."""
    return build(files("deferd.engine") / "lua", movable_clock=movable_clock)


class Scripts:
    """All scripts, ready to run. With `movable_clock`, tests can shift time by `deferd:{s}:clock`.

    `watch` decides whether calls may be sent; missing permissions of the store's user are reported to it. `on_late_run`
    is called when a script had to be sent twice, because the store had not loaded it, or its clock was set forward:
    later calls ran before it.
    """

    def __init__(
        self,
        store: Store,
        *,
        movable_clock: bool = False,
        watch: StoreWatch | None = None,
        on_late_run: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._watch = watch
        self._on_late_run = on_late_run
        self._library = library(movable_clock)
        self._loads: dict[ServerCalls, asyncio.Task[None]] = {}
        self._load_watch = None if store.cluster else LoadWatch(store.client.info)

    async def run(
        self,
        verb: str,
        keys: Sequence[str],
        args: Sequence[str | bytes | int | float],
        *,
        sending: Sending | None = None,
    ) -> Any:
        """Run one script and return the store's reply (bytes, ints, lists, None).

        After StoreUnavailable a script may have run or not, but it does not run later: it carries the instant at which
        it times out, or at which the request ends if that is earlier, and from then on does nothing. Only when
        something on the way to the store breaks the connection, the error comes before that instant. A script is sent
        again only if the store reports that it did nothing.

        Raises:
            StoreUnavailable: the store cannot be reached, did not respond in time, or refused.
        """
        if self._watch is not None:
            self._watch.admit()
        is_replicated = sending is not None and sending.is_replicated
        label = f"{verb}{_REPLICATED}" if is_replicated else verb
        began = time.perf_counter()
        try:  # as `observed`, which takes longer
            until_s = request_ends_at_s()
            not_after = NOT_AFTER if until_s == inf else NotAfter(until_s)
            try:
                return await self._send(sending, verb, (len(keys), *keys, *args, not_after))
            except CallTooLate:  # it did nothing; the store's clock, if that was set forward, is known again
                now_s = asyncio.get_running_loop().time()
                end_s = min(now_s + self._store.timeout_s - (time.perf_counter() - began), until_s)
                if end_s <= now_s:
                    raise
                async with asyncio.timeout_at(end_s):
                    reply = await self._send(sending, verb, (len(keys), *keys, *args, NotAfter(end_s)))
                self._on_late_run()
                return reply
        except Exception as exc:
            with _failing(label):
                if isinstance(exc, redis_errors.RedisError):
                    await self._explain(exc)
                raise
        finally:
            metrics.store_calls_of(label).observe_s(time.perf_counter() - began)

    async def _send(self, sending: Sending | None, verb: str, args: tuple[Any, ...]) -> Any:
        command = ("FCALL", self._library.functions[verb], *args)
        try:
            return await (self._store.call if sending is None else sending.call)(*command)
        except redis_errors.ResponseError as exc:
            if not _is_missing(exc):
                raise
        calls = self._store.calls_of(args[1]) if sending is None else sending.calls
        for is_last in (*[False] * (_LOADS - 1), True):
            await self._load_at(calls.server)
            try:
                reply = await (calls.call if sending is None else sending.call)(*command)
            except redis_errors.ResponseError as exc:
                if is_last or not _is_missing(exc):
                    raise
            else:
                self._on_late_run()
                return reply
        raise AssertionError("unreachable")

    async def load(self) -> None:
        """Load the library into all servers that have not got it, and remove the libraries of other releases.

        A service of another release that still runs loads its own again. Errors are left to the first call.
        """
        await asyncio.gather(*map(self._load_alone, await self._store.servers()))

    async def _load_alone(self, server: ServerCalls) -> None:
        try:
            listed = await server.call("FUNCTION", "LIST", "LIBRARYNAME", f"{NAME_PREFIX}*")
            names = {bytes(entry[entry.index(b"library_name") + 1]).decode() for entry in listed}
            for name in names - {self._library.name}:
                await server.call("FUNCTION", "DELETE", name)
            if self._library.name not in names:
                await self._load_at(server)
        except (redis_errors.RedisError, OSError) as exc:
            _LOG.debug("the scripts were not loaded: %s", exc)

    async def _load_at(self, server: ServerCalls) -> None:
        """Load the library into a server, once for all calls that miss it."""
        if server not in self._loads:
            self._loads[server] = asyncio.create_task(self._load(server), name="deferd-load-scripts")
            self._loads[server].add_done_callback(forget_error)  # those who wait for it may have been cancelled
        await asyncio.shield(self._loads[server])

    async def _load(self, server: ServerCalls) -> None:
        try:
            await server.call("FUNCTION", "LOAD", self._library.text)
        except redis_errors.ResponseError as exc:
            if f"'{self._library.name}' already exists" not in str(exc):  # another process was faster
                raise
        finally:
            del self._loads[server]

    async def write(self, name: str, key: str, *args: str | bytes | int) -> Any:
        """Run one command that changes `key`, by a script, so that it does nothing once it was given up. As `run`."""
        return await self.run("erase" if name in _REMOVING else "write", (key,), (name, *args))

    async def command(self, name: str, *args: str | bytes | int) -> Any:
        """Run one plain command, which only reads. Raises StoreUnavailable as `run` does."""
        if self._watch is not None:
            self._watch.admit()
        with observed(name):
            try:
                return await self._store.call(name, *args)
            except redis_errors.RedisError as exc:
                await self._explain(exc)
                raise

    async def pages_by_name(
        self, key: str, start: str, end: str, most: int, *, reverse: bool = False
    ) -> AsyncIterator[list[str]]:
        """The members of a sorted set from `start` to `end`, as ZRANGEBYLEX takes them, at most `most` a page."""
        command = "ZREVRANGEBYLEX" if reverse else "ZRANGEBYLEX"
        while True:
            page = [member.decode() for member in await self.command(command, key, start, end, "LIMIT", 0, most)]
            yield page
            if len(page) < most:
                return
            start = f"({page[-1]}"

    async def _explain(self, exc: redis_errors.RedisError) -> None:
        """Raise an error that says more, if there is more to say.

        While the store loads its data this is how far it is; of an embedded store that is down, what is wrong with its
        disk. If its user lacks a permission, the error names it, and the watch refuses calls.
        """
        if isinstance(exc, redis_errors.BusyLoadingError):
            progress = None if self._load_watch is None else await self._load_watch.progress()
            if progress is not None:
                raise StoreUnavailable(f"the store {progress}", progress.retry_after_s) from exc
            return
        if isinstance(exc, redis_errors.ConnectionError) and self._store.fault is not None:
            fault = await self._store.fault()
            if fault is not None:
                raise StoreUnavailable(f"{_UNREACHABLE}: {fault}", 5) from exc
        permission = missing_permission(exc)
        if self._watch is not None and permission is not None and not isinstance(exc, MissingPermission):
            raise await self._watch.refuse(permission) from exc


_NOTHING_SENT = (TooFewReplicas, MissingPermission, DurabilityUnavailable)
_NOTHING_STORED = "nothing was stored"
_REWRITES_FOR_S = 5
"""An estimate, for Retry-After."""

Send = Callable[[int, Sending], Awaitable[list[Any]]]
Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Makes a context manager that is held around one store call; see BulkThrottle."""


class DurableCalls:
    """Runs scripts so that what they do reaches a durability level, or refuses before anything is done.

    `memory` needs nothing more. Neither does `fsync` on a store that fsyncs before it responds; in a cluster, the node
    of the topic decides. `replicated:N` is sent through `deferd.store.server_calls`.

    `embedded`: the store is the service's own, which never has replicas.
    """

    def __init__(self, store: Store, keys: Keys, *, embedded: bool) -> None:
        self._keys = keys
        self._calls_of = store.calls_of
        self._embedded = embedded
        if embedded:
            store.calls_of("").durability.trust_rewrites()

    async def run(
        self,
        topic: str,
        level: int,
        send: Send,
        slot: Slot = nullcontext,
        *,
        default_of: str | None = None,
        nothing: str = _NOTHING_STORED,
    ) -> tuple[list[Any], int]:
        """Run a script so that it reaches `level`. Returns its reply and the level that it has reached.

        `send` runs the script; it gets the level that will be reached, and what sends it. If the level is lower than
        `level`, the store's configuration has changed during the call: `lost_durability` is the error. `topic` is one
        of those that the script is for, or a partition. `slot` is held around the call, unless it waits for replicas.
        Two arguments are for error texts: `default_of`, a partition of the topic whose default the level is, and
        `nothing`, which says that nothing was done.

        Raises:
            DurabilityUnavailable: the store does not support the level. Nothing was done.
            StoreUnavailable: also when the level was not reached in time; then the script may have done its work.
        """
        calls = self._calls_of(self._keys.of_topic(topic)[0])
        if is_replicated(level):
            unavailable = partial(_unavailable, level, default_of=default_of, nothing=nothing)
            if self._embedded:
                raise unavailable("the embedded store has no replicas", calls.durability.level)
            try:
                return await send(
                    level, Sending(calls, partial(calls.call_replicated, replicas_of(level)), True)
                ), level
            except StoreUnavailable as error:
                if isinstance(error.__cause__, MissingPermission):
                    raise _not_now(level, error.__cause__, error.retry_after_s, nothing) from error.__cause__
                raise
            except WaitUnsupported as error:
                raise unavailable(str(error), calls.durability.level) from error
        if level == FSYNC and calls.durability.level < FSYNC:
            with observed("CONFIG"):
                current = await calls.probe()
            if current < FSYNC:
                why = calls.durability.why_not
                replicas = not self._embedded
                refused = _unavailable(level, why, current, default_of=default_of, nothing=nothing, replicas=replicas)
                if calls.durability.waits_for_rewrite:
                    raise _not_now(level, why, _REWRITES_FOR_S, nothing) from refused
                raise refused
        async with slot():
            reply = await send(calls.durability.level, Sending(calls, calls.call_probed, False))
            return reply, calls.durability.level


def _not_now(level: int, why: object, retry_after_s: int, nothing: str) -> StoreUnavailable:
    detail = f"durability {name_of(level)!r} is not available now: {why}; {nothing}"
    return StoreUnavailable(detail, retry_after_s)


def _unavailable(
    level: int, why: str, given: int, *, default_of: str | None, nothing: str, replicas: bool = False
) -> DurabilityUnavailable:
    """`given` is the level that the store gives by default; whether levels with `replicas` are available."""
    available = [name_of(MEMORY)]
    if given >= FSYNC:
        available.append(name_of(FSYNC))
    if replicas:
        available.append("replicated:N")
    origin = "" if default_of is None else f", the default of topic {topic_of(default_of)!r},"
    detail = (
        f"durability {name_of(level)!r}{origin} is not available: {why}; this store supports "
        f"{', '.join(available)}; {nothing}"
    )
    return DurabilityUnavailable(name_of(level), available, detail)


def lost_durability() -> StoreUnavailable:
    """The error of a put that was stored while the store's configuration changed to a lower level."""
    return StoreUnavailable(
        "the job may exist; it is not confirmed at durability fsync, because the store's configuration, or the node "
        "that has the topic, changed meanwhile; repeating the put with the same id is safe"
    )


def stored_nothing(error: Exception) -> bool:
    """Whether a put that failed with `error` certainly stored nothing."""
    return any(isinstance(cause, _NOTHING_SENT) for cause in (error, error.__cause__))


def _is_missing(error: redis_errors.ResponseError) -> bool:
    return _NOT_FOUND in str(error)


@contextmanager
def observed(call: str) -> Iterator[None]:
    """Measure a call of the store, count it if it fails, and translate its errors into StoreUnavailable.

    `call` is the label: the name of a script, or of a command in capitals.
    """
    began = time.perf_counter()
    try:
        with _failing(call):
            yield
    finally:
        metrics.store_calls_of(call).observe_s(time.perf_counter() - began)


@contextmanager
def _failing(call: str) -> Iterator[None]:
    """Count a call of the store if it fails, and translate its errors."""
    try:
        yield
    except Exception as exc:
        metrics.STORE_ERRORS.labels(call).inc()
        unavailable = translate(exc, is_cancel=call == f"cancel{_REPLICATED}")
        if unavailable is None:
            if isinstance(exc, redis_errors.ResponseError) and _WRONG_TYPE in str(exc):
                raise WrongType(f"{exc} (in a call of {call!r})") from exc
            raise
        _FAILURES.note(call, str(unavailable))
        raise unavailable from exc


def translate(exc: Exception, *, is_cancel: bool = False) -> StoreUnavailable | None:
    """The StoreUnavailable for a client error, or None for a bug of deferd (such as a broken script)."""
    if isinstance(exc, (redis_errors.TimeoutError, TimeoutError)):
        return StoreUnavailable("the store did not respond in time", timed_out=True)
    if isinstance(exc, CallTooLate):
        return StoreUnavailable("the call came to the store after its time-out; nothing was done", 1, timed_out=True)
    if isinstance(exc, MissingPermission):
        return StoreUnavailable(str(exc))
    if isinstance(exc, redis_errors.RedisError) and (permission := missing_permission(exc)) is not None:
        return StoreUnavailable(permissions_message((permission,)))
    if isinstance(exc, (TooFewReplicas, NotReplicated)):
        return _unconfirmed(exc, is_cancel=is_cancel)
    for kinds, detail, retry_after_s in _UNAVAILABLE:
        if isinstance(exc, kinds):
            reason = failure_reason(exc) if detail == _UNREACHABLE else None
            return StoreUnavailable(detail if reason is None else f"{detail}: {reason}", retry_after_s)
    if isinstance(exc, RuntimeError) and _CLOSED_CONNECTION in str(exc):
        return StoreUnavailable(_UNREACHABLE, 1)
    return _refused(str(exc)) if isinstance(exc, redis_errors.ResponseError) else None


def _refused(text: str) -> StoreUnavailable | None:
    """The StoreUnavailable for an error reply, or None for one of a broken script."""
    found = _FIRST_WORD.search(text)
    word = found[1] if found is not None else ""
    if word == "OOM":
        return StoreUnavailable(_OUT_OF_MEMORY, 5)
    for part, detail in _OF_TEXTS.items():
        if part in text:
            return StoreUnavailable(detail)
    if word in _REFUSALS:
        refusal, _, _ = text[text.index(word) :].partition(_SCRIPT_LINE)
        return StoreUnavailable(f"the store currently refuses calls: {refusal}")
    return None


def _unconfirmed(exc: TooFewReplicas | NotReplicated, *, is_cancel: bool) -> StoreUnavailable:
    level = name_of(FSYNC + exc.required)
    if isinstance(exc, TooFewReplicas):
        nothing = "nothing was cancelled" if is_cancel else "nothing was stored"
        return StoreUnavailable(f"durability {level!r} is not available now: {exc}; {nothing}", 2)
    if is_cancel:
        return StoreUnavailable(
            f"the job may be cancelled; that is not confirmed at durability {level!r}: {exc}; repeating the cancel is "
            "safe"
        )
    return StoreUnavailable(
        f"the job may exist; it is not confirmed at durability {level!r}: {exc}; repeating the put with the same id is "
        "safe"
    )


_NUMBER = re.compile(r"\bErr(?:no|or) (\d+)\b")
"""In texts of asyncio and redis-py, which have no `errno`: ``Error 111 connecting to ...``."""
_OWN_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_TOO_MANY_CLIENTS = "max number of clients"


def failure_reason(error: BaseException) -> str | None:
    """Why a store cannot be reached, from an error or one that led to it; None when no reason is known.

    It is in the system's words, for callers and operators, without addresses and secrets.
    """
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or at.__context__
    # What redis-py says of an error has its number only: 1 for each that concerns TLS.
    reasons = (reason_of(one) for reason_of in (_of_kind, _of_text) for one in chain)
    return next((reason for reason in reasons if reason is not None), None)


def _of_kind(error: BaseException) -> str | None:
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS fails: {error.reason or error}"
        case socket.gaierror():
            return f"its name cannot be resolved: {error.strerror}"
        case OSError(errno=int() as number):
            return _of_number(number)
    return None


def _of_text(error: BaseException) -> str | None:
    if _TOO_MANY_CLIENTS in str(error):
        return "it has as many clients as its maxclients allows"
    found = _NUMBER.search(str(error))
    return None if found is None else _of_number(int(found[1]))


def _of_number(number: int) -> str | None:
    if number not in errno.errorcode:
        return None
    return f"this process has {os.strerror(number).lower()}" if number in _OWN_FILES else os.strerror(number)


class request_ending_at:  # noqa: N801 (used as a function; a generator as context manager takes three times as long)
    """Bound all calls of the store within the block, also in tasks that it starts, until the block ends.

    A request whose client gives it up at some instant must do nothing from then on, also when one of its calls waits in
    the service or on the way to the store. So each of them carries that instant; see `deferd.store.pipeline`.

    Infinite: for work that serves others too, or must be done although the request has ended.
    """

    __slots__ = ("_token", "at_s")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def __enter__(self) -> None:
        self._token: Token[request_ending_at | None] = _current.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _current.reset(self._token)
        self.at_s = inf  # what was begun in the block and goes on is not bounded by it


_current: ContextVar[request_ending_at | None] = ContextVar("deferd_request_end", default=None)


def request_ends_at_s() -> float:
    """When the request that this is done for ends, on the event loop's clock; infinite if it names no instant."""
    end = _current.get()
    return inf if end is None else end.at_s

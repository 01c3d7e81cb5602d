"""The serving process: it claims what it needs, serves until it is told to stop, and gives everything back in order.

Start: data folder, listening socket, store, check of the store, application. So a second service on the same folder
or port says so before anything is started. Stop: parked pops are answered empty, requests under way end, then the
application, then the store. With several workers `deferd.server.supervisor` serves from processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import uvicorn
import uvloop
from redis.exceptions import RedisError

from deferd.api.app import Service, create_app
from deferd.api.auth.api_keys import KeysRefused
from deferd.api.auth.key_source import key_source
from deferd.contract.errors import DeferdError
from deferd.engine.movable_clock import clock_key
from deferd.engine.redis_keys import Keys
from deferd.server import logs
from deferd.server.http.fast_path import FastPathProtocol
from deferd.server.http.limits import KEEP_ALIVE_S, Connections
from deferd.server.http.tls_handshake import TlsHandshake
from deferd.server.last_good import LastGood
from deferd.server.tls import CertificateRefused, certificate
from deferd.settings import Settings, flag, path_text, variable
from deferd.stop_signals import StopSignals
from deferd.store.connection import Store, connect
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused, check

_log = logging.getLogger("deferd")

BACKLOG = 4096
"""Connections that may wait to be accepted; the system may allow fewer."""
GC_THRESHOLDS = (50_000, 20, 50)
"""A batch makes thousands of objects that live for one request; a collection for each 700 of them finds nothing."""
FILES_BESIDES = 400
"""Files that a process opens besides its connections: to the store, for metrics, to turn others away."""
CLOSING_S = 0.3
"""What the application gets to close down after the requests have ended, on top of the drain time."""

_NEEDS_KEYS = (
    f"{flag('host')} ({variable('host')}) is {{host}}, which others can reach, and no key is asked for: give keys with "
    f"{flag('keys_file')} ({variable('keys_file')}) or {variable('keys')}, which `deferd key new` makes; or listen on "
    f"127.0.0.1; or say {flag('insecure')} ({variable('insecure')}=true) to let whoever reaches it do everything"
)


class CannotServe(Exception):
    """The service cannot start or go on; the text is one sentence for people."""


def run(settings: Settings, *, version: str, warnings: Sequence[str] = ()) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP and return the exit code: 0, or 1 when it cannot (one logged line says so).

    A second SIGINT ends it at once, without regard to requests under way; the code then is 1. `warnings` are logged
    at the start.
    """
    logs.configure(settings.log_format, settings.log_level)
    for sentence in warnings:
        _log.warning("%s", sentence)
    if settings.test_clock:
        _log.warning("%s: whoever reaches this service can move its clock; for tests only", flag("test_clock"))
    if settings.insecure and key_source(settings) is None:
        _log.warning("%s: no key is asked for, so whoever reaches this service can do everything", flag("insecure"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, version))
    except (StoreRefused, CannotServe) as exc:
        log_refusal(exc)
        return 1


def log_refusal(exc: Exception) -> None:
    """Say in one line why the service cannot run; a fault in the application comes with its traceback."""
    cause = exc.__cause__
    expected = cause is None or isinstance(
        cause, StoreRefused | KeysRefused | CertificateRefused | DeferdError | OSError | RedisError
    )
    _log.critical("%s", exc, exc_info=None if expected or isinstance(exc, StoreRefused) else cause)


@dataclass(frozen=True)
class Premises:
    """What a service works with: the socket it listens on and a store that passed its checks.

    `greeting` is the line that says so, `facts` the same for logs in JSON. Only `store_url` may hold a secret.
    Worker processes keep the files `inherited` open: an embedded store works for as long as they do.
    """

    listener: socket.socket
    store_url: str = field(repr=False)
    greeting: str
    facts: dict[str, str]
    inherited: tuple[int, ...] = ()

    def announce(self) -> None:
        """Log that the service is up, where, and on which store."""
        _log.info("%s", self.greeting, extra=self.facts)


async def _run(settings: Settings, version: str) -> int:
    signals = StopSignals()
    try:
        async with premises(settings, version) as place:
            if settings.workers == 1:
                await serve_application(settings, place.store_url, place.listener, signals, place.announce)
            else:
                from deferd.server.supervisor import supervise  # noqa: PLC0415 (it imports this module)

                await supervise(settings, place, signals)
    except asyncio.CancelledError:
        if not signals.stopping:
            raise
    if signals.forced:
        return 1
    _log.info("stopped")
    return 0


@contextlib.asynccontextmanager
async def premises(settings: Settings, version: str) -> AsyncIterator[Premises]:
    """Claim the data folder, listen, start the store and check it; at the end give all back.

    Raises:
        CannotServe: the port cannot be had, the keys or the certificate cannot be used, or others could reach a
            service without keys.
        StoreRefused: the folder or the store cannot.
    """
    guarded = await _check_keys(settings) or settings.insecure
    scheme = await _check_certificate(settings)
    inherited: tuple[int, ...] = ()
    async with contextlib.AsyncExitStack() as stack:
        if settings.redis_url is not None:
            listener = stack.enter_context(listen(settings.host, settings.port, anywhere=guarded))
            store_url = settings.redis_url.get_secret_value()
        else:
            embedded = EmbeddedStore(settings.data_dir, drain_s=settings.drain_timeout + CLOSING_S)
            embedded.claim()
            stack.push_async_callback(embedded.stop)
            listener = stack.enter_context(listen(settings.host, settings.port, anywhere=guarded))
            await embedded.start()
            store_url = embedded.url
            inherited = embedded.inherited
        store = await connect(store_url, timeout_s=settings.store_timeout)
        try:
            await check(
                store,
                shards=settings.shards,
                exclusive=settings.redis_url is None,
                unsupported=settings.unsupported_store,
            )
            if settings.redis_url is None and not settings.test_clock:
                await _check_clock(store, settings)
        finally:
            await store.close()
        where = f"{store.server} at {store.description}"
        if settings.redis_url is None:
            where = f"embedded {store.server} in {path_text(settings.data_dir)}"
        yield replace(_premises(listener, scheme, store_url, where, version), inherited=inherited)


async def _check_keys(settings: Settings) -> bool:
    """Whether the service has keys. Raises CannotServe when they cannot be used."""
    source = key_source(settings)
    if source is None:
        return False
    try:
        await asyncio.to_thread(source.read)
    except KeysRefused as exc:
        raise CannotServe(str(exc)) from exc
    return True


async def _check_certificate(settings: Settings) -> str:
    """The scheme of the service's URLs. Raises CannotServe when its certificate cannot be used."""
    try:
        return "http" if await asyncio.to_thread(certificate, settings) is None else "https"
    except CertificateRefused as exc:
        raise CannotServe(str(exc)) from exc


async def _check_clock(store: Store, settings: Settings) -> None:
    """The jobs of a store whose clock was moved would be due at other times than was said when they were put."""
    try:
        moved_ms = await store.client.get(clock_key(Keys(settings.shards), 0))
    except (RedisError, OSError) as exc:
        raise StoreRefused(f"the store at {store.description} cannot be reached: {exc}") from exc
    if moved_ms is not None:
        raise StoreRefused(
            f"the data folder {path_text(settings.data_dir)} is one for tests, which moved its clock by "
            f"{int(moved_ms) / 1000:g} s: serve it with {flag('test_clock')}, or give this service another one "
            f"({flag('data_dir')}, {variable('data_dir')})"
        )


def _premises(listener: socket.socket, scheme: str, store_url: str, where: str, version: str) -> Premises:
    host, port = listener.getsockname()[:2]
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    facts = {"version": version, "url": url, "docs": f"{url}/docs", "store": where}
    greeting = f"deferd {version} listening on {url}  docs: {url}/docs  store: {where}"
    return Premises(listener, store_url, greeting, facts)


@contextlib.contextmanager
def listen(host: str, port: int, *, anywhere: bool) -> Iterator[socket.socket]:
    """A socket that is bound and listens, so that nobody else gets the port; closed at the end.

    Port 0 takes any that is free. Of a name with several addresses the first is taken. Without `anywhere` it must be
    one that only this machine reaches.

    Raises:
        CannotServe: the port is taken, or this machine does not have the address, or others could reach it.
    """
    place = f"{host} port {port} ({flag('host')} {variable('host')}, {flag('port')} {variable('port')})"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if not anywhere and not _is_of_this_machine_alone(str(address[0])):
            raise CannotServe(_NEEDS_KEYS.format(host=host))
        listener = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise CannotServe(f"cannot listen on {place}: {exc.strerror or exc}") from exc
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as exc:
            raise CannotServe(f"cannot listen on {place}: {exc.strerror or exc}") from exc
        yield listener


def _is_of_this_machine_alone(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback  # ::ffff:127.0.0.1 is 127.0.0.1


async def serve_application(
    settings: Settings,
    store_url: str,
    listener: socket.socket,
    signals: StopSignals,
    on_started: Callable[[], object],
    *,
    last_good: LastGood = LastGood(),  # noqa: B008 (it cannot be changed)
) -> None:
    """Run the application on the socket until a stop signal has been followed to its end.

    Keys and a certificate whose files cannot be used now are taken from `last_good`.

    Raises:
        CannotServe: the application does not start, or the certificate cannot be used.
    """
    application = create_app(settings, store_url, last_good.keys)
    server = _Server(application, settings, on_started, last_good)
    signals.on_stop, signals.on_force = server.stop, server.force
    await server.serve_until_stopped(listener)


class _Server(uvicorn.Server):
    """uvicorn, which leaves the signals to this module and empties the parked pops before it waits for requests."""

    def __init__(
        self, application: Service, settings: Settings, on_started: Callable[[], object], last_good: LastGood
    ) -> None:
        try:
            self._certificate = certificate(settings, last_good.certificate)
        except CertificateRefused as exc:
            raise CannotServe(str(exc)) from exc
        self._lifespan = _HeldLifespan(application)
        self._connections = Connections(settings)
        self._connections.max_open = _allowed_connections(settings.max_connections)
        super().__init__(
            uvicorn.Config(
                self._lifespan,
                # a maker of protocols
                http=cast("type[asyncio.Protocol]", partial(FastPathProtocol, application, self._connections)),
                ws="none",
                lifespan="on",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=cast("int", settings.drain_timeout),  # fractions work as well
            )
        )
        self._application = application
        self._drain_timeout_s = settings.drain_timeout
        self._on_started = on_started
        self._stop_asked = asyncio.Event()

    async def serve_until_stopped(self, listener: socket.socket) -> None:
        """Serve; return when stopped."""
        async with self._following_certificate():
            try:
                await self.serve(sockets=[listener])
            except SystemExit:  # uvicorn's way to say that the application did not start
                failure = self._lifespan.failure
                raise CannotServe(f"the application did not start: {failure}") from failure
        if self._lifespan.failure is not None:
            _log.error("the application did not close down cleanly", exc_info=self._lifespan.failure)

    @contextlib.asynccontextmanager
    async def _following_certificate(self) -> AsyncIterator[None]:
        if self._certificate is None:
            yield
            return
        following = asyncio.create_task(self._certificate.follow(), name="certificate")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait((following,))

    def stop(self) -> None:
        """Begin to stop."""
        self.should_exit = True
        self._stop_asked.set()

    def force(self) -> None:
        """Stop waiting for requests."""
        self.force_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: uvicorn would raise a caught signal once more at the end, and the exit code would not be 0."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and accept connections."""
        await super().startup([])
        for listener in sockets or ():
            self.servers.append(await self._accept_on(listener))
        # What is there now stays. Without this the collector looks through all of it again and again under load.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._on_started()

    async def _accept_on(self, listener: socket.socket) -> asyncio.Server:
        """As uvicorn does, but TLS begins within the time of a head, and ends within that of an answer."""
        make: Callable[[], Any] = partial(
            cast("Any", self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        if self._certificate is not None:
            make = partial(TlsHandshake, self._connections, self._certificate.context, make)
        return await asyncio.get_running_loop().create_server(make, sock=listener, backlog=BACKLOG)

    async def main_loop(self) -> None:
        """Wait for the stop; once a second bring the date of the answers up to date and look after connections."""
        while not await self.on_tick(0):
            self._connections.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer parked pops, let requests end for the drain time, close the application."""
        self._application.state.drain()
        try:
            async with asyncio.timeout(self._drain_timeout_s + CLOSING_S):
                await super().shutdown(sockets)
        except TimeoutError:
            _log.warning("the application did not close down in time; its tasks are cancelled")


def _allowed_connections(wanted: int) -> int:
    """How many connections this process may have: `wanted`, or what the system's limit on open files has room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_BESIDES
    if 0 <= soft < needed:
        raised = min(needed, hard) if hard >= 0 else needed  # below 0: without limit
        with contextlib.suppress(OSError, ValueError):  # macOS has a bound that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft < 0 or soft >= needed:
        return wanted
    allowed = max(soft - FILES_BESIDES, soft // 2)
    if allowed < wanted:
        _log.info("at most %d connections and not %d, since the system allows %d open files", allowed, wanted, soft)
    return min(allowed, wanted)


class _HeldLifespan:
    """The application, of which a failure to start or to close is kept as `failure` instead of logged as a text."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self.failure: Exception | None = None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        failed: dict[str, Any] = {}

        async def hold_failure(message: dict[str, Any]) -> None:
            if message["type"].endswith(".failed"):
                failed["type"] = message["type"]
            else:
                await send(message)

        try:
            await self._application(scope, receive, hold_failure)
        except Exception as exc:
            if not failed:
                raise
            self.failure = exc
            await send(failed)

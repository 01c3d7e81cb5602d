"""What a service holds while it runs: its data directory, its listening socket and a store that passed the checks."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from deferd.engine.movable_clock import clock_key
from deferd.engine.redis_keys import Keys
from deferd.server.credential_files import read_credentials
from deferd.server.http_server import CLOSING_S
from deferd.server.listener import listen
from deferd.server.starting_responses import starting_responses
from deferd.server.tracing import check_tracing
from deferd.settings import Settings, flag, path_text, variable
from deferd.store.connection import Store, connect
from deferd.store.embedded import EmbeddedStore
from deferd.store.load_progress import LoadWatch, wait_until_loaded
from deferd.store.preflight import StoreRefused, check

_log = logging.getLogger("deferd")


@dataclass(frozen=True)
class ServeContext:
    """The listening sockets and the checked store of a running service.

    `greeting` is the log line that reports them, `log_fields` the same for logs in JSON. Only `store_url` may hold a
    secret. Server processes keep the file descriptors `inherited` open: an embedded store lives as long as they do.
    `resp_listener` is the socket for the Redis protocol, None without `--resp-port`.
    """

    listener: socket.socket
    store_url: str = field(repr=False)
    greeting: str
    log_fields: dict[str, str]
    inherited: tuple[int, ...] = ()
    resp_listener: socket.socket | None = None

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """All listening sockets."""
        return (self.listener,) if self.resp_listener is None else (self.listener, self.resp_listener)

    def announce(self) -> None:
        """Log that the service is up, its URL and its store."""
        if self.resp_listener is not None:
            url = _url("rediss" if self.log_fields["url"].startswith("https:") else "redis", self.resp_listener)
            _log.info("the Redis protocol is served on %s", url, extra={"url": url})
        _log.info("%s", self.greeting, extra=self.log_fields)


@contextlib.asynccontextmanager
async def open_serve_context(settings: Settings, version: str) -> AsyncIterator[ServeContext]:
    """Claim the data directory, listen, start the store and check it; release everything at the end.

    While the store loads its data, requests on the socket get a response that says how far it is.

    Raises:
        CannotServe: the port cannot be bound, the keys or the certificate cannot be used, a package for tracing is
            missing, or a service without keys would be reachable from other machines.
        StoreRefused: the data directory or the store cannot be used.
    """
    credentials = await read_credentials(settings)
    allow_public = credentials.keys is not None or settings.insecure
    found = credentials.certificate
    scheme, tls = ("http", None) if found is None else ("https", found.context)
    check_tracing(settings)
    inherited: tuple[int, ...] = ()
    embedded: EmbeddedStore | None = None
    async with contextlib.AsyncExitStack() as stack:
        if settings.redis_url is not None:
            listener, resp_listener = _listen(stack, settings, allow_public=allow_public)
            store_url = settings.redis_url.get_secret_value()
        else:
            embedded = EmbeddedStore(settings.data_dir, drain_s=settings.drain_timeout + CLOSING_S)
            embedded.claim()
            stack.push_async_callback(embedded.stop)
            listener, resp_listener = _listen(stack, settings, allow_public=allow_public)
            async with starting_responses(listener, embedded.load_progress, tls):
                await embedded.start()
            store_url = embedded.url
            inherited = embedded.inherited
        try:
            store_name = await _check_store(settings, store_url, listener, tls)
        except StoreRefused as exc:
            fault = None if embedded is None else await embedded.fault()
            raise exc if fault is None else StoreRefused(f"{exc}; {fault}") from exc
        url = _url(scheme, listener)
        yield ServeContext(
            listener,
            store_url,
            f"deferd {version} listening on {url}  console: {url}/  docs: {url}/docs  store: {store_name}",
            {"version": version, "url": url, "console": f"{url}/", "docs": f"{url}/docs", "store": store_name},
            inherited,
            resp_listener,
        )


def _listen(
    stack: contextlib.AsyncExitStack, settings: Settings, *, allow_public: bool
) -> tuple[socket.socket, socket.socket | None]:
    """The sockets for HTTP and for the Redis protocol."""
    listener = stack.enter_context(listen(settings.host, settings.port, allow_public=allow_public))
    if settings.resp_port is None:
        return listener, None
    listening = listen(settings.host, settings.resp_port, allow_public=allow_public, port_setting="resp_port")
    return listener, stack.enter_context(listening)


async def _check_store(settings: Settings, store_url: str, listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    """The store's name for the log, once it has loaded its data. Raises StoreRefused when it cannot be used."""
    is_embedded = settings.redis_url is None
    store = await connect(store_url, timeout_s=settings.store_timeout)
    try:
        if not store.cluster:
            watch = LoadWatch(store.client.info)
            async with starting_responses(listener, watch.progress, tls):
                await wait_until_loaded(lambda: store.call("PING"), watch, f"the store at {store.description}")
        await check(
            store,
            shards=settings.shards,
            exclusive=is_embedded,
            unsupported=settings.unsupported_store,
        )
        if is_embedded and not settings.test_clock:
            await _check_clock(store, settings)
    finally:
        await store.close()
    if is_embedded:
        return f"embedded {store.server} in {path_text(settings.data_dir)}"
    return f"{store.server} at {store.description}"


async def _check_clock(store: Store, settings: Settings) -> None:
    """Refuse a store whose clock a test has moved: its jobs would run at other times than their producers expect."""
    try:
        moved_ms = await store.call("GET", clock_key(Keys(settings.shards), 0))
    except (RedisError, OSError) as exc:
        raise StoreRefused(f"the store at {store.description} cannot be reached: {exc}") from exc
    if moved_ms is not None:
        raise StoreRefused(
            f"the data directory {path_text(settings.data_dir)} belongs to tests, which moved its clock by "
            f"{int(moved_ms) / 1000:g} s: serve it with {flag('test_clock')}, or use another data directory "
            f"({flag('data_dir')}, {variable('data_dir')})"
        )


def _url(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

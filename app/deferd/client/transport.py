"""One exchange over the network, waiting, and taking turns: all that asyncio and threads do differently.

What the client knows is written once, as coroutines over a `Network`. Over `AsyncNetwork` they run on an event loop.
Over `BlockingNetwork` each `await` blocks the thread and is done when it returns, so such a coroutine never pauses
and `run` takes it to its end in one go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
import time
from collections.abc import Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

import httpx

from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, Unreachable
from deferd.client.requests import Call
from deferd.contract.service_url import parse_service_url

Value = TypeVar("Value")

URL_VARIABLE, KEY_VARIABLE = "DEFERD_URL", "DEFERD_KEY"
"""Variables that say where the service is (several URLs with commas), and the key, when a program does not."""
DEFAULT_URL = "http://127.0.0.1:8000"
_IDLE_S = 60
"""How long an idle connection is kept: less than the 75 s for which the service does."""
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class Reply(NamedTuple):
    """An answer as it came. `retry_after` is the header of that name."""

    status: int
    content: bytes
    retry_after: str | None


class Network(Protocol):
    """What the client needs of the world outside."""

    async def exchange(self, url: str, call: Call[Any]) -> Reply:
        """Send the call to the service at `url` once and wait for its answer.

        Raises:
            Unreachable: it was not sent.
            NoAnswer: no answer, or only a part of one, came in time.
        """

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def lock(self) -> AbstractAsyncContextManager[Any]:
        """A new lock."""

    async def close(self) -> None:
        """Close the connections, each when it is not in use; what comes after is Unreachable."""


class Wire:
    """What both networks put into httpx: `timeout_s` for the service's answer, the key, the most connections.

    Raises:
        ValueError: a URL is none of a service, or the key is none that a header can carry; neither is shown if secret.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None,
        *,
        timeout_s: float,
        key: str | None,
        connections: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        if urls is None:
            text = os.environ.get(URL_VARIABLE) or DEFAULT_URL
            # A comma in a password would divide it, so a text with one is checked, and refused, as a whole.
            urls = [text] if "@" in text else [url for url in text.split(",") if url.strip()]
        self.urls = [_checked_url(url) for url in ([urls] if isinstance(urls, str) else urls)]
        if not self.urls:
            raise ValueError("a client needs at least one URL")
        if connections < 1:
            raise ValueError(f"connections must be at least 1, not {connections}")
        key = _checked_key(os.environ.get(KEY_VARIABLE, "") if key is None else key)
        self.timeout_s = timeout_s
        self.connections = connections
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._headers_with_body = {**self._headers, "content-type": "application/json"}
        # Loading the system's certificates takes longer than a hundred calls: once, and not for plain HTTP.
        encrypted = any(url.startswith("https:") for url in self.urls)
        self.tls = tls or (httpx.create_ssl_context(trust_env=False) if encrypted else False)
        self.limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE_S)

    def request(self, url: str, call: Call[Any]) -> httpx.Request:
        timeout = httpx.Timeout(self.timeout_s, read=self.timeout_s + call.wait_s)
        return httpx.Request(
            call.method,
            url + call.path,
            params=call.query,
            content=call.body,
            headers=self._headers if call.body is None else self._headers_with_body,
            extensions={"timeout": timeout.as_dict()},
        )

    def longest_s(self, call: Call[Any]) -> float:
        """How long an exchange may take from connecting to the answer's end, however slowly its pieces come."""
        return 2 * self.timeout_s + call.wait_s

    def too_slow(self, call: Call[Any]) -> NoAnswer:
        return NoAnswer(f"{call.method} {call.path}: no whole answer in {self.longest_s(call):g} s")

    def no_turn(self, call: Call[Any]) -> ClientBusy:
        text = f"all {self.connections} connections of the client were in use for {self.timeout_s:g} s"
        return ClientBusy(f"{call.method} {call.path}: {text}")


def _checked_url(url: str) -> str:
    try:
        return parse_service_url(url)
    except ValueError as error:
        raise ValueError(f"the URL of the service {error}") from None


def _checked_key(key: str) -> str:
    """A key as it goes into a header; keys that are read from files end in a line break."""
    key = key.strip()
    if not all("!" <= character <= "~" for character in key):
        raise ValueError("the key has characters that are not visible ASCII (it is not shown here)")
    return key


def _reply(response: httpx.Response, content: bytes) -> Reply:
    return Reply(response.status_code, content, response.headers.get("retry-after"))


def _failure(url: str, call: Call[Any], error: httpx.HTTPError) -> NoAnswer:
    kind = Unreachable if isinstance(error, _NEVER_SENT) else NoAnswer
    return kind(f"{call.method} {url}{call.path}: {str(error) or type(error).__name__}")


class AsyncNetwork:
    """Network for one event loop, that of its first exchange.

    Each connection is a transport of its own: httpx's pool looks through all its connections at every call, which with
    64 calls at once takes several times as long as the calls. A transport whose exchange did not come to its end is
    never used again: a call that was cancelled can leave it waiting for ever.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._turns = asyncio.Semaphore(wire.connections)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._left_behind: list[httpx.AsyncHTTPTransport] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def exchange(self, url: str, call: Call[Any]) -> Reply:
        self._be_at_home()
        try:
            async with asyncio.timeout(self._wire.timeout_s):
                await self._turns.acquire()
        except TimeoutError:
            raise self._wire.no_turn(call) from None
        turns = self._turns
        try:
            if self._closed:
                raise ClientClosed("the client is closed")
            try:
                async with asyncio.timeout(self._wire.longest_s(call)):
                    return await self._exchange(url, call)
            except TimeoutError:
                raise self._wire.too_slow(call) from None
        finally:
            turns.release()

    async def _exchange(self, url: str, call: Call[Any]) -> Reply:
        transport = self._idle.pop() if self._idle else self._connect()
        ended = False
        try:
            # The transport alone: cookies, redirects and the like of httpx.AsyncClient take as long again as the call.
            response = await transport.handle_async_request(self._wire.request(url, call))
            try:
                reply = _reply(response, await response.aread())
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise _failure(url, call, error) from error
        else:
            ended = True
            return reply
        finally:
            if ended and not self._closed:
                self._idle.append(transport)
            else:
                self._close_soon(transport)

    def _be_at_home(self) -> None:
        """Share no connection with another process, after a fork.

        Raises:
            RuntimeError: this is another event loop.
        """
        pid, loop = os.getpid(), asyncio.get_running_loop()
        if self._home is None or self._home[0] != pid:
            self._left_behind += self._idle  # not closed: they are another's
            self._idle, self._turns = [], asyncio.Semaphore(self._wire.connections)
            self._home = pid, loop
        elif self._home[1] is not loop:
            raise RuntimeError("an AsyncClient belongs to the event loop of its first call: make one for each loop")

    def _connect(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(limits=self._wire.limits, verify=self._wire.tls, trust_env=False)

    def _close_soon(self, transport: httpx.AsyncHTTPTransport) -> None:
        closing = asyncio.ensure_future(_close(transport))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._close_soon(self._idle.pop())
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._wire.timeout_s)


async def _close(transport: httpx.AsyncHTTPTransport) -> None:
    with contextlib.suppress(httpx.HTTPError, OSError, RuntimeError):  # it is thrown away, whatever its state
        await transport.aclose()


class BlockingNetwork:
    """Network for threads: any number of them may use one. A transport for each connection, as in AsyncNetwork."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._pid = os.getpid()
        self._turns = threading.BoundedSemaphore(wire.connections)
        self._idle: list[httpx.HTTPTransport] = []
        self._left_behind: list[httpx.HTTPTransport] = []
        self._closed = False

    async def exchange(self, url: str, call: Call[Any]) -> Reply:
        self._be_at_home()
        turns = self._turns
        if not turns.acquire(timeout=self._wire.timeout_s):
            raise self._wire.no_turn(call)
        try:
            if self._closed:
                raise ClientClosed("the client is closed")
            return self._exchange(url, call)
        finally:
            turns.release()

    def _exchange(self, url: str, call: Call[Any]) -> Reply:
        end_s = time.monotonic() + self._wire.longest_s(call)
        transport = self._free()
        ended = False
        try:
            response = transport.handle_request(self._wire.request(url, call))
            content = bytearray()
            try:
                for piece in response.iter_bytes():
                    content += piece
                    if time.monotonic() > end_s:
                        raise self._wire.too_slow(call)
            finally:
                response.close()
        except httpx.HTTPError as error:
            raise _failure(url, call, error) from error
        else:
            ended = True
            return _reply(response, bytes(content))
        finally:
            if ended and not self._closed:
                self._idle.append(transport)
            else:
                transport.close()

    def _be_at_home(self) -> None:
        """Share no connection with another process, after a fork."""
        if self._pid != os.getpid():
            self._left_behind += self._idle  # not closed: they are another's
            self._idle, self._turns = [], threading.BoundedSemaphore(self._wire.connections)
            self._pid = os.getpid()

    def _free(self) -> httpx.HTTPTransport:
        try:
            return self._idle.pop()
        except IndexError:
            return httpx.HTTPTransport(limits=self._wire.limits, verify=self._wire.tls, trust_env=False)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (see the module's docstring)

    def lock(self) -> _ThreadLock:
        return _ThreadLock()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class _ThreadLock:
    """A lock of threads in the dress of an asynchronous one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._lock.release()


def run(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Take a coroutine over a BlockingNetwork to its end, in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine over a blocking network paused")

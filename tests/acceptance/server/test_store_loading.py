"""While a store loads its data, the log, `/readyz` and the console say how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from deferd.server import serve_context
from deferd.server.serve_context import open_serve_context
from deferd.server.shelf_keeper import ShelfKeeper
from deferd.server.startup_errors import CannotServe
from deferd.settings import Settings
from deferd.store import valkey_process
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused
from deferd.store.server_info import LoadProgress, progress_of
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import running_service
from tests.integration.store.store_servers import StoreServer
from tests.ports import free_port

HOW_FAR = re.compile(r"the store is loading its data: \d+ % of \d+ MiB")
KEYS, KEY_DELAY_US, VALUE = 100_000, 300, "x" * 30
"""A load of half a minute that a test cuts short. The store runs commands such as INFO after each thousand keys."""
STORE_KEYS = "for number = tonumber(ARGV[1]), ARGV[2] do redis.call('SET', 'other:' .. number, ARGV[3]) end"
STORE_CALLS = [("EVAL", STORE_KEYS, 0, first, first + 9_999, VALUE) for first in range(0, KEYS, 10_000)]


def fill(server: StoreServer) -> StoreServer:
    """Store what takes a while to load."""
    with server.client() as client:
        for call in STORE_CALLS:
            client.execute_command(*call)
    return server


@contextlib.contextmanager
def loading(server: StoreServer) -> Iterator[None]:
    """The store loads its data again, slowly, until the end of the block."""
    with server.client(socket_timeout=30) as client:
        client.config_set("key-load-delay", KEY_DELAY_US)
        reload = threading.Thread(target=client.execute_command, args=("DEBUG", "LOADAOF"))
        reload.start()
        try:
            yield
        finally:
            server.command("CONFIG", "SET", "key-load-delay", 0)
            reload.join()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "store", appendonly="yes", enable_debug_command="yes") as store:
        yield fill(store.mark_used())


def until_says(get: httpx.Client, path: str, wanted: re.Pattern[str], **headers: str) -> httpx.Response:
    """The first response whose text matches."""
    end_s, seen = time.monotonic() + 20, "none"
    while time.monotonic() < end_s:
        with contextlib.suppress(httpx.ConnectError):
            response = get.get(path, headers=headers)
            if wanted.search(seen := response.text):
                return response
    raise AssertionError(f"the last response of {path}: {seen}")


@pytest.mark.slow
def test_a_running_service_says_how_far_its_store_has_loaded(store: StoreServer, tmp_path: Path) -> None:
    with (
        running_service("--redis-url", store.url, data_dir=tmp_path / "service") as service,
        httpx.Client(base_url=service.url, timeout=10, trust_env=False, verify=NO_TLS) as client,
    ):
        with loading(store):
            ready = until_says(client, "/readyz", HOW_FAR)
            page = until_says(client, "/", HOW_FAR)
        assert (ready.status_code, ready.json()["code"]) == (503, "store_unavailable")
        assert int(ready.headers["retry-after"]) >= 1
        assert page.status_code == 503
        service.wait_ready()


@contextlib.asynccontextmanager
async def starting(settings: Settings) -> AsyncIterator[asyncio.Future[socket.socket]]:
    """A service that starts; the future has its listening socket once its store can be used."""
    started: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

    async def start() -> None:
        try:
            async with open_serve_context(settings, "1") as context:
                started.set_result(context.listener)
                await asyncio.Event().wait()
        except (StoreRefused, CannotServe) as error:
            started.set_exception(error)

    task = asyncio.create_task(start())
    try:
        yield started
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.mark.slow
async def test_a_service_that_starts_says_how_far_its_store_has_loaded(
    store: StoreServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(serve_context, "RESPOND_AFTER_S", 0.0)
    caplog.set_level(logging.INFO)
    port = free_port()
    settings = Settings(redis_url=SecretStr(store.url), port=port, data_dir=tmp_path)
    with loading(store):
        async with starting(settings) as started:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=10, trust_env=False, verify=NO_TLS) as client:
                get = asyncio.to_thread
                ready = await get(until_says, client, "/readyz", HOW_FAR)
                page = await get(until_says, client, "/", HOW_FAR, accept="text/html")
                alive = await get(client.get, "/healthz")
            await asyncio.to_thread(store.command, "CONFIG", "SET", "key-load-delay", 0)
            listener = await started
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)  # it was left open
            connection.close()
            writer.close()
    assert (ready.status_code, ready.json()["code"], ready.headers["content-type"]) == (
        *(503, "store_unavailable"),
        "application/problem+json",
    )
    assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert alive.status_code == 200
    assert re.search(r"the store at \S+ is loading its data", caplog.text)


async def test_a_service_that_waits_for_its_shelf_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = asyncio.Event()

    async def open_shelf(_: ShelfKeeper) -> None:
        monkeypatch.setattr(serve_context, "RESPOND_AFTER_S", 0.0)  # not while the store starts: its end cuts requests
        await opened.wait()

    monkeypatch.setattr(ShelfKeeper, "start", open_shelf)
    settings = Settings(port=free_port(), data_dir=tmp_path / "data", shelf_after=3600)
    async with starting(settings) as started:
        url = f"http://127.0.0.1:{settings.port}"
        with httpx.Client(base_url=url, timeout=10, trust_env=False, verify=NO_TLS) as client:
            ready = await asyncio.to_thread(until_says, client, "/readyz", re.compile("the shelf is being opened"))
            alive = await asyncio.to_thread(client.get, "/healthz")
        opened.set()
        await started
    assert (ready.status_code, alive.status_code) == (503, 200)


async def test_an_embedded_store_says_how_far_it_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = EmbeddedStore(tmp_path / "data")
    embedded.claim()
    await embedded.start()
    async with valkey_process.socket_client(embedded._data_dir) as client:
        for call in STORE_CALLS:
            await client.execute_command(*call)
        await embedded.stop()
        arguments = valkey_process._arguments
        monkeypatch.setattr(
            valkey_process, "_arguments", lambda data: [*arguments(data), "--key-load-delay", str(KEY_DELAY_US)]
        )
        embedded = EmbeddedStore(tmp_path / "data")
        embedded.claim()
        start = asyncio.create_task(embedded.start())
        try:
            seen: LoadProgress | None = None
            while seen is None and not start.done():
                seen = await embedded.load_progress()
                await asyncio.sleep(0.01)
            await client.config_set("key-load-delay", 0)
            await start
            assert seen is not None
            assert 0 <= seen.loaded <= seen.total > KEYS * len(VALUE)
            assert await embedded.load_progress() is None
        finally:
            start.cancel()
            await embedded.stop()


def test_progress_is_a_percentage_of_the_bytes_and_the_time_left() -> None:
    loading = {"loading": 1, "loading_loaded_bytes": 256 << 20, "loading_total_bytes": 1 << 30}
    assert str(progress_of({**loading, "loading_eta_seconds": 12})) == (
        "is loading its data: 25 % of 1,024 MiB, about 12 s left"
    )
    assert str(progress_of({"loading": 1})) == "is loading its data: 0 % of 0 MiB"
    assert progress_of({"loading": 0, "loading_total_bytes": 5}) is None
    assert [LoadProgress(1, 2, left_s).retry_after_s for left_s in (None, 0, 9, 90)] == [1, 1, 4, 10]

"""Fixtures: a real store, and an engine on it whose clock the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from deferd.engine.engine import Engine
from deferd.store import shard_guard
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import EngineDriver, started_engine
from tests.integration.engine.schedule_driver import ScheduleDriver
from tests.integration.store.store_servers import StoreServer


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of the service."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(autouse=True)
def first_use_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else uses these stores. In acceptance/server/test_store_refused.py services wait as in production."""
    monkeypatch.setattr(shard_guard, "FIRST_WRITE_DELAY_S", 0.0)


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def server(running_server: StoreServer) -> StoreServer:
    """An empty store."""
    running_server.command("FLUSHALL")
    return running_server


@pytest.fixture
async def store(server: StoreServer) -> AsyncIterator[Store]:
    store = await connect(server.url, timeout_s=5)
    yield store
    await store.close()


@pytest.fixture
async def driver(store: Store, server: StoreServer) -> AsyncIterator[EngineDriver]:
    """An engine whose timer and clock are driven by the test."""
    engine = Engine(store, movable_clock=True, dead_retention_ms=3_600_000)
    yield EngineDriver(engine, server)
    await engine.close()


@pytest.fixture
async def schedules(store: Store, server: StoreServer) -> AsyncIterator[ScheduleDriver]:
    """As `driver`, with the verbs of schedules."""
    engine = Engine(store, movable_clock=True, dead_retention_ms=3_600_000)
    yield ScheduleDriver(engine, server)
    await engine.close()


@pytest.fixture
async def engine(store: Store) -> AsyncIterator[Engine]:
    """A started engine, with its timer and the real clock."""
    engine = Engine(store, tick_s=1.0)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def second(server: StoreServer) -> AsyncIterator[Engine]:
    """An engine with connections of its own, like that of another process."""
    async with started_engine(server.url) as engine:
        yield engine


@pytest.fixture(params=[False, True], ids=["four", "grown"])
def grown(request: pytest.FixtureRequest) -> bool:
    """Whether a topic with partitions got more of them while it had jobs."""
    is_grown: bool = request.param
    return is_grown

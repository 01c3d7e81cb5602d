"""The doors, each on a service or store that all tests of the session share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import httpx
import pytest

from deferd import AsyncClient, Client
from deferd.engine.engine import Engine
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.shelf.rows import Rows
from deferd.store.connection import connect
from deferd.testing import ServiceClock
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.resp_calls import redis_client
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.conformance.cli_door import CliDoor
from tests.conformance.client_door import AwaitedClient, ClientDoor, EagerDoor
from tests.conformance.door import (
    DOORS,
    PARTITIONED,
    SLOW,
    Door,
)
from tests.conformance.engine_door import ClusterDoor, EngineDoor, GrownDoor, ShelvedDoor
from tests.conformance.event_loop import EventLoop
from tests.conformance.http_door import HttpDoor
from tests.conformance.resp_door import RespDoor
from tests.integration.store.store_servers import ClusterSet, StoreServer
from tests.shelving import ShelfInProcess

SHARDS = 4
CALL_TIMEOUT_S = 30.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test over all doors, but for those that its marks leave out."""
    if "door" not in metafunc.fixturenames:
        return
    names = list(DOORS)
    for marker in metafunc.definition.iter_markers("doors"):
        names += marker.kwargs.get("also", ())
        names = [name for name in names if name not in marker.kwargs.get("without", ())]
    doors = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in names]
    metafunc.parametrize("door", doors, indirect=True)


@pytest.fixture
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    """A door, with a topic of the test's own."""
    name: str = request.param
    found: Door = request.getfixturevalue(f"{name.partition('-')[0]}_door")
    found.topic = f"t-{uuid.uuid4().hex[:12]}"
    found.partitions = PARTITIONED.get(name)
    if found.partitions is not None:
        found.set_topic()
    yield found
    if {"schedules", "windows"} & {*request.node.path.stem.split("_")}:
        found.clean_up()


@pytest.fixture(scope="session")
def loop() -> Iterator[EventLoop]:
    with EventLoop() as loop:
        yield loop


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--test-clock", "--resp-port", "0", "--shards", str(SHARDS))
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("conformance")) as service:
        yield service


@pytest.fixture(scope="session")
def clock(service: ServiceProcess) -> Iterator[ServiceClock]:
    with Client(service.url) as client:
        yield ServiceClock(client)


@pytest.fixture(scope="session")
def http_client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=CALL_TIMEOUT_S, trust_env=False, verify=NO_TLS) as client:
        yield client


@pytest.fixture(scope="session")
def http_door(http_client: httpx.Client) -> Door:
    return HttpDoor(http_client)


@pytest.fixture(scope="session")
def cli_door(http_client: httpx.Client) -> Door:
    return CliDoor(http_client)


@pytest.fixture(scope="session")
def resp_door(http_client: httpx.Client, service: ServiceProcess) -> Iterator[Door]:
    with redis_client(service) as client:
        yield RespDoor(http_client, client)


@pytest.fixture(scope="session")
def client_door(service: ServiceProcess, clock: ServiceClock) -> Iterator[Door]:
    with Client(service.url, retry_for=0) as client:
        yield ClientDoor(client, clock)


@pytest.fixture(scope="session")
def async_door(service: ServiceProcess, clock: ServiceClock, loop: EventLoop) -> Iterator[Door]:
    client = AsyncClient(service.url, retry_for=0)
    yield ClientDoor(AwaitedClient(client, loop), clock)
    loop.run(client.close())


@pytest.fixture
def eager_door() -> Door:
    return EagerDoor()


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with StoreServer(tmp_path_factory.mktemp("conformance-store")) as server:
        yield server.mark_used(SHARDS).url


@pytest.fixture(scope="session")
def engine_door(store_url: str, loop: EventLoop) -> Iterator[Door]:
    yield from _on_store(EngineDoor, store_url, loop)


@pytest.fixture(scope="session")
def grown_door(store_url: str, loop: EventLoop) -> Iterator[Door]:
    yield from _on_store(GrownDoor, store_url, loop)


@pytest.fixture(scope="session")
def shelved_door(store_url: str, loop: EventLoop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    store = loop.run(connect(store_url, timeout_s=5))
    keys, scripts = Keys(SHARDS), Scripts(store, movable_clock=True)
    with Rows(tmp_path_factory.mktemp("shelf")) as rows:
        mover = ShelfInProcess(rows, scripts, keys)
        loop.run(mover.settle_all())
        yield from _on_store(lambda engine, loop: ShelvedDoor(engine, loop, mover), store_url, loop, shelf=mover)
        loop.run(mover.close())
    loop.run(store.close())


@pytest.fixture(scope="session")
def cluster_door(tmp_path_factory: pytest.TempPathFactory, loop: EventLoop) -> Iterator[Door]:
    with ClusterSet(tmp_path_factory.mktemp("conformance-cluster")) as cluster:
        yield from _on_store(ClusterDoor, cluster.url, loop)


def _on_store(
    kind: Callable[[Engine, EventLoop], Door], url: str, loop: EventLoop, *, shelf: ShelfInProcess | None = None
) -> Iterator[Door]:
    store = loop.run(connect(url, timeout_s=5))
    engine = Engine(store, shards=SHARDS, movable_clock=True, shelf=shelf, max_topic_labels=100_000)
    loop.run(engine.start())
    try:
        yield kind(engine, loop)
    finally:
        loop.run(engine.close())
        loop.run(store.close())

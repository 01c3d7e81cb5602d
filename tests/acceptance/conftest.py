"""One real `deferd serve` on an embedded store for all tests over HTTP, and a topic of its own for each."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import redis

from deferd import AsyncClient
from deferd.store.data_dir import DataDirectory
from deferd.testing import ServiceForTests, start_service
from tests.acceptance.cli.damaged_store import BreakableService, breakable_service
from tests.acceptance.http_calls import NO_TLS, Http, Json
from tests.acceptance.recorded_spans import RecordedSpans
from tests.acceptance.resp_calls import redis_client
from tests.acceptance.service_process import ServiceProcess, running_service

CALL_TIMEOUT_S = 30.0
PUSH_ALLOW = ("--push-allow", "127.0.0.1:*,localhost:*,https://*.example.com")


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(data_dir=tmp_path_factory.mktemp("deferd")) as service:
        yield service


@pytest.fixture(scope="module")
def forgotten_relays(shared_service: ServiceProcess) -> Iterator[None]:
    """The shared service knows no relay after the module. For a day it would tell later tests that none works."""
    yield
    with redis.Redis(unix_socket_path=str(DataDirectory(shared_service.data_dir).socket)) as store:
        for key in store.scan_iter("deferd:*:relays"):
            store.delete(key)


@pytest.fixture(scope="session")
def resp_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Another one, which serves the Redis protocol as well."""
    with running_service("--resp-port", "0", data_dir=tmp_path_factory.mktemp("resp")) as service:
        yield service


@pytest.fixture(scope="session")
def pushing_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Another one, which may push to this host."""
    with running_service(*PUSH_ALLOW, data_dir=tmp_path_factory.mktemp("push")) as service:
        yield service


@pytest.fixture(scope="session")
def clocked_service() -> Iterator[ServiceForTests]:
    """Another one, whose clock tests move; they purge it first. Variables of the environment do not matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEFERD_REDIS_URL", "redis://127.0.0.1:1")
        patch.setenv("DEFERD_WORKERS", "none")
        with start_service("--push-allow", "hooks.example.com") as service:
            patch.undo()
            yield service


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(resp_service: ServiceProcess, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client of Redis, in each version of its protocol."""
    with redis_client(resp_service, request.param) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex}"


@pytest.fixture
async def http(shared_service: ServiceProcess, topic: str) -> AsyncIterator[Http]:
    options: Json = {"timeout": CALL_TIMEOUT_S, "trust_env": False, "verify": NO_TLS}
    async with httpx.AsyncClient(base_url=shared_service.url, **options) as client:
        yield Http(client, topic)


@pytest.fixture
def spans() -> RecordedSpans:
    return RecordedSpans()


@pytest.fixture
async def traced(shared_service: ServiceProcess, spans: RecordedSpans) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url, tracing=spans.tracing()) as client:
        yield client


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableService]:
    with breakable_service(tmp_path_factory.mktemp("audited")) as breakable:
        yield breakable


@pytest.fixture
def broken(breakable: BreakableService) -> BreakableService:
    """A service whose store is sound until the test breaks it."""
    breakable.store.command("FLUSHDB")
    return breakable

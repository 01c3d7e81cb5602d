"""Two releases on one store: a real service is the previous one, and the engine in this process the next."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from deferd import AsyncClient
from deferd.contract.errors import NotYetAvailable
from deferd.engine import store_processes
from deferd.engine.engine import Engine
from deferd.store import shard_guard
from deferd.version import VERSION
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.engine.engine_driver import started_engine
from tests.integration.store.store_servers import StoreServer
from tests.preloaded import run_preloaded
from tests.waiting import until

NOTICED_S = 10.0
NEXT = shard_guard.FORMAT + 1


@pytest.fixture
async def engine(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """Of the next release. It does not wait long until it raises the format."""
    monkeypatch.setattr(shard_guard, "FORMAT", NEXT)
    monkeypatch.setattr(store_processes, "GRACE_MS", 200)
    monkeypatch.setattr(store_processes, "ANNOUNCE_EVERY_S", 0.1)
    async with started_engine(store.url) as engine:
        yield engine


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "store") as store:
        store.mark_used()
        yield store


@pytest.fixture
def service(store: StoreServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    with running_service("--redis-url", store.url, data_dir=tmp_path / "service") as service:
        yield service


def get(service: ServiceProcess, path: str) -> httpx.Response:
    return httpx.get(f"{service.url}{path}", verify=NO_TLS)


async def test_the_store_gets_the_next_format_when_the_previous_release_has_ended(
    service: ServiceProcess, engine: Engine, store: StoreServer
) -> None:
    shell = Shell(service.url)
    found = get(service, "/system").json()
    assert found["store_format"] == NEXT - 1
    assert [one["newest_format"] for one in found["processes"]] == [NEXT - 1, NEXT]
    old = f"{service.process.pid} on {socket.gethostname()}"
    sentence = f"The store has format {NEXT - 1}. It gets format {NEXT} when these have ended: {old}."
    assert shell.good("upgrade").splitlines()[-1] == sentence
    with pytest.raises(NotYetAvailable, match=f"process {service.process.pid} on .* does not know it"):
        engine.processes.require(NEXT, "priority")
    metrics = get(service, "/metrics").text
    assert f"deferd_store_format {NEXT - 1}.0" in metrics
    assert f'deferd_store_processes{{version="{VERSION}"}} 2.0' in metrics
    assert service.stop() == 0
    await until(lambda: engine.processes.format == NEXT, "the format was raised", within_s=NOTICED_S)
    serve = ("serve", "--port", "0", "--redis-url", store.url)
    done = run_preloaded(*serve, environment=os.environ, timeout=NOTICED_S)
    assert done.returncode == 1
    assert f"holds data of format {NEXT}" in done.stderr
    assert f"run deferd {VERSION} or a later one" in done.stderr


async def test_a_service_of_the_previous_release_refuses_calls_once_the_upgrade_is_finished(
    service: ServiceProcess, engine: Engine
) -> None:
    async with AsyncClient(service.url) as client:
        await client.put("orders", id="a")
    await engine.processes.upgrade()
    await until(lambda: get(service, "/readyz").status_code == 503, "it notices", within_s=NOTICED_S)
    refused = get(service, "/jobs/orders/a")
    assert refused.status_code == 503
    assert f"run deferd {VERSION} or a later one" in refused.json()["detail"]
    assert get(service, "/system").json()["detail"] == refused.json()["detail"]
    assert get(service, "/events").status_code == 503
    assert (await engine.queue.get("orders", "a")).state == "ready"


def test_an_upgrade_that_is_over_changes_nothing(shared_service: ServiceProcess) -> None:
    shell = Shell(shared_service.url)
    found = httpx.post(f"{shared_service.url}/system/upgrade", verify=NO_TLS)
    assert found.status_code == 200
    assert found.json()["store_format"] == shard_guard.FORMAT
    assert shared_service.process.pid in {one["pid"] for one in found.json()["processes"]}
    sentence = f"The store has format {shard_guard.FORMAT}, the newest that these processes know."
    assert shell.good("upgrade", "--finish").splitlines()[-1] == sentence
    [as_json] = shell.json("upgrade")
    assert as_json["store_format"] == shard_guard.FORMAT

"""A rolling restart as Kubernetes makes it with docs/deployment/kubernetes/, of real services over a real store.

`python -m tests.acceptance.server.rolling_restart --requests 100000` restarts under load until so many requests were
made, reports the counts, and exits with 1 if a request failed or a job was not delivered once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import sys
import tempfile
from pathlib import Path

from tests.acceptance.server.restart_load import Endpoints, LoadOutcome, running_load
from tests.acceptance.service_process import ServiceProcess
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

REPLICAS = 2
WITHDRAWN_AFTER_S = 0.5
"""How long the nodes still send new connections to a pod that is to end."""
PRE_STOP_S = 1.0
"""The pause of `preStop`, which is longer. (That of the manifest is ten times as long.)"""
_LAST_REQUEST_S = 60.0
"""How long a pod keeps idle connections for one more request. Callers make one sooner, also on a slow machine."""
_ENDED_S = 120.0
_SETTLED_S = 60.0


class Deployment:
    """Replicas over one store, and the endpoints of their Service."""

    def __init__(self, folder: Path, store_url: str, services: contextlib.ExitStack) -> None:
        self._folder = folder
        self._store_url = store_url
        self._services = services
        self._numbers = itertools.count()
        self._pods = [self._started_pod() for _ in range(REPLICAS)]
        self.endpoints = Endpoints([pod.port for pod in self._pods])
        self.restarts = 0

    def _started_pod(self) -> ServiceProcess:
        folder = self._folder / f"pod-{next(self._numbers)}"
        flags = ("--redis-url", self._store_url, "--drain-idle-timeout", str(_LAST_REQUEST_S))
        pod = ServiceProcess(folder, *flags, preloaded=True)
        self._services.enter_context(pod)
        pod.wait_ready()
        return pod

    async def restart(self) -> None:
        """Replace each pod: `maxSurge: 1`, `maxUnavailable: 0`."""
        for old in list(self._pods):
            new = await asyncio.to_thread(self._started_pod)
            self._pods.append(new)
            self.endpoints.add(new.port)
            self._pods.remove(old)
            await self._end(old)
            self.restarts += 1

    async def _end(self, pod: ServiceProcess) -> None:
        """`preStop` begins when the endpoint is withdrawn, which reaches the nodes later; SIGTERM comes after it."""
        await asyncio.sleep(WITHDRAWN_AFTER_S)
        self.endpoints.withdraw(pod.port)
        await asyncio.sleep(PRE_STOP_S - WITHDRAWN_AFTER_S)
        # A machine that stands still for half a second must not fail the test.
        await until(lambda: self.endpoints.is_settled(pod.port), "its last connections are open", within_s=_SETTLED_S)
        pod.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(pod.process.wait, _ENDED_S) == 0
        pod.stop()


async def restart_under_load(folder: Path, requests: int) -> tuple[LoadOutcome, int]:
    """Restart all replicas again and again until so many requests were made; with the number of restarts."""
    with contextlib.ExitStack() as running:
        store = running.enter_context(StoreServer(folder / "store")).mark_used()
        deployment = await asyncio.to_thread(Deployment, folder, store.url, running)
        async with running_load(deployment.endpoints) as outcome:
            while outcome.requests < requests:
                await deployment.restart()
        return outcome, deployment.restarts


def main() -> int:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.server.rolling_restart", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="deferd-restarts-") as folder:
        outcome, restarts = asyncio.run(restart_under_load(Path(folder), options.requests))
    print(f"{restarts} restarts\n{outcome.report()}")
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())

"""What the faults are brought to: two services with clocks that differ, one store, proxies between all, clients.

One service is a single process without keys, the other has worker processes and asks for keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from deferd.api.auth.api_keys import Scope
from tests.acceptance.keyed_service import KeysFile
from tests.acceptance.service_process import ServiceProcess
from tests.faults.job_life import DEAD_RETENTION_MS
from tests.faults.orphans import none_outlives
from tests.faults.tcp_proxy import TcpProxy, tcp_proxy
from tests.integration.store_contents import KEYS
from tests.integration.store_rights import as_user, user_line
from tests.integration.store_servers import StoreServer

SERVICES = 2
KEYED = 1
"""Which of the services asks for keys, and has worker processes."""
CLOCK_SHIFTS_H = (0.0, 3.0)
"""By how much the services' hosts' clocks are off at first."""
CLIENT_PROCESSES = 2
KEY_NAME = "clients"
STOP_S = 20.0
LOCK_RENEWED_S = 3.0
"""Within this time the timer that works renews its lock."""
_TAIL_BYTES = 65536
_SHIFTED_CLOCK = Path(__file__).parent / "shifted_clock"


class FaultyStore(StoreServer):
    """A store that has all that it acknowledged on disk, as the embedded one does; its disk can be full.

    The services are a user of it that has the rights they need and no others.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            lines=[user_line()],
            appendonly="yes",
            appendfsync="always",
            enable_debug_command="local",
            maxmemory_policy="noeviction",
        )

    def start(self) -> FaultyStore:
        """Start it so that a write beyond its file size limit fails, as on a full disk, instead of killing it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
        try:
            super().start()  # the mask goes on to the child
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def info(self, section: str) -> dict[str, Any]:
        """A section of INFO."""
        with self.client() as client:
            return dict(client.info(section))

    def fill_disk(self, bytes_left: int) -> None:
        """From now on the append-only file can grow by so many bytes only. The next start has room again."""
        size = max(file.stat().st_size for file in (self.folder / "appendonlydir").iterdir())
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size + bytes_left, resource.RLIM_INFINITY))


class RecordingProcess:
    """A process that writes down what it does, each of its lives in a file of its own."""

    def __init__(self, module: str, folder: Path, name: str, *arguments: str) -> None:
        self._module = module
        self._folder = folder
        self._name = name
        self._arguments = arguments
        self.files: list[Path] = []

    def start(self) -> None:
        """Start it, or the next one after it."""
        self.files.append(self._folder / f"{self._name}.{len(self.files)}.jsonl")
        with self.files[-1].with_suffix(".log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(self.files[-1]), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> int:
        """SIGKILL it; how it has ended."""
        self.process.kill()
        return self.process.wait(STOP_S)

    def stop(self) -> int:
        """SIGTERM it; its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_S)

    def is_at_work(self) -> bool:
        """Whether the newest one has begun to write, and so can be stopped in order."""
        return self.files[-1].exists() and self.files[-1].stat().st_size > 0

    def output(self) -> str:
        """What the newest one wrote besides."""
        return self.files[-1].with_suffix(".log").read_text()


@dataclass
class Deployment:
    """All that runs, by its role."""

    folder: Path
    store: FaultyStore
    store_proxies: list[TcpProxy]
    services: list[ServiceProcess]
    service_proxies: list[TcpProxy]
    clock_files: list[Path]
    clients: list[RecordingProcess]
    worker: RecordingProcess
    keys: KeysFile

    @property
    def urls(self) -> list[str]:
        """Where clients find the services: through the proxies."""
        return [f"http://127.0.0.1:{proxy.port}" for proxy in self.service_proxies]

    @property
    def users(self) -> list[RecordingProcess]:
        """The clients and the worker."""
        return [*self.clients, self.worker]

    @property
    def processes(self) -> list[RecordingProcess | ServiceProcess]:
        """All but the store."""
        return [*self.users, *self.services]

    @property
    def files(self) -> list[Path]:
        """All that was written down so far."""
        return [file for process in self.users for file in process.files]

    async def working_timer(self) -> bytes | None:
        """The name of the timer that works now, as the lock tells."""
        name: bytes | None = await asyncio.to_thread(self.store.command, "GET", KEYS.of_shard(0, "lock"))
        return name

    async def timer_holder(self) -> int | None:
        """Which service's timer works now: the one that is heard to speak of itself by the lock's name."""
        name = await self.working_timer()
        if name is None:
            return None
        listening = {
            asyncio.create_task(proxy.passes(name, LOCK_RENEWED_S)): number
            for number, proxy in enumerate(self.store_proxies)
        }
        try:
            for heard in asyncio.as_completed(listening):
                if await heard:
                    return next(number for task, number in listening.items() if task.done() and task.result())
        finally:
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
        return None


def leases_in_hand(file: Path) -> int:
    """How many live leases the process that writes this file holds, of which it has not yet said anything more."""
    lease_ends_ms: dict[str, int] = {}
    with file.open("rb") as opened:
        opened.seek(max(file.stat().st_size - _TAIL_BYTES, 0))
        lines = opened.read().split(b"\n")[:-1]
    for line in lines[1:] if len(lines) > 1 else []:
        said = json.loads(line)
        for job in said.get("jobs", ()):
            lease_ends_ms[job["job"]] = job["lease_end_ms"]
        if said.get("kind") in {"finish", "release", "bury"}:
            lease_ends_ms.pop(said["job"], None)
    return sum(lease_end_ms > time.time() * 1000 for lease_end_ms in lease_ends_ms.values())


def stands_still(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def set_clock(file: Path, shift_h: float) -> None:
    """Let a service's clock be off by so many hours from now on."""
    new = file.with_suffix(".new")
    new.write_text(str(shift_h * 3600))
    new.replace(file)


@contextlib.contextmanager
def deployed(folder: Path, seed: int) -> Iterator[Deployment]:
    """Start all, and end all."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(none_outlives(folder))
        store = stack.enter_context(FaultyStore(folder / "store"))
        store_proxies = [stack.enter_context(tcp_proxy("127.0.0.1", store.port)) for _ in range(SERVICES)]
        clock_files = [folder / f"clock-{number}" for number in range(SERVICES)]
        for clock_file, shift_h in zip(clock_files, CLOCK_SHIFTS_H, strict=True):
            set_clock(clock_file, shift_h)
        keys = KeysFile(folder / "keys.toml")
        keys.add(KEY_NAME, *Scope)
        stack.enter_context(_environment_of_clients(keys.tokens[KEY_NAME]))
        flags = [
            ("--workers", "2", "--keys-file", str(keys.path)) if number == KEYED else () for number in range(SERVICES)
        ]
        services = [
            _service(folder / f"service-{number}", store_proxies[number], clock_files[number], flags[number])
            for number in range(SERVICES)
        ]
        with ThreadPoolExecutor() as at_once:
            for service in at_once.map(ServiceProcess.start, services):
                stack.push(service.__exit__)
        service_proxies = [stack.enter_context(tcp_proxy("127.0.0.1", service.port)) for service in services]
        urls = [f"http://127.0.0.1:{proxy.port}" for proxy in service_proxies]
        began_s = str(time.monotonic())
        clients = [
            RecordingProcess("tests.faults.client_process", folder, f"clients-{number}", str(seed), began_s, *urls)
            for number in range(CLIENT_PROCESSES)
        ]
        worker = RecordingProcess("tests.faults.worker_process", folder, "worker", *urls)
        for process in (*clients, worker):
            process.start()
            stack.callback(process.kill)
        yield Deployment(folder, store, store_proxies, services, service_proxies, clock_files, clients, worker, keys)


@contextlib.contextmanager
def _environment_of_clients(token: str) -> Iterator[None]:
    """Clients in this process, and in those that it starts, send the key."""
    before = os.environ.get("DEFERD_KEY")
    os.environ["DEFERD_KEY"] = token
    try:
        yield
    finally:
        del os.environ["DEFERD_KEY"]
        if before is not None:
            os.environ["DEFERD_KEY"] = before


def _service(folder: Path, store_proxy: TcpProxy, clock_file: Path, more: Sequence[str]) -> ServiceProcess:
    python_path = os.pathsep.join([str(_SHIFTED_CLOCK), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": python_path, "SHIFTED_CLOCK_FILE": str(clock_file)}
    store_url = as_user(f"redis://127.0.0.1:{store_proxy.port}")
    flags = ("--redis-url", store_url, "--dead-retention", str(DEAD_RETENTION_MS / 1000))
    return ServiceProcess(folder, *flags, *more, environment=environment)


def clock_error_h(url: str) -> float:
    """By how many hours the wall clock of the service at `url` is off, as the date of its answers tells."""
    date = httpx.get(f"{url}/healthz", trust_env=False, timeout=5).headers["date"]
    return (parsedate_to_datetime(date).timestamp() - time.time()) / 3600

"""The deployment under test: two services whose clocks differ, one store, proxies between all of them, and clients.

One service is a single process without API keys. The other has several server processes and requires keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from deferd.contract.scopes import Scope
from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.service_process import ServiceProcess
from tests.faults.flow_control import set_limits
from tests.faults.job_state import DEAD_RETENTION_MS
from tests.faults.orphans import no_orphans
from tests.faults.push_targets import PushTargets
from tests.faults.rollout import Release
from tests.faults.shelf_process import SOCKET_VARIABLE, FaultyShelf
from tests.faults.tcp_proxy import TcpProxy, tcp_proxy
from tests.in_thread import in_thread
from tests.integration.store.store_contents import KEYS
from tests.integration.store.store_rights import as_user, user_line
from tests.integration.store.store_servers import StoreServer
from tests.ports import held_port
from tests.preloaded import start_module

SERVICES = 2
KEYED = 1
"""Which of the services requires keys and has several server processes."""
CLOCK_SHIFTS_H = (0.0, 3.0)
"""The errors of the services' clocks at the start."""
CLIENT_PROCESSES = 2
KEY_NAME = "clients"
STOP_S = 20.0
LOCK_RENEWED_S = 3.0
"""Within this time the active timer renews its lock."""
_TAIL_BYTES = 65536
_SHIFTED_CLOCK = Path(__file__).parent / "shifted_clock"


class FaultyStore(StoreServer):
    """A store that fsyncs before it acknowledges, as the embedded one does. Its disk can be filled.

    The services connect as a user that has only the permissions they need.
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
            super().start()  # the child inherits the mask
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def info(self, section: str) -> dict[str, Any]:
        """A section of INFO."""
        with self.client() as client:
            return dict(client.info(section))

    def fill_disk(self, bytes_left: int) -> None:
        """Limit the growth of the append-only file to so many bytes, until the next start."""
        size = max(file.stat().st_size for file in (self.folder / "appendonlydir").iterdir())
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size + bytes_left, resource.RLIM_INFINITY))


class RecordingProcess:
    """A process that records its calls, in a new file after each start."""

    def __init__(self, module: str, folder: Path, name: str, *arguments: str) -> None:
        self._module = module
        self._folder = folder
        self._name = name
        self._arguments = arguments
        self.files: list[Path] = []

    def start(self) -> None:
        """Start it, or start it again."""
        self.files.append(self._folder / f"{self._name}.{len(self.files)}.jsonl")
        log = self.files[-1].with_suffix(".log")
        self.process = start_module(self._module, str(self.files[-1]), *self._arguments, log=log, owner=self._folder)

    def kill(self) -> int:
        """Send SIGKILL; returns its exit code."""
        self.process.kill()
        return self.process.wait(STOP_S)

    def stop(self) -> int:
        """Send SIGTERM; returns its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_S)

    def is_at_work(self) -> bool:
        """Whether the current process has begun to record, and so can be stopped in order."""
        return self.files[-1].exists() and self.files[-1].stat().st_size > 0

    def output(self) -> str:
        """The log of the current process."""
        return self.files[-1].with_suffix(".log").read_text()


@dataclass
class Deployment:
    """Everything that runs, by its role."""

    folder: Path
    store: FaultyStore
    store_proxies: list[TcpProxy]
    services: list[ServiceProcess]
    service_proxies: list[TcpProxy]
    resp_proxies: list[TcpProxy]
    targets: PushTargets
    clock_files: list[Path]
    keys: KeysFile
    previous: Path | None
    """Where the previous release is unpacked; None in a run without it."""
    shelf: FaultyShelf | None = None
    clients: list[RecordingProcess] = field(init=False)
    worker: RecordingProcess = field(init=False)

    @property
    def has_groups(self) -> bool:
        """Whether jobs have groups and priorities, and topics limits: those the previous release does not know."""
        return self.previous is None

    @property
    def urls(self) -> list[str]:
        """The services' URLs for clients, through the proxies."""
        return [f"http://127.0.0.1:{proxy.port}" for proxy in self.service_proxies]

    @property
    def resp_urls(self) -> list[str]:
        """The URLs of the Redis protocol, through the proxies; those of a service with keys have a user."""
        users = ["key@" if number == KEYED else "" for number in range(SERVICES)]
        return [f"redis://{user}127.0.0.1:{one.port}" for user, one in zip(users, self.resp_proxies, strict=True)]

    @property
    def users(self) -> list[RecordingProcess]:
        """The clients and the worker."""
        return [*self.clients, self.worker]

    @property
    def processes(self) -> list[RecordingProcess | ServiceProcess]:
        """All processes but the store."""
        return [*self.users, *self.services]

    @property
    def files(self) -> list[Path]:
        """All histories recorded so far."""
        return [file for process in self.users for file in process.files]

    async def bring_back(self) -> int:
        """Have all jobs in the store, if there is a shelf; returns how many batches have gone there."""
        if self.shelf is None:
            return 0
        await self.shelf.bring_back()
        with self.store.client() as client:
            return sum(int(client.hget(key, "out") or 0) for key in client.scan_iter("deferd:*:shelf"))

    def output_of_shelf(self) -> dict[str, str]:
        """What the shelf has logged, if there is one."""
        return {} if self.shelf is None else {"the shelf": self.shelf.output()}

    def set_release(self, number: int, release: Release) -> None:
        """Let a service be of this release from its next start on."""
        _set_release(self.services[number], self.clock_files[number], release, self.previous)

    async def active_timer(self) -> bytes | None:
        """The name of the timer that holds the lock."""
        name: bytes | None = await asyncio.to_thread(self.store.command, "GET", KEYS.of_shard(0, "lock"))
        return name

    async def timer_holder(self) -> int | None:
        """The service whose timer holds the lock: the one that sends the lock holder's name to the store."""
        name = await self.active_timer()
        if name is None:
            return None
        watching = {
            asyncio.create_task(proxy.passes(name, LOCK_RENEWED_S)): number
            for number, proxy in enumerate(self.store_proxies)
        }
        try:
            for seen in asyncio.as_completed(watching):
                if await seen:
                    return next(number for task, number in watching.items() if task.done() and task.result())
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        return None


def live_leases(file: Path) -> int:
    """How many live leases the process that records into this file holds and has not ended."""
    lease_ends_ms: dict[str, int] = {}
    with file.open("rb") as opened:
        opened.seek(max(file.stat().st_size - _TAIL_BYTES, 0))
        lines = opened.read().split(b"\n")[:-1]
    for line in lines[1:] if len(lines) > 1 else []:
        entry = json.loads(line)
        for job in entry.get("jobs", ()):
            lease_ends_ms[job["job"]] = job["lease_end_ms"]
        if entry.get("kind") in {"finish", "release", "bury"}:
            lease_ends_ms.pop(entry["job"], None)
    return sum(lease_end_ms > time.time() * 1000 for lease_end_ms in lease_ends_ms.values())


def is_frozen(pid: int) -> bool:
    """Whether a process is stopped by SIGSTOP."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def set_clock(file: Path, shift_h: float) -> None:
    """Set the error of a service's clock, in hours."""
    new = file.with_suffix(".new")
    new.write_text(str(shift_h * 3600))
    new.replace(file)


@contextlib.contextmanager
def deployed(
    folder: Path, seed: int, releases: Sequence[Release], previous: Path | None = None, *, has_shelf: bool = False
) -> Iterator[Deployment]:
    """Start everything, each service of its release, and stop it at the end of the block."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_orphans(folder))
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
        targets = stack.enter_context(in_thread(PushTargets(folder / "targets.jsonl", seed)))
        resp_ports = [held_port(proxy) for proxy in store_proxies]
        services = [
            _service(
                folder / f"service-{number}",
                store_proxies[number],
                (
                    *flags[number],
                    *("--resp-port", str(resp_ports[number]), "--push-allow", f"http://127.0.0.1:{targets.port}"),
                ),
            )
            for number in range(SERVICES)
        ]
        shelf = (
            stack.enter_context(FaultyShelf(folder / "shelf", store.url, _on_shifted_clock(clock_files[0])))
            if has_shelf
            else None
        )
        for service, clock_file, release in zip(services, clock_files, releases, strict=True):
            _set_release(service, clock_file, release, previous)
            if shelf is not None:
                service.environment = {**service.environment, SOCKET_VARIABLE: str(shelf.socket)}
        with ThreadPoolExecutor() as at_once:
            for service in at_once.map(ServiceProcess.start, services):
                stack.push(service.__exit__)
        service_proxies = [stack.enter_context(tcp_proxy("127.0.0.1", service.port)) for service in services]
        resp_proxies = [stack.enter_context(tcp_proxy("127.0.0.1", port)) for port in resp_ports]
        targets.look_at([service.url for service in services])
        deployment = Deployment(
            folder,
            store,
            store_proxies,
            services,
            service_proxies,
            resp_proxies,
            targets,
            clock_files,
            keys,
            previous,
            shelf,
        )
        if deployment.has_groups:
            set_limits(services[0].url)
        began_s, urls = str(time.monotonic()), (*deployment.urls, *deployment.resp_urls)
        arguments = (str(seed), began_s, "groups" if deployment.has_groups else "", *urls)
        deployment.clients = [
            RecordingProcess("tests.faults.client_process", folder, f"clients-{number}", *arguments)
            for number in range(CLIENT_PROCESSES)
        ]
        deployment.worker = RecordingProcess("tests.faults.worker_process", folder, "worker", *deployment.urls)
        for process in deployment.users:
            process.start()
            stack.callback(process.kill)
        yield deployment


@contextlib.contextmanager
def _environment_of_clients(token: str) -> Iterator[None]:
    """Let clients in this process, and in those that it starts, send the key."""
    before = os.environ.get("DEFERD_KEY")
    os.environ["DEFERD_KEY"] = token
    try:
        yield
    finally:
        del os.environ["DEFERD_KEY"]
        if before is not None:
            os.environ["DEFERD_KEY"] = before


def _service(folder: Path, store_proxy: TcpProxy, more: Sequence[str]) -> ServiceProcess:
    store_url = as_user(f"redis://127.0.0.1:{store_proxy.port}")
    flags = ("--redis-url", store_url, "--dead-retention", str(DEAD_RETENTION_MS / 1000))
    return ServiceProcess(folder, *flags, *more, preloaded=True)


def _set_release(service: ServiceProcess, clock_file: Path, release: Release, previous: Path | None) -> None:
    service.release = None if release is Release.PRESENT else previous
    service.environment = _on_shifted_clock(clock_file)


def _on_shifted_clock(clock_file: Path) -> dict[str, str]:
    python_path = os.pathsep.join([str(_SHIFTED_CLOCK), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": python_path, "SHIFTED_CLOCK_FILE": str(clock_file)}


def clock_error_h(url: str) -> float:
    """The error of the clock of the service at `url` in hours, from the Date header of a response."""
    date = httpx.get(f"{url}/healthz", trust_env=False, timeout=5).headers["date"]
    return (parsedate_to_datetime(date).timestamp() - time.time()) / 3600

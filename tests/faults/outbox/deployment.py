"""What a run breaks: a database, a service with its own store, a proxy before the service, and relays between them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.acceptance.service_process import ServiceProcess
from tests.faults.orphans import no_orphans
from tests.faults.tcp_proxy import TcpProxy, tcp_proxy
from tests.postgresql import PostgresServer

RELAYS = 2
_STOP_S = 20.0
_LOCK_HOLDER = """
select activity.application_name from pg_locks join pg_stat_activity activity using (pid)
where locktype = 'advisory' and granted and activity.application_name like 'relay-%'
"""


class Relay:
    """`deferd relay` as a process of its own, which can be killed and started again."""

    def __init__(self, name: str, folder: Path, database_url: str, url: str) -> None:
        self.name = name
        self._folder = folder / name  # its working directory, by which `orphans` finds it
        self._folder.mkdir(exist_ok=True)
        self._log = folder / f"{name}.log"
        named_url = f"{database_url}?application_name={name}"
        self._command = [sys.executable, "-m", "deferd", "relay", named_url, "--url", url]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, or start it again."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DEFERD_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_STOP_S)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(_STOP_S)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP during the block."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def output(self) -> str:
        """Its log, over all starts."""
        return self._log.read_text()


@dataclass
class Deployment:
    """Everything that runs, by its role."""

    database: PostgresServer
    database_url: str
    service: ServiceProcess
    proxy: TcpProxy
    relays: list[Relay]

    async def working_relay(self) -> Relay | None:
        """The relay that holds the database's lock."""
        async with await psycopg.AsyncConnection.connect(self.database_url) as connection:
            found = await (await connection.execute(_LOCK_HOLDER)).fetchone()
        return next((relay for relay in self.relays if found and relay.name == found[0]), None)

    async def terminate_backends_of(self, relay: Relay) -> int:
        """Close all of a relay's connections to the database, from there; returns how many there were."""
        statement = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"
        async with await psycopg.AsyncConnection.connect(self.database_url) as connection:
            return len(await (await connection.execute(statement, (relay.name,))).fetchall())


@contextlib.contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Start everything, and stop it at the end of the block."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_orphans(folder))
        database = stack.enter_context(PostgresServer(durable=True))
        database_url = database.url()
        service = stack.enter_context(ServiceProcess(folder / "service", preloaded=True))
        service.wait_ready()
        proxy = stack.enter_context(tcp_proxy("127.0.0.1", service.port))
        url = f"http://127.0.0.1:{proxy.port}"
        relays = [Relay(f"relay-{number}", folder, database_url, url) for number in range(RELAYS)]
        init = [sys.executable, "-m", "deferd", "outbox", "init", database_url]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
        for relay in relays:
            relay.start()
            stack.callback(relay.kill)
        yield Deployment(database, database_url, service, proxy, relays)

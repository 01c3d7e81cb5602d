"""A real PostgreSQL for tests: one server for each test process, and an empty database for each test."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from tests.ports import held_port
from tests.programs import without
from tests.waiting import wait_until

START_S = 30.0
STOP_S = 10.0
_USER = "postgres"
_NOTHING_TO_LOSE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def programs() -> Path:
    """The folder with the programs of the newest PostgreSQL here; without one the test ends, and in CI fails.

    Debian has them beside the path of programs, one folder for each major version. The variable DEFERD_POSTGRESQL names
    the folder of another one, to run the tests with it.
    """
    if named := os.environ.get("DEFERD_POSTGRESQL"):
        return Path(named)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).parent if on_path else without("PostgreSQL")


class PostgresServer:
    """One PostgreSQL. Its port and data stay the same across stop, kill and start; leave it as a context manager.

    As root it runs as the user `postgres`, because PostgreSQL refuses root. `durable`: commits go to a disk; otherwise
    they stay in memory, which is faster, and outlast everything but a crash of the machine. `settings` are lines of
    postgresql.conf. `bin` are programs of another version.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, str | int] | None = None,
        bin: Path | None = None,
    ) -> None:
        self.bin = bin or programs()
        self.port = held_port(self)
        self.folder = Path(tempfile.mkdtemp(prefix="deferd-postgresql-", dir=None if durable else _memory()))
        self._settings = {**({} if durable else _NOTHING_TO_LOSE), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._templates: dict[str, str] = {}

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def url(self, database: str = "postgres") -> str:
        """The URL of a database."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        """Start it and wait until it takes connections."""
        data = self.folder / "data"
        if not data.exists():
            user, group = _account()
            if user is not None and group is not None:
                os.chown(self.folder, user, group)
            self._run("initdb", "-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_prepared_transactions": 10,
            "shared_buffers": "64MB",
            "logging_collector": "off",
            **self._settings,
        }
        user, group = _account()
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                user=user,
                group=group,
            )
        try:
            wait_until(self._responds, START_S, f"PostgreSQL in {self.folder} responds")
        except BaseException:
            self.kill()
            raise
        return self

    def _responds(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()[-2000:]}")
        try:
            with psycopg.connect(self.url(), connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        user, group = _account()
        ran = subprocess.run(
            [self.bin / program, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.folder,
            user=user,
            group=group,
        )
        assert ran.returncode == 0, ran.stderr

    def stop(self) -> None:
        """End it as an administrator does, without waiting for its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End all its processes at once, as a crash does."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(STOP_S)
        self._process = None

    def database(self, sql: str = "") -> str:
        """Make a database in which this SQL was run, and return its URL. The SQL runs once; others are copies."""
        with psycopg.connect(self.url(), autocommit=True) as admin:
            if sql not in self._templates:
                template = f"template_{next(self._numbers)}"
                admin.execute(f"CREATE DATABASE {template}")
                with psycopg.connect(self.url(template)) as made:
                    if sql:
                        made.execute(sql)
                self._templates[sql] = template
            name = f"test_{next(self._numbers)}"
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {self._templates[sql]}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database of `database`, with the connections to it."""
        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder)


def _memory() -> str | None:
    """A folder in memory, if this system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 (not predictable names)


def _account() -> tuple[int, int] | tuple[None, None]:
    """The user and the group of its processes, if they are others than those of this one."""
    if os.geteuid() != 0:
        return None, None
    account = pwd.getpwnam(_USER)
    return account.pw_uid, account.pw_gid

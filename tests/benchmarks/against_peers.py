"""deferd compared with task queues for Python: puts with a delay, and runs of a no-op, in jobs per second.

    python -m tests.benchmarks.against_peers [--jobs 10000] [--peers-dir DIR] [--only saq,rq]

saq, arq, rq, dramatiq (PyPI) and bullmq (npm), each with its fastest settings (see `tests/benchmarks/peers`), with one
process that puts and then one worker process, all on the same valkey-server without append-only file. deferd also has
one service process, and its client puts in batches over HTTP.

  enqueue   jobs a second that one process puts with a delay, while no worker runs.
  process   all jobs are due at the same instant, which the worker awaits; from then until the last one has run.

Peers are installed from PyPI and npm into environments below --peers-dir (default: a temporary folder, gone
afterwards), not into this one; what cannot be installed is reported as such. All listens on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.service_process import running_service
from tests.integration.store.store_servers import StoreServer

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 300.0
STEP_S = 180.0
START_S = 6.0
"""Time for a worker to start before the jobs are due, in addition to the time for reading ahead."""
READ_AHEAD_JOBS_PER_S = 2000
TRIAL_SHARE = 10


class PeerFailed(Exception):
    """A peer could not be installed or did not finish; the message says why."""


@dataclass(frozen=True)
class Peer:
    """A task queue and how to install it."""

    name: str
    packages: tuple[str, ...]
    npm: bool = False

    def install(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Install it if missing; returns the command that runs its program, and its environment."""
        home = folder / self.name
        if self.npm:
            if not (home / "node_modules").is_dir():
                home.mkdir(parents=True, exist_ok=True)
                _run_installer(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(home), *self.packages])
            program = Path(__file__).parent / "peers" / f"{self.name}_peer.cjs"
            return ["node", str(program)], {"NODE_PATH": str(home / "node_modules")}
        python = home / "bin" / "python"
        if not (home / "installed").exists():
            venv.create(home, with_pip=True, clear=True)
            _run_installer([str(python), "-m", "pip", "install", "--quiet", *self.packages])
            (home / "installed").touch()
        return [str(python), "-m", f"tests.benchmarks.peers.{self.name}_peer"], {"PYTHONPATH": str(ROOT)}


PEERS = (
    Peer("saq", ("saq[redis]", "hiredis", "orjson", "typing_extensions", "uvloop")),
    Peer("arq", ("arq", "hiredis", "uvloop")),
    Peer("rq", ("rq", "hiredis")),
    Peer("dramatiq", ("dramatiq[redis]", "hiredis")),
    Peer("bullmq", ("bullmq", "ioredis"), npm=True),
)


@dataclass(frozen=True)
class Rates:
    """Jobs per second."""

    enqueue: float
    process: float


def _run_installer(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise PeerFailed(f"could not be installed: {command[0]} is missing")
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"could not be installed within {INSTALL_S:.0f} s") from None
    if run.returncode != 0:
        raise PeerFailed(f"could not be installed: {run.stdout.strip()[-300:]}")


class Program:
    """A running program of a peer, which reports facts as lines of JSON; killed at the end with all its processes."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._facts: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._facts.put(json.loads(line))
        self._facts.put(None)

    def wait_for(self, fact: str) -> Any:
        """Wait for a fact. Raises PeerFailed when the program ends first, or after 180 s."""
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                facts = self._facts.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise PeerFailed(f"did not report {fact!r} within {STEP_S:.0f} s") from None
            if facts is None:
                raise PeerFailed(f"ended before {fact!r}")
            if fact in facts:
                return facts[fact]

    def end(self) -> None:
        """Send SIGKILL to it and the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait(10)


@contextlib.contextmanager
def running(command: Sequence[str], environment: dict[str, str], step: str, *values: object) -> Iterator[Program]:
    """The program of a peer, at one step; `values` are what `turn.take` expects."""
    program = Program([*command, step, *map(str, values)], environment)
    try:
        yield program
    finally:
        program.end()


def measure(command: Sequence[str], url: str, store: StoreServer, jobs: int, environment: dict[str, str]) -> Rates:
    """Put all jobs, then run them; a trial with fewer jobs determines the delay."""

    def enqueue(count: int, due: float) -> float:
        with running(command, environment, "enqueue", url, count, due) as program:
            return float(program.wait_for("seconds"))

    trial = max(jobs // TRIAL_SHARE, 1)
    trial_s = enqueue(trial, float(int(time.time()) + 3600))
    store.command("FLUSHALL")
    due = float(int(time.time() + 1.5 * trial_s * jobs / trial + jobs / READ_AHEAD_JOBS_PER_S + START_S))
    enqueue_s = enqueue(jobs, due)
    with running(command, environment, "work", url, jobs, due) as program:
        program.wait_for("ready")
        if time.time() > due:
            raise PeerFailed("had not put its jobs, or not started its worker, when the jobs were due")
        process_s = float(program.wait_for("ended_at")) - due
    return Rates(jobs / enqueue_s, jobs / process_s)


def measure_deferd(folder: Path, jobs: int) -> Rates:
    """The same with deferd, on a store of the same kind."""
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT / "app"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.benchmarks.peers.deferd_peer"]
    with (
        StoreServer(folder / "store") as store,
        running_service("--redis-url", store.url, data_dir=folder / "service") as service,
    ):
        return measure(command, service.url, store, jobs, environment)


def measure_peer(peer: Peer, peers_dir: Path, folder: Path, jobs: int) -> Rates:
    """Install a peer and measure it."""
    command, environment = peer.install(peers_dir)
    with StoreServer(folder / "store") as store:
        return measure(command, store.url, store, jobs, environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--peers-dir", type=Path, help="directory where peers are installed and kept")
    parser.add_argument("--only", help="names of peers, separated by commas")
    options = parser.parse_args()
    wanted = [peer for peer in PEERS if options.only is None or peer.name in options.only.split(",")]
    print(f"{options.jobs} delayed no-ops, jobs/s; in brackets: how many times faster deferd is")
    with contextlib.ExitStack() as stack:
        peers_dir = options.peers_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        with tempfile.TemporaryDirectory() as folder:
            deferd = measure_deferd(Path(folder), options.jobs)
        print(f"  {'deferd':10}enqueue {deferd.enqueue:8.0f}           process {deferd.process:8.0f}", flush=True)
        for peer in wanted:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    rates = measure_peer(peer, peers_dir.resolve(), Path(folder), options.jobs)
            except PeerFailed as failure:
                print(f"  {peer.name:10}{failure}", flush=True)
                continue
            print(
                f"  {peer.name:10}enqueue {rates.enqueue:8.0f} ({deferd.enqueue / rates.enqueue:6.1f}x) "
                f" process {rates.process:8.0f} ({deferd.process / rates.process:6.1f}x)",
                flush=True,
            )


if __name__ == "__main__":
    main()

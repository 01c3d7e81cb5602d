"""Kill what a run leaves behind, however it ends: `python -m tests.faults.orphans FOLDER`, with its input held open.

When its input ends, because the run has ended or was killed, it kills all of the run's processes in the folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.preloaded import PRELOADER

SHELF_MODULE = "deferd.server.shelf_process"
OURS = {
    *("deferd", "deferd.server.server_process", SHELF_MODULE),
    *("tests.faults.client_process", "tests.faults.worker_process", "tests.acceptance.worker.chaos_worker"),
}
"""Words in the command line of a run's processes; a store is recognised by its program's name."""
POLL_S = 0.3


@contextlib.contextmanager
def no_orphans(folder: Path) -> Iterator[None]:
    """Kill all of the run's processes in `folder`, an absolute path, at the end of the block or of this process."""
    # The end of the block closes its input and waits for it.
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C must not stop it
    ):
        yield


def processes_in(folder: str) -> list[int]:
    """Ids of a run's processes that have a path in the folder in their command line, or as current directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                places = [*command, str((entry / "cwd").readlink())]
                if is_fork := any(word.endswith(PRELOADER) for word in command):
                    places = [f"{link.readlink()}/" for link in (entry / "fd").iterdir()]
                is_ours = is_fork or OURS.intersection(command) or "valkey-server" in command[0]
                if is_ours and any(place.startswith(f"{folder}/") for place in places):
                    found.append(int(entry.name))
    return found


def main() -> None:
    """Wait for the end of the input, then kill."""
    folder = sys.argv[1]
    sys.stdin.buffer.read()
    while found := processes_in(folder):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)  # one of them may just have started another


if __name__ == "__main__":
    main()

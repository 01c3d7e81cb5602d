"""Nothing of a run outlives it, however that ends: `python -m tests.faults.orphans FOLDER`, its input held open.

When its input ends, because the run has ended or was killed, it kills all processes that work below the folder.
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

OURS = {
    *("deferd", "deferd.server.server_process"),
    *("tests.faults.client_process", "tests.faults.worker_process", "tests.acceptance.chaos_worker"),
}
"""By these words in a command line a process is told to be of a run; a store by its program's name."""
LOOK_AGAIN_S = 0.3


@contextlib.contextmanager
def none_outlives(folder: Path) -> Iterator[None]:
    """From the end of the block, or of this process, on nothing works below `folder`, an absolute path."""
    # Leaving the block closes its input and waits for it.
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # a ctrl-C is not for it
    ):
        yield


def works_below(folder: str) -> list[int]:
    """Ids of a run's processes with something of the folder in their command line, or as current directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                places = [*command, str((entry / "cwd").readlink())]
                is_ours = OURS.intersection(command) or "valkey-server" in command[0]
                if is_ours and any(place.startswith(f"{folder}/") for place in places):
                    found.append(int(entry.name))
    return found


def main() -> None:
    """Wait for the end of the input, and then kill."""
    folder = sys.argv[1]
    sys.stdin.buffer.read()
    while found := works_below(folder):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_AGAIN_S)  # one may just have been starting another


if __name__ == "__main__":
    main()

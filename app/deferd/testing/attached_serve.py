"""``python -m deferd.testing.attached_serve ...`` is `deferd serve ...` that ends with the process that started it.

Its standard input is a pipe from that process, which closes when that process ends, even by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from deferd.cli import main as cli


def _stop_at_end_of_input() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would be held at interpreter exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_at_end_of_input, daemon=True, name="stdin-watch").start()
    sys.exit(cli.main(["serve", *sys.argv[1:]]))

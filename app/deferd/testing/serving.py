"""``python -m deferd.testing.serving ...`` is `deferd serve ...` that ends when the process that started it is gone.

The other end of its standard input belongs to that process; when it dies, in whatever way, the input ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from deferd.cli import main as cli


def _end_with_starter() -> None:
    while os.read(0, 1024):  # and not sys.stdin, whose lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_starter, daemon=True, name="starter-watch").start()
    sys.exit(cli.main(["serve", *sys.argv[1:]]))

"""Shift `time.time` of a service under test by the seconds in a file. `time.monotonic` is not changed.

Python imports this at its start when the directory is on PYTHONPATH. SHIFTED_CLOCK_FILE names the file. If there is a
SHELF_SOCKET, the service uses the shelf that serves there. The shelf's process is started like this as well. It looks
often for jobs to move, and they may leave the store soon after calls have asked for them: otherwise hardly one would.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

_file = Path(os.environ["SHIFTED_CLOCK_FILE"])
_real_time, _real_time_ns = time.time, time.time_ns
_SHORT_S = {"HELD_S": 0.5, "KEPT_S": 2.0, "PAUSE_S": 0.05, "LONGEST_REST_S": 0.1}
"""Of `deferd.engine.shelf` and `deferd.shelf.shelving`."""


def _shift_s() -> float:
    return float(_file.read_text())


def _shifted_time() -> float:
    return _real_time() + _shift_s()


def _shifted_time_ns() -> int:
    return _real_time_ns() + int(_shift_s() * 1e9)


time.time, time.time_ns = _shifted_time, _shifted_time_ns

if "deferd.contract.clocks" in sys.modules:  # in a fork, which has imported it before
    sys.modules["deferd.contract.clocks"]._CLOCKS = (time.monotonic, time.time)  # type: ignore[attr-defined]

if "SHELF_SOCKET" in os.environ:
    http_server: Any = importlib.import_module("deferd.server.http_server")
    importlib.import_module("deferd.shelf.process")
    for module in [
        module for name, module in sys.modules.items() if name.startswith(("deferd.engine.", "deferd.shelf."))
    ]:
        for name, seconds in _SHORT_S.items():
            if hasattr(module, name):
                setattr(module, name, seconds)

    _create_app = http_server.create_app

    def _create_app_with_shelf(*args: Any, **more: Any) -> Any:
        return _create_app(*args, **{**more, "shelf_socket": Path(os.environ["SHELF_SOCKET"])})

    http_server.create_app = _create_app_with_shelf

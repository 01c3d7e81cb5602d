"""Shift `time.time` of a service under test by the seconds in a file. `time.monotonic` is not changed.

Python imports this at its start when the directory is on PYTHONPATH. SHIFTED_CLOCK_FILE names the file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_file = Path(os.environ["SHIFTED_CLOCK_FILE"])
_real_time, _real_time_ns = time.time, time.time_ns


def _shift_s() -> float:
    return float(_file.read_text())


def _shifted_time() -> float:
    return _real_time() + _shift_s()


def _shifted_time_ns() -> int:
    return _real_time_ns() + int(_shift_s() * 1e9)


time.time, time.time_ns = _shifted_time, _shifted_time_ns

if "deferd.contract.clocks" in sys.modules:  # in a fork, which has imported it before
    sys.modules["deferd.contract.clocks"]._CLOCKS = (time.monotonic, time.time)  # type: ignore[attr-defined]

"""How a child process ended, in words."""

from __future__ import annotations

import signal


def end_of(code: int | None) -> str:
    """For the return code of a process: ``exit code 1``, or the signal that ended it."""
    if code is None or code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        return f"signal {-code}: it was killed, perhaps because memory ran out"
    return f"signal {-code}"

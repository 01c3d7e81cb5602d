"""Which memory allocator the embedded store's process uses on Linux.

The store's binary uses libc's malloc, which takes up to half of its CPU time. So the store gets jemalloc, with which
Valkey is developed, where the system has it, and a larger cache of glibc's malloc elsewhere. Both are set by variables
of the store's environment. What the user has set stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping

JEMALLOC = "libjemalloc.so.2"
"""Searched by the dynamic linker, where the system keeps its libraries."""
JEMALLOC_SETTINGS = "background_thread:true"
"""Return memory to the system also while the store is idle; Valkey sets the same in its own jemalloc."""
GLIBC_SETTINGS = "glibc.malloc.tcache_count=2000"
"""Freed pieces of one size that are reused at once: as many as a script call on a batch frees. By default 7; with 65535
the store took a third more memory once all its jobs had been replaced."""
OLDEST_GLIBC = (2, 30)
"""Before, a count above 127 overflowed."""
_TRIAL_S = 5.0


async def allocator_environment(binary: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables to add to `environment` (default: this process's) for a store started from `binary`.

    Empty on macOS. A variable that `environment` has, even an empty one, is left out: `LD_PRELOAD=` turns jemalloc off.
    Takes about 10 ms, as jemalloc is tried first.
    """
    environment = os.environ if environment is None else environment
    if not sys.platform.startswith("linux"):
        return {}
    for_jemalloc = _not_in(environment, {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": JEMALLOC_SETTINGS})
    if "LD_PRELOAD" in for_jemalloc and await _runs_with(for_jemalloc, binary, environment):
        return for_jemalloc
    if _glibc_version() >= OLDEST_GLIBC:
        return _not_in(environment, {"GLIBC_TUNABLES": GLIBC_SETTINGS})
    return {}


def _not_in(environment: Mapping[str, str], variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in environment}


async def _runs_with(variables: Mapping[str, str], binary: str, environment: Mapping[str, str]) -> bool:
    """Whether `binary` runs with the variables, and neither it nor the dynamic linker complains.

    The linker complains about a library that is missing or for another machine, and goes on; jemalloc, about memory
    pages of a size that it was not built for, and about settings that it does not know (version 4).
    """
    trial = await asyncio.create_subprocess_exec(
        binary,
        "--version",
        env={**environment, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, complaints = await asyncio.wait_for(trial.communicate(), _TRIAL_S)
    except TimeoutError:
        return False
    finally:
        if trial.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                trial.kill()
            await trial.wait()
    return trial.returncode == 0 and not complaints


def _glibc_version() -> tuple[int, ...]:
    """The version of glibc; (0,) for another libc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(map(int, version.split("."))) if name == "glibc" else (0,)
    except (OSError, ValueError):  # this libc does not know the name
        return (0,)

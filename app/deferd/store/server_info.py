"""Read a server's INFO: its name, its version, whether it is Valkey or Redis, and how far it has loaded its data."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from redis.exceptions import BusyLoadingError, RedisError

_log = logging.getLogger("deferd.store")
OLDEST_VERSION = (7, 0)
"""The first that has functions. Valkey 7.2 is compatible with Redis 7.2."""
_OWN_VERSIONS = {"redis_version", "valkey_version", "gcc_version", "rlec_version"}
"""`rlec_version` is Redis Enterprise."""
_OWN_SIGNS = ("valkey_version", "redis_git_sha1", "redis_git_dirty", "redis_build_id", "atomicvar_api", "rlec_version")
_OTHER_EXECUTABLES = re.compile(r"(keydb|dragonfly|kvrocks|garnet|pika|redict|tendis|ssdb)", re.IGNORECASE)


def server_version(info: Mapping[str, Any]) -> tuple[int, int]:
    """The Redis version that the server is compatible with, from INFO: major and minor; (0, 0) when it is missing."""
    found = re.match(r"(\d+)\.(\d+)", str(info.get("redis_version", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def server_name(info: Mapping[str, Any]) -> str:
    """Name and version of the server, such as ``valkey 9.1.2`` or ``redis 7.0.15``."""
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info.get('redis_version', '(unknown version)')}"


def unsupported_reason(info: Mapping[str, Any], server_section: Mapping[str, Any]) -> str | None:
    """Why a server does not count as Valkey or Redis, or None when it does: from all of INFO, and its section Server.

    Other sections may hold versions of modules. The rule accepts a managed Valkey or Redis that hides some fields:

    - A server is another product when INFO names one: a field `<name>_version` in the section Server (Kvrocks,
      Dragonfly, Garnet, Redict, Upstash, Pika ... have one beside `redis_version`), a `server_name` other than valkey
      or redis, KeyDB's own section, or an executable with another product's name.
    - Otherwise one sign is enough: Valkey's `valkey_version`, or one of the build fields that Redis has always had.
      Managed services (ElastiCache, MemoryDB, Azure, Memorystore, Redis Cloud) show those with zeros.
    """
    for field, value in server_section.items():
        if field.endswith("_version") and field not in _OWN_VERSIONS:
            return f"it is {field.removesuffix('_version')} {value} (INFO has {field})"
    name = str(server_section.get("server_name", "redis")).lower()
    if name not in {"valkey", "redis"}:
        return f"it is {name} (INFO has server_name:{name})"
    if "mvcc_depth" in info:
        return "it is keydb (INFO has a section KeyDB)"
    if other := _OTHER_EXECUTABLES.search(str(server_section.get("executable", "")).rpartition("/")[2]):
        return f"it is {other[1].lower()} (INFO has executable:{server_section['executable']})"
    if not any(sign in server_section for sign in _OWN_SIGNS):
        return "INFO has none of " + ", ".join(_OWN_SIGNS)
    return None


def fields_of_info(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
    return {name: value for name, _, value in lines}


def replicas_of_info(info: Mapping[str, Any]) -> int:
    """How many replicas are connected and in step."""
    return sum(
        name.startswith("slave") and name[5:].isdecimal() and "state=online" in value for name, value in info.items()
    )


REPORT_INTERVAL_S = 5.0
"""How often the progress of a load is logged."""
_POLL_S = 0.25
_KEPT_S = 0.5
_LONGEST_RETRY_S = 10
_MIB = 1024 * 1024


class LoadProgress(NamedTuple):
    """How far a store has loaded its data: bytes loaded, bytes in all, and the seconds left, None while not known.

    Until it has loaded all of it, it runs only a few commands, such as INFO.
    """

    loaded: int
    total: int
    left_s: int | None

    @property
    def retry_after_s(self) -> int:
        """When to try again: before the estimated end, as the rate may change, but not every second of a long load."""
        return 1 if self.left_s is None else min(max(self.left_s // 2, 1), _LONGEST_RETRY_S)

    def __str__(self) -> str:
        """To follow `the store`."""
        percent = 100 * self.loaded / self.total if self.total else 0
        text = f"is loading its data: {percent:.0f} % of {self.total / _MIB:,.0f} MiB"
        return text if self.left_s is None else f"{text}, about {self.left_s} s left"


def progress_of(info: Mapping[str, Any]) -> LoadProgress | None:
    """The progress in the section Persistence of INFO; None when the store is not loading."""
    if not int(info.get("loading", 0)):
        return None
    loaded, total = int(info.get("loading_loaded_bytes", 0)), int(info.get("loading_total_bytes", 0))
    left_s = info.get("loading_eta_seconds") if loaded else None
    return LoadProgress(loaded, total, None if left_s is None else max(int(left_s), 0))


class LoadWatch:
    """Reads the progress of a load with `info`, which sends INFO; reads within half a second share one value."""

    def __init__(self, info: Callable[[str], Awaitable[Mapping[str, Any]]]) -> None:
        self._info = info
        self._progress: LoadProgress | None = None
        self._fresh_until_s = 0.0

    async def progress(self) -> LoadProgress | None:
        """The progress; None when the store is not loading, or does not tell."""
        clock = asyncio.get_running_loop().time
        if clock() >= self._fresh_until_s:
            self._fresh_until_s = clock() + _KEPT_S
            try:
                self._progress = progress_of(await self._info("persistence"))
            except (RedisError, OSError, ValueError):
                self._progress = None
        return self._progress


async def wait_until_loaded(ping: Callable[[], Awaitable[object]], watch: LoadWatch, place: str) -> None:
    """Wait, without a time limit, as long as a store that can be reached is loading its data; progress is logged.

    Other errors are for the caller's next call to find.
    """
    clock = asyncio.get_running_loop().time
    report_at_s = clock()
    while True:
        try:
            await ping()
        except BusyLoadingError:
            pass
        except (RedisError, OSError):
            return
        else:
            return
        if clock() >= report_at_s:
            report_at_s = clock() + REPORT_INTERVAL_S
            _log.info("%s %s", place, await watch.progress() or "is loading its data")
        await asyncio.sleep(_POLL_S)

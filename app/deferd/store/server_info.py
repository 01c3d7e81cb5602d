"""Read a server's INFO: its name, its version, and whether it is Valkey or Redis.

The rule accepts a managed Valkey or Redis that hides some fields:

- A server is another product when INFO names one: a field `<name>_version` in the section Server (Kvrocks, Dragonfly,
  Garnet, Redict, Upstash, Pika ... have one beside `redis_version`), a `server_name` other than valkey or redis,
  KeyDB's own section, or an executable with another product's name.
- Otherwise one sign is enough: Valkey's `valkey_version`, or one of the build fields that Redis has always had. Managed
  services (ElastiCache, MemoryDB, Azure, Memorystore, Redis Cloud) show those with zeros.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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

    Other sections may hold versions of modules.
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

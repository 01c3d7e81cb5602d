"""The self-test of a store: whether its user may do what deferd does there, and whether it does what deferd relies on.

`lua/probe.lua` runs every command of the scripts; the few commands that are sent by themselves are tried here.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import NamedTuple

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.acl import UNNAMED, missing_right
from deferd.store.connection import Store

_SCRIPT = (files("deferd.store") / "lua" / "probe.lua").read_text()
_SCRATCH = ("zset", "hash", "string", "renamed")
_CHANNEL = "deferd:probe"
_UNKNOWN_SCRIPT = "0" * 40
_TAGS_TRIED = 20_000
"""Enough to meet every primary that has more than a handful of the 16,384 slots."""
_AWAY = (RedisConnectionError, RedisTimeoutError, OSError)


class Probed(NamedTuple):
    """What a store was found to lack: rights, as `deferd.store.acl` writes them, and behaviour."""

    missing: tuple[str, ...]
    wrong: tuple[str, ...]


async def probe(store: Store, *, every: bool = True) -> Probed:
    """Try the store; in a cluster, every primary that has slots. It leaves nothing there.

    Without `every`, primaries that cannot be reached are passed over as long as one can.

    Raises redis-py's errors when the store is away, or refuses for another reason than a missing right.
    """
    results = await asyncio.gather(*(_probe_at(store, tag) for tag in _tags(store)), return_exceptions=True)
    probed = [result for result in results if not isinstance(result, BaseException)]
    for error in results:
        if isinstance(error, BaseException) and (every or not probed or not isinstance(error, _AWAY)):
            raise error
    missing = {right for result in probed for right in result.missing}
    wrong = {fault for result in probed for fault in result.wrong}
    return Probed(tuple(sorted(missing)), tuple(sorted(wrong)))


async def _probe_at(store: Store, tag: str) -> Probed:
    keys = [f"deferd:{{{tag}}}:probe/{name}" for name in _SCRATCH]
    replies = await asyncio.gather(
        store.call("EVAL", _SCRIPT, len(keys), *keys, _CHANNEL),
        store.call("EVALSHA", _UNKNOWN_SCRIPT, 1, keys[0]),
        store.call("PING"),
        return_exceptions=True,
    )
    missing: set[str] = set()
    for command, reply in zip(("eval", "evalsha", "ping"), replies, strict=True):
        if isinstance(reply, NoScriptError) or not isinstance(reply, BaseException):
            continue
        if command == "ping" and store.cluster and isinstance(reply, _AWAY):
            continue  # a cluster client sends it to any node
        if not isinstance(reply, RedisError) or (right := missing_right(reply)) is None:
            raise reply
        missing.add(right or f"+{command}")
    if isinstance(replies[0], BaseException):
        return Probed(tuple(missing), ())
    failed, wrong = replies[0]
    faults = [fault.decode(errors="replace") for fault in wrong]
    for command, text in zip(failed[::2], failed[1::2], strict=True):
        error = _error(text.decode(errors="replace"))
        right = missing_right(error)
        if right is not None:
            missing.add(f"+{command.decode().lower()}" if right == UNNAMED else right)
        elif "unknown" in str(error).lower():
            faults.append(f"it has no command {command.decode()}")
        elif str(error).startswith(("ERR", "WRONGTYPE")):
            faults.append(f"{command.decode()} fails: {error}")
        else:  # READONLY, OOM, MISCONF and the like: it cannot do it now
            raise error
    return Probed(tuple(missing), tuple(faults))


def _error(text: str) -> ResponseError:
    return NoPermissionError(text) if text.startswith("NOPERM") else ResponseError(text)


def _tags(store: Store) -> list[str]:
    """Hash tags whose keys are on all servers that hold keys: for each primary with slots one."""
    client = store.client
    if not isinstance(client, RedisCluster):
        return ["0"]
    primary_of = {slot: nodes[0].name for slot, nodes in client.nodes_manager.slots_cache.items() if nodes}
    wanted, tags = set(primary_of.values()), []
    for tag in map(str, range(_TAGS_TRIED)):
        if not wanted:
            break
        name = primary_of.get(client.keyslot(f"{{{tag}}}"))
        if name in wanted:
            wanted.discard(name)
            tags.append(tag)
    return tags or ["0"]

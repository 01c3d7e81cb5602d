"""The self-test of a store: whether its user has the permissions that deferd needs, and its commands work as expected.

`lua/self_test.lua` runs every command that scripts use. The commands that deferd sends outside scripts are tried here.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import NamedTuple

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.acl import UNNAMED, missing_permission
from deferd.store.connection import Store

_SCRIPT = (files("deferd.store") / "lua" / "self_test.lua").read_text(encoding="utf-8")
_SCRATCH = ("zset", "hash", "string", "renamed")
_CHANNEL = "deferd:probe"
_UNKNOWN = "deferd_probe"
"""No function and no library has this name."""
_CANNOT_SUCCEED = {"fcall", "function|load", "function|delete"}
_TAGS_TRIED = 20_000
"""Enough to find a tag for every primary that has more than a handful of the 16,384 slots."""
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)


class SelfTestResult(NamedTuple):
    """Permissions that the store's user lacks, as rules of `deferd.store.acl`, and commands that work differently."""

    missing: tuple[str, ...]
    wrong: tuple[str, ...]


async def run_self_test(store: Store, *, every: bool = True) -> SelfTestResult:
    """Test the store; in a cluster, every primary that has slots. Leaves no keys behind.

    Without `every`, primaries that cannot be reached are skipped as long as one can be.

    Raises redis-py's errors when the store cannot be reached, or fails for another reason than a missing permission.
    """
    results = await asyncio.gather(*(_test_at(store, tag) for tag in _tags(store)), return_exceptions=True)
    completed = [result for result in results if not isinstance(result, BaseException)]
    for error in results:
        if isinstance(error, BaseException) and (every or not completed or not isinstance(error, _UNREACHABLE)):
            raise error
    missing = {rule for result in completed for rule in result.missing}
    wrong = {text for result in completed for text in result.wrong}
    return SelfTestResult(tuple(sorted(missing)), tuple(sorted(wrong)))


async def _test_at(store: Store, tag: str) -> SelfTestResult:
    keys = [f"deferd:{{{tag}}}:probe/{name}" for name in _SCRATCH]
    server = store.calls_of(keys[0]).server
    replies = await asyncio.gather(
        store.call("EVAL", _SCRIPT, len(keys), *keys, _CHANNEL),
        store.call("PING"),
        store.call("FCALL", _UNKNOWN, 1, keys[0]),
        server.call("FUNCTION", "LOAD", ""),
        server.call("FUNCTION", "LIST", "LIBRARYNAME", _UNKNOWN),
        server.call("FUNCTION", "DELETE", _UNKNOWN),
        return_exceptions=True,
    )
    commands = ("eval", "ping", "fcall", "function|load", "function|list", "function|delete")
    missing: set[str] = set()
    differences: list[str] = []
    for command, reply in zip(commands, replies, strict=True):
        if not isinstance(reply, BaseException):
            continue
        if command == "ping" and store.cluster and isinstance(reply, _UNREACHABLE):
            continue  # a cluster client sends it to any node
        rule = missing_permission(reply) if isinstance(reply, RedisError) else None
        if rule is not None:
            missing.add(rule or f"+{command}")
        elif command not in _CANNOT_SUCCEED or not isinstance(reply, ResponseError):
            raise reply
        elif "unknown command" in str(reply).lower():
            differences.append(f"it has no command {command.upper()}")
    if isinstance(replies[0], BaseException):
        return SelfTestResult(tuple(missing), ())
    failed, wrong = replies[0]
    differences += [text.decode(errors="replace") for text in wrong]
    for command, text in zip(failed[::2], failed[1::2], strict=True):
        error = _error(text.decode(errors="replace"))
        rule = missing_permission(error)
        if rule is not None:
            missing.add(f"+{command.decode().lower()}" if rule == UNNAMED else rule)
        elif "unknown" in str(error).lower():
            differences.append(f"it has no command {command.decode()}")
        elif str(error).startswith(("ERR", "WRONGTYPE")):
            differences.append(f"{command.decode()} fails: {error}")
        else:  # READONLY, OOM, MISCONF and others: it cannot run the command now
            raise error
    return SelfTestResult(tuple(missing), tuple(differences))


def _error(text: str) -> ResponseError:
    return NoPermissionError(text) if text.startswith("NOPERM") else ResponseError(text)


def _tags(store: Store) -> list[str]:
    """One hash tag for each primary that has slots."""
    client = store.client
    if not isinstance(client, RedisCluster):
        return ["0"]
    primary_of = {slot: nodes[0].name for slot, nodes in client.nodes_manager.slots_cache.items() if nodes}
    untagged, tags = set(primary_of.values()), []
    for tag in map(str, range(_TAGS_TRIED)):
        if not untagged:
            break
        name = primary_of.get(client.keyslot(f"{{{tag}}}"))
        if name in untagged:
            untagged.discard(name)
            tags.append(tag)
    return tags or ["0"]

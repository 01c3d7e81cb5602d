"""Check that a store can be trusted with jobs, once, before the service starts to serve."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from importlib.resources import files
from typing import Any, NamedTuple, cast

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store import shard_guard
from deferd.store.connection import Store
from deferd.store.server_info import OLDEST_VERSION, server_name, server_version, unsupported_reason

_log = logging.getLogger("deferd.store")
_READY_CHANNEL = "deferd:ready"
_NODES_TRIED = 10
"""How many random nodes of a cluster are tried for a subscription until one responds."""

Info = Mapping[str, Any]


class StoreRefused(Exception):
    """The store cannot be used. The message is one sentence that says why, without secrets."""


async def check(store: Store, *, shards: int, exclusive: bool = False, unsupported: bool = False) -> None:
    """Check that the store can be reached, passes the self-test, does not evict jobs, and has `shards` shards
    and the format of this revision.

    The first service on a store writes both into it, after a wait (see `deferd.store.shard_guard`)
    unless the store is `exclusive` to this service. With `unsupported` a server that is neither Valkey nor Redis only
    gets a warning; it must still pass the self-test. In a cluster every primary that can be reached is checked. On
    success `store.server` holds the server's name and version.

    Raises:
        StoreRefused: a check failed.
    """
    place = f"the store at {store.description}"
    try:
        missing: set[str] = set()
        try:
            for info, server_section in await _info_of_all(store):
                store.server = _check_node(info, server_section, store, unsupported=unsupported)
        except NoPermissionError:
            missing.add("+info")
        result = await run_self_test(store, every=not store.cluster)
        missing.update(result.missing, await _missing_for_subscription(store))
        if missing:
            raise StoreRefused(f"{place} cannot be used: {permissions_message(missing)}")
        if result.wrong:
            raise StoreRefused(
                f"{place} does not behave like Valkey and Redis, so jobs would be lost: {'; '.join(result.wrong)}"
            )
        wait_s = 0.0 if exclusive else shard_guard.FIRST_WRITE_DELAY_S
        try:
            stored = await shard_guard.read_or_initialize(store.call, shards, wait_s=wait_s)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            if not store.cluster:
                raise
            raise StoreRefused(
                f"the node of {place} that holds the key {shard_guard.SHARDS_KEY} cannot be reached, so --shards "
                f"{shards} cannot be verified: start it again, or let its replica take over"
            ) from exc
        if (reason := shard_guard.mismatch(stored or "nothing", shards)) is not None:
            raise StoreRefused(f"{place} {reason}")
    except AuthenticationError as exc:
        raise StoreRefused(f"{place} refused the login: {exc}") from exc
    except NoPermissionError as exc:
        raise StoreRefused(f"{place} denied permission: {exc}") from exc
    except BusyLoadingError as exc:
        raise StoreRefused(f"{place} is still loading its data: try again when it has finished") from exc
    except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
        raise StoreRefused(f"{place} cannot be reached: {exc}") from exc
    except RedisError as exc:
        raise StoreRefused(f"{place} returned an error: {exc}") from exc


async def _missing_for_subscription(store: Store) -> set[str]:
    """The permissions that a subscription lacks. In a cluster any node will do; those that are down are skipped."""
    for _ in range(_NODES_TRIED if store.cluster else 0):
        try:
            return await _missing_at_one_node(store)
        except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
            _log.debug("a node of the store cannot be reached for a subscription: %s", exc)
    return await _missing_at_one_node(store)


async def _missing_at_one_node(store: Store) -> set[str]:
    async with aclosing(store.pubsub()) as pubsub:
        try:
            await pubsub.subscribe(_READY_CHANNEL)
            await pubsub.get_message(timeout=None)
        except NoPermissionError as exc:
            return {missing_permission(exc) or CHANNELS_RULE}
    return set()


async def _info_of_all(store: Store) -> list[tuple[Info, Info]]:
    """INFO, and its section Server, of the server or of each primary of the cluster.

    CONFIG shows more, but is often forbidden.
    """
    if not isinstance(store.client, RedisCluster):
        return [(cast("Info", await store.client.info()), cast("Info", await store.client.info("server")))]
    await store.client.initialize()
    nodes = store.client.get_primaries()
    replies = await asyncio.gather(*(_info_of(store.client, node) for node in nodes), return_exceptions=True)
    found = []
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, (RedisConnectionError, RedisTimeoutError)):  # only its own topics are unavailable
            _log.warning("node %s of the store cannot be reached; its topics are unavailable: %s", node.name, reply)
            error = reply
        elif isinstance(reply, BaseException):
            raise reply
        else:
            found.append(reply)
    if not found:
        raise error
    return found


async def _info_of(client: RedisCluster, node: ClusterNode) -> tuple[Info, Info]:
    whole = await client.info(target_nodes=node)
    return cast("Info", whole), cast("Info", await client.info("server", target_nodes=node))


def _check_node(info: Info, server_section: Info, store: Store, *, unsupported: bool) -> str:
    name = server_name(info)
    place = f"the store at {store.description}"
    if (reason := unsupported_reason(info, server_section)) is not None:
        if not unsupported:
            raise StoreRefused(
                f"{place} is not Valkey or Redis: {reason}; deferd relies on how those run scripts, and jobs have been "
                "lost on other servers: use Valkey or Redis, or accept the risk with --unsupported-store "
                "(DEFERD_UNSUPPORTED_STORE=true)"
            )
        _log.warning("%s is not Valkey or Redis: %s; it is used at your own risk, and may lose jobs", place, reason)
    if server_version(info) < OLDEST_VERSION:
        raise StoreRefused(
            f"{place} is {name}, which is too old: deferd needs Redis 7.0 or Valkey 7.2, or a later version"
        )
    mode = info.get("redis_mode") or info.get("server_mode", "standalone")
    if mode == "sentinel":
        raise StoreRefused(f"{place} is a sentinel: use redis+sentinel://host:port,.../master-name")
    if (mode == "cluster") != store.cluster:
        advice = "a node of a cluster: use redis+cluster://" if mode == "cluster" else "not in a cluster: use redis://"
        raise StoreRefused(f"{place} is {advice}")
    if info.get("role") in {"slave", "replica"}:
        raise StoreRefused(f"{place} is a replica, which cannot be written to: use its primary")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            f"{place} has maxmemory-policy {policy}, which silently deletes jobs when memory runs short: "
            "set it to noeviction"
        )
    return name


_SCRIPT = (files("deferd.store") / "lua" / "self_test.lua").read_text(encoding="utf-8")
_SCRATCH = ("zset", "hash", "string", "renamed")
_PROBE_CHANNEL = "deferd:probe"
_UNKNOWN = "deferd_probe"
"""No function and no library has this name."""
_CANNOT_SUCCEED = {"fcall", "function|load", "function|delete"}
_TAGS_TRIED = 20_000
"""Enough to find a tag for every primary that has more than a handful of the 16,384 slots."""
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)


class SelfTestResult(NamedTuple):
    """Permissions that the store's user lacks, as ACL rules, and commands that work differently."""

    missing: tuple[str, ...]
    wrong: tuple[str, ...]


async def run_self_test(store: Store, *, every: bool = True) -> SelfTestResult:
    """Test the store; in a cluster, every primary that has slots. Leaves no keys behind.

    `lua/self_test.lua` runs every command that scripts use. The commands that deferd sends outside scripts are tried
    here.

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
        store.call("EVAL", _SCRIPT, len(keys), *keys, _PROBE_CHANNEL),
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


KEYS_RULE = "~deferd:*"
CHANNELS_RULE = "&deferd:*"
UNNAMED = ""
"""A command is not permitted and the server does not name it: Redis 6.2 and 7.0, in a script."""

_COMMAND_RIGHT = re.compile(r"no permissions to run the '([^']+)' command", re.IGNORECASE)
_UNNAMED_COMMAND = "can't run this command"
_KEY_RIGHT = re.compile(r"(permissions? to access (a key|one of the keys)|can't access at least one of the keys)")
_CHANNEL_RIGHT = re.compile(r"(permissions? to access (a channel|one of the channels)|can't publish to the channel)")


def missing_permission(error: Exception) -> str | None:
    """The permission that the error names, `UNNAMED` if it names none, or None for every other kind of error.

    It is a rule for `ACL SETUSER`: ``+zadd``, ``~deferd:*`` for keys, ``&deferd:*`` for channels.

    An error inside a script has no error code, so its text decides.
    """
    if not isinstance(error, (NoPermissionError, ResponseError)):
        return None
    text = str(error)
    if command := _COMMAND_RIGHT.search(text):
        return f"+{command[1].lower()}"
    if _KEY_RIGHT.search(text):
        return KEYS_RULE
    if _CHANNEL_RIGHT.search(text):
        return CHANNELS_RULE
    if isinstance(error, NoPermissionError) or _UNNAMED_COMMAND in text:
        return UNNAMED
    return None


def permissions_message(permissions: Iterable[str]) -> str:
    """The sentence that names missing permissions and how to grant them."""
    named = " ".join(sorted({permission for permission in permissions if permission}))
    if not named:
        return "the store's user lacks a permission (ACL LOG of the store shows which)"
    return f"the store's user lacks the permissions {named}; grant them with: ACL SETUSER <user> {named}"

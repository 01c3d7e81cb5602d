"""Check that a store can be trusted with jobs, once, before the service starts to serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, cast

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store import shard_guard
from deferd.store.acl import CHANNELS_RULE, missing_permission, permissions_message
from deferd.store.connection import Store
from deferd.store.self_test import run_self_test
from deferd.store.server_info import OLDEST_VERSION, server_name, server_version, unsupported_reason

_log = logging.getLogger("deferd.store")
_CHANNEL = "deferd:ready"
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
            await pubsub.subscribe(_CHANNEL)
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

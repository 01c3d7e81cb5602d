"""Whether a store can be trusted with jobs: asked once, before the service begins to serve."""

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
from deferd.store.acl import CHANNELS_RULE, lacking, missing_right
from deferd.store.connection import Store
from deferd.store.self_test import probe
from deferd.store.server_info import OLDEST_VERSION, server_name, server_version, why_not_redis

_log = logging.getLogger("deferd.store")
_CHANNEL = "deferd:ready"
_NODES_TRIED = 10
"""How many nodes of a cluster, drawn at random, are asked for a subscription until one responds."""

Info = Mapping[str, Any]


class StoreRefused(Exception):
    """The store cannot be used; the text is one sentence for people that says why, without secrets."""


async def check(store: Store, *, shards: int, exclusive: bool = False, unsupported: bool = False) -> None:
    """See that the store can be reached, can do what deferd needs, keeps what it is given, and has `shards` shards.

    The first service to use a store writes the number of shards into it, after a wait (see `deferd.store.shard_guard`)
    unless the store is `exclusive`: this service's alone. With `unsupported` a server that is neither Valkey nor Redis
    is warned of and not refused; what it must be able to do stays the same. Every master of a cluster that can be
    reached is asked. On success `store.server` holds the server's name and version.

    Raises:
        StoreRefused: it does not.
    """
    place = f"the store at {store.description}"
    try:
        missing: set[str] = set()
        try:
            for info, server_section in await _ask_all(store):
                store.server = _check_node(info, server_section, store, unsupported=unsupported)
        except NoPermissionError:
            missing.add("+info")
        probed = await probe(store, every=not store.cluster)
        missing.update(probed.missing, await _missing_for_messages(store))
        if missing:
            raise StoreRefused(f"{place} gives the user too few rights: {lacking(missing)}")
        if probed.wrong:
            raise StoreRefused(
                f"{place} does not do what Valkey and Redis do, and jobs would be lost: {'; '.join(probed.wrong)}"
            )
        wait_s = 0.0 if exclusive else shard_guard.WAIT_BEFORE_FIRST_S
        try:
            stored = await shard_guard.settle(store.call, shards, wait_s=wait_s)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            if not store.cluster:
                raise
            raise StoreRefused(
                f"the node of {place} that holds the key {shard_guard.SHARDS_KEY} cannot be reached, so that --shards "
                f"{shards} cannot be checked; bring it back, or let its replica take over"
            ) from exc
        if stored != str(shards):
            raise StoreRefused(f"{place} {shard_guard.mismatch(stored or '(nothing)', shards)}")
    except AuthenticationError as exc:
        raise StoreRefused(f"{place} does not let the service in: {exc}") from exc
    except NoPermissionError as exc:
        raise StoreRefused(f"{place} gives the user too few rights: {exc}") from exc
    except BusyLoadingError as exc:
        raise StoreRefused(f"{place} is still loading its data") from exc
    except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
        raise StoreRefused(f"{place} cannot be reached: {exc}") from exc
    except RedisError as exc:
        raise StoreRefused(f"{place} refuses to work: {exc}") from exc


async def _missing_for_messages(store: Store) -> set[str]:
    """The rights that a subscription lacks. In a cluster any node will do, so one that is away is not the end."""
    for _ in range(_NODES_TRIED if store.cluster else 0):
        try:
            return await _missing_for_a_subscription(store)
        except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
            _log.debug("a node of the store to subscribe at cannot be reached: %s", exc)
    return await _missing_for_a_subscription(store)


async def _missing_for_a_subscription(store: Store) -> set[str]:
    async with aclosing(store.pubsub()) as pubsub:
        try:
            await pubsub.subscribe(_CHANNEL)
            await pubsub.get_message(timeout=None)
        except NoPermissionError as exc:
            return {missing_right(exc) or CHANNELS_RULE}
    return set()


async def _ask_all(store: Store) -> list[tuple[Info, Info]]:
    """INFO, and its section Server, of the server, or of each master of the cluster.

    CONFIG would say more, but is often forbidden.
    """
    if not isinstance(store.client, RedisCluster):
        return [(cast("Info", await store.client.info()), cast("Info", await store.client.info("server")))]
    await store.client.initialize()
    nodes = store.client.get_primaries()
    replies = await asyncio.gather(*(_ask_node(store.client, node) for node in nodes), return_exceptions=True)
    found = []
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, (RedisConnectionError, RedisTimeoutError)):  # it takes only its own topics with it
            _log.warning("node %s of the store cannot be reached, its topics are unavailable: %s", node.name, reply)
            error = reply
        elif isinstance(reply, BaseException):
            raise reply
        else:
            found.append(reply)
    if not found:
        raise error
    return found


async def _ask_node(client: RedisCluster, node: ClusterNode) -> tuple[Info, Info]:
    whole = await client.info(target_nodes=node)
    return cast("Info", whole), cast("Info", await client.info("server", target_nodes=node))


def _check_node(info: Info, server_section: Info, store: Store, *, unsupported: bool) -> str:
    name = server_name(info)
    place = f"the store at {store.description}"
    if (reason := why_not_redis(info, server_section)) is not None:
        if not unsupported:
            raise StoreRefused(
                f"{place} is not Valkey or Redis, but {reason}; deferd relies on how those run scripts, and jobs have "
                "been lost on others: use Valkey or Redis, or take the risk with --unsupported-store "
                "(DEFERD_UNSUPPORTED_STORE=true)"
            )
        _log.warning("%s is not Valkey or Redis, but %s: it is used at your own risk, and may lose jobs", place, reason)
    if server_version(info) < OLDEST_VERSION:
        raise StoreRefused(f"{place} is {name}, which is too old: deferd needs version 6.2 or later")
    mode = info.get("redis_mode") or info.get("server_mode", "standalone")
    if mode == "sentinel":
        raise StoreRefused(f"{place} is a sentinel: use redis+sentinel://host:port,.../master-name")
    if (mode == "cluster") != store.cluster:
        is_one = "a node of a cluster: use" if mode == "cluster" else "not part of a cluster: do not use"
        raise StoreRefused(f"{place} is {is_one} redis+cluster://")
    if info.get("role") in {"slave", "replica"}:
        raise StoreRefused(f"{place} is a replica, which cannot be written to: use its master")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreRefused(
            f"{place} has maxmemory-policy {policy}: when memory runs short it would silently delete jobs; "
            "set it to noeviction"
        )
    return name

"""Whether a store can be trusted with jobs: asked once, before the service begins to serve."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from redis.asyncio.cluster import RedisCluster
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.connection import Store

_LOG = logging.getLogger(__name__)
OLDEST_VERSION = (6, 2)
SHARDS_KEY = "deferd:shards"


class StoreRefused(Exception):
    """The store cannot be used; the text is one sentence for people that says why, without secrets."""


async def check(store: Store, *, shards: int) -> None:
    """See that the store can be reached, is new enough, keeps what it is given, and was set up with `shards`.

    The first service to use a store writes the number of shards into it. Every master of a cluster that can be
    reached is asked. On success `store.server` holds the server's name and version.

    Raises:
        StoreRefused: it does not.
    """
    try:
        for node in await _ask_all(store):
            store.server = _check_node(node, store)
        await _check_shards(store, shards)
    except AuthenticationError as exc:
        raise StoreRefused(f"the store at {store.description} does not let the service in: {exc}") from exc
    except NoPermissionError as exc:
        raise StoreRefused(f"the store at {store.description} gives the user too few rights: {exc}") from exc
    except BusyLoadingError as exc:
        raise StoreRefused(f"the store at {store.description} is still loading its data") from exc
    except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
        raise StoreRefused(f"the store at {store.description} cannot be reached: {exc}") from exc
    except RedisError as exc:
        raise StoreRefused(f"the store at {store.description} refuses to work: {exc}") from exc


def server_version(info: Mapping[str, Any]) -> tuple[int, int]:
    """Major and minor version of the protocol's commands, from a reply to INFO; (0, 0) when it does not say.

    Valkey gives the version of Redis that it is compatible with there.
    """
    found = re.match(r"(\d+)\.(\d+)", str(info.get("redis_version", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def server_name(info: Mapping[str, Any]) -> str:
    """Name and version of the server as people know it, such as ``valkey 9.1.2`` or ``redis 7.0.15``."""
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info.get('redis_version', '(unknown version)')}"


async def _ask_all(store: Store) -> Iterable[Mapping[str, Any]]:
    """INFO of the server, or of each master of the cluster. CONFIG would say more, but is often forbidden."""
    if not isinstance(store.client, RedisCluster):
        return [cast("Mapping[str, Any]", await store.client.info())]
    await store.client.initialize()
    nodes = store.client.get_primaries()
    replies = await asyncio.gather(*(store.client.info(target_nodes=node) for node in nodes), return_exceptions=True)
    found = []
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, (RedisConnectionError, RedisTimeoutError)):  # it takes only its own topics with it
            _LOG.warning("node %s of the store cannot be reached, its topics are unavailable: %s", node.name, reply)
            error = reply
        elif isinstance(reply, BaseException):
            raise reply
        else:
            found.append(cast("Mapping[str, Any]", reply))
    if not found:
        raise error
    return found


def _check_node(info: Mapping[str, Any], store: Store) -> str:
    name = server_name(info)
    place = f"the store at {store.description}"
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


async def _check_shards(store: Store, shards: int) -> None:
    try:
        stored = await store.client.get(SHARDS_KEY)
    except (RedisConnectionError, RedisTimeoutError) as exc:
        if not store.cluster:
            raise
        raise StoreRefused(
            f"the node of the store at {store.description} that holds the key {SHARDS_KEY} cannot be reached, so that "
            f"--shards {shards} cannot be checked; bring it back, or let its replica take over"
        ) from exc
    if stored is None:
        # NX, for another service may be starting at the same time; whoever comes first decides.
        await store.client.set(SHARDS_KEY, shards, nx=True)
        stored = await store.client.get(SHARDS_KEY)
    if stored is None or int(stored) != shards:
        raise StoreRefused(
            f"the store at {store.description} was set up with --shards {int(stored or 0)}, not {shards}: topics "
            "would not be found again; start with the same number (DEFERD_SHARDS)"
        )

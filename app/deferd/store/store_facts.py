"""The store's version, whether it fsyncs, and its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, cast

from redis.asyncio import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from deferd.store.connection import KeyCalls, Store
from deferd.store.durability_levels import FSYNC, is_replicated, replicas_of
from deferd.store.server_info import fields_of_info, replicas_of_info, server_name

UNKNOWN = "unknown"


class StoreFacts(NamedTuple):
    """`server` is name and version.

    `fsyncs`: it fsyncs before it replies. `replicas` is the number of online replicas. In a cluster, `fsyncs` holds if
    all primaries that can be reached do so, and `replicas` is the fewest that one of them has.
    """

    server: str
    fsyncs: bool
    replicas: int

    def supports(self, level: int) -> bool:
        """Whether puts that require a durability level succeed now."""
        return self.replicas >= replicas_of(level) if is_replicated(level) else level < FSYNC or self.fsyncs


class Given(NamedTuple):
    """What a server gives: the durability `level` of puts that ask for none, why it is not FSYNC, and the number of
    online replicas, None where the store's user may not read it.
    """

    level: int
    why_not: str
    replicas: int | None


async def read_given(calls: KeyCalls) -> Given:
    """What the server of a key gives. Raises redis-py's errors when it cannot be reached."""
    level = await calls.probe()
    try:
        info = fields_of_info(await calls.call("INFO", "replication"))
    except ResponseError:  # not permitted
        return Given(level, calls.durability.why_not, None)
    return Given(level, calls.durability.why_not, replicas_of_info(info))


async def read_given_by_all(store: Store) -> Given:
    """What every primary gives; in a cluster, every primary that can be reached.

    Raises redis-py's errors when none can be.
    """
    found = await _all_that_respond([read_given(server) for server in await store.servers()])
    lowest = min(found, key=lambda given: given.level)
    replicas = [given.replicas for given in found if given.replicas is not None]
    return lowest._replace(replicas=min(replicas) if len(replicas) == len(found) else None)


async def read_store_facts(store: Store) -> StoreFacts:
    """Ask the store. A fact that its user may not read is unknown, or counts as absent.

    Raises redis-py's errors when the store cannot be reached.
    """
    info: dict[str, Any] = {}
    if isinstance(store.client, RedisCluster):
        try:
            info = await _info(store.client.info("server", target_nodes=RedisCluster.RANDOM))
        except (RedisError, OSError):  # this node is down; others may have topics
            info = {}
        try:
            given = await read_given_by_all(store)
        except (RedisError, OSError):
            return StoreFacts(_name(info), False, 0)
    else:
        info = await _info(store.client.info("server"))
        given = await read_given_by_all(store)
    return StoreFacts(_name(info), given.level >= FSYNC, given.replicas or 0)


async def _all_that_respond(reads: Sequence[Awaitable[Given]]) -> list[Given]:
    results = await asyncio.gather(*reads, return_exceptions=True)
    found = [result for result in results if isinstance(result, Given)]
    for result in results:
        if isinstance(result, BaseException) and (not found or not isinstance(result, (RedisError, OSError))):
            raise result
    if not found:
        raise RedisConnectionError("no primary of the store is known")
    return found


async def _info(reply: Any) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", await reply)
    except ResponseError:  # not permitted
        return {}


def _name(info: dict[str, Any]) -> str:
    return server_name(info) if info else UNKNOWN

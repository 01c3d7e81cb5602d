"""What /metrics says of the store itself: its version, whether it fsyncs, its replicas."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from redis.asyncio import RedisCluster
from redis.exceptions import RedisError, ResponseError

from deferd.store.connection import Store
from deferd.store.durability_levels import FSYNC, is_replicated, replicas_of
from deferd.store.server_info import server_name

UNKNOWN = "unknown"


class StoreFacts(NamedTuple):
    """`server` is name and version. `fsyncs`: before it replies. `replicas` that are online; 0 on a cluster, too."""

    server: str
    fsyncs: bool
    replicas: int

    def supports(self, level: int) -> bool:
        """Whether puts that require a durability level succeed now."""
        return self.replicas >= replicas_of(level) if is_replicated(level) else level < FSYNC or self.fsyncs


async def read_store_facts(store: Store) -> StoreFacts:
    """Ask the store. A fact that its user may not read is unknown, or counts as not there.

    Raises redis-py's errors when the store cannot be reached.
    """
    if isinstance(store.client, RedisCluster):
        try:
            info = await _info(store.client.info("server", target_nodes=RedisCluster.RANDOM))
        except (RedisError, OSError):  # this node is down; others may have topics
            info = {}
        return StoreFacts(_name(info), False, 0)
    info = await _info(store.client.info("server"))
    replication = await _info(store.client.info("replication"))
    replicas = [value for name, value in replication.items() if name.startswith("slave") and isinstance(value, dict)]
    fsyncs = await store.durability.probe() >= FSYNC
    return StoreFacts(_name(info), fsyncs, sum(replica.get("state") == "online" for replica in replicas))


async def _info(reply: Any) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", await reply)
    except ResponseError:  # not permitted
        return {}


def _name(info: dict[str, Any]) -> str:
    return server_name(info) if info else UNKNOWN

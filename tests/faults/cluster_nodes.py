"""The nodes of a cluster in which each primary has one replica, and what is done to them in a fault run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import redis
from redis.crc import key_slot

from deferd.engine.redis_keys import Keys
from tests.integration.store.store_servers import ClusterSet, StoreServer, in_sync
from tests.waiting import wait_until

SETTLE_S = 40.0


class ClusterNodes:
    """Finds out who is primary now: roles change with each failover."""

    def __init__(self, cluster: ClusterSet, keys: Keys) -> None:
        self.cluster = cluster
        self.slots = {shard: key_slot(keys.of_shard(shard, "due").encode()) for shard in range(keys.shards)}
        self.pairs = list(zip(cluster.masters, cluster.replicas, strict=True))

    def roles(self, pair: tuple[StoreServer, StoreServer]) -> tuple[StoreServer, StoreServer]:
        """The primary of a pair, and its replica."""
        return pair if is_primary(pair[0]) else (pair[1], pair[0])

    def shards_of(self, primary: StoreServer) -> list[int]:
        """The shards that a primary has, by what it says itself."""
        own = primary.command("CLUSTER MYID")
        ranges = [(first, last) for first, last, owner, *_ in primary.command("CLUSTER SLOTS") if owner[2] == own]
        return [shard for shard, slot in self.slots.items() if any(first <= slot <= last for first, last in ranges)]

    def settle(self) -> None:
        """Wait until all slots are served, and each primary has its replica in sync."""

        def is_settled() -> bool:
            with contextlib.suppress(redis.RedisError, OSError):
                return self.cluster.is_healthy() and all(in_sync(*self.roles(pair)) for pair in self.pairs)
            return False

        wait_until(is_settled, SETTLE_S, "each primary has its replica in sync")

    def move(self, shards: list[int], source: StoreServer, target: StoreServer) -> None:
        """Move the slots of shards with their keys, one after the other, as `valkey-cli --cluster reshard` does."""
        primaries = [self.roles(pair)[0] for pair in self.pairs]
        target_id = target.command("CLUSTER MYID")
        for shard in shards:
            slot = self.slots[shard]
            self.cluster.start_moving([slot], source, target)
            while keys := source.command("CLUSTER GETKEYSINSLOT", slot, 1000):
                source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for node in (target, source, *(one for one in primaries if one not in {source, target})):
                _give_slot(node, slot, target_id)
        self.settle()

    def add(self, folder: Path) -> tuple[StoreServer, StoreServer]:
        """Add a primary without slots, and its replica."""
        primary = self.cluster.add_master(folder / "primary")
        pair = (primary, self.cluster.add_replica(folder / "replica", primary))
        self.pairs.append(pair)
        return pair

    def remove(self, pair: tuple[StoreServer, StoreServer], shards: list[int], heir: StoreServer) -> None:
        """Move the shards of a pair, which are all that it has, to another primary, and remove and end the pair."""
        self.pairs.remove(pair)
        self.move(shards, self.roles(pair)[0], heir)
        self.cluster.masters.remove(pair[0])
        self.cluster.replicas.remove(pair[1])
        for leaving in pair:
            name = leaving.command("CLUSTER MYID")
            for node in self.cluster.nodes:
                node.command("CLUSTER FORGET", name)
        for leaving in pair:
            leaving.stop()

    def wait_for_promotion(self, replica: StoreServer) -> None:
        """Wait until the replica has taken over."""
        wait_until(lambda: is_primary(replica), SETTLE_S, "the replica is promoted")
        wait_until(self.cluster_is_served, SETTLE_S, "all slots are served")

    def cluster_is_served(self) -> bool:
        """Whether the nodes that respond agree that all slots are served."""
        infos = []
        for node in self.cluster.nodes:
            with contextlib.suppress(redis.RedisError, OSError), node.client(socket_timeout=0.5) as client:
                infos.append(client.execute_command("CLUSTER INFO"))
        return all(info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == 16384 for info in infos)


def is_primary(node: StoreServer) -> bool:
    """Whether the node responds and is a primary."""
    with contextlib.suppress(redis.RedisError, OSError), node.client(socket_timeout=0.5) as client:
        return bool(client.info("replication")["role"] == "master")
    return False


def _give_slot(node: StoreServer, slot: int, target_id: bytes) -> None:
    """Tell a node that the slot is the target's now."""

    def has_accepted() -> bool:
        try:
            node.command("CLUSTER SETSLOT", slot, "NODE", target_id)
        except redis.ResponseError as error:
            if "NOREPLICAS" in str(error):  # since Valkey 8 the replicas must accept it, too: one may be joining
                return False
            if "only with masters" not in str(error):  # a primary that has lost its last slot becomes a replica
                raise
        return True

    wait_until(has_accepted, SETTLE_S, "the node has accepted the slot's new primary")

"""A store that is a cluster: each key's commands go to the node that holds its slot.

What redis-py does by itself that this narrows:

* It repeats a command after a connection error. Off: only redirections (MOVED, ASK, TRYAGAIN) are followed, and
  with those the command was not carried out.
* It looks up the nodes anew within the call that noticed a failure, and closes the connections of all when that is
  cut short. Here the look-up is a task of its own that calls only wait for, and the node that failed is asked last.
* It closes the connections of all nodes at every fifth MOVED and at each CLUSTERDOWN, other calls' too. Off: a moved
  slot is noted, which is enough, and a cluster that is down has its nodes looked up anew.

* It does not look whether a connection that it takes out was closed meanwhile, as it does for a single server. Here
  it does.

Answers are not confirmed here: a WAIT would have to go down the connection that its call went down, and redis-py's
cluster client takes one from a node's pool for each.

What stays open: while slots are being moved between nodes an ASKING may travel on another connection than its
command, so that a call to a key that is just being moved can fail in the end. It is not carried out twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from redis.asyncio import ConnectionPool, SSLConnection
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, SlotNotCoveredError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.address import StoreAddress
from deferd.store.bounded import POOL_SIZE, WatchedPubSub, server_options, subscriber_options
from deferd.store.given import GivenLevel
from deferd.store.link import Link

CALLS_AT_ONCE = 4 * POOL_SIZE
"""Most calls under way to all nodes together, and connections to each: more than to a single server, so that one
node that hangs does not hold up those to the others too soon."""
_NODE_SHARE = 0.9
"""The part of a call's deadline after which a node counts as failed, so that the call still learns which one it was."""


class _LiveConnection(Connection):
    """A connection that is remade when the node has closed it since its last use, before anything is sent."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # Sends come one at a time, each followed by its answer: whatever can be read now is an end of file.
        if self.is_connected and await self.can_read():
            await self.disconnect(nowait=True)
        await super().send_packed_command(command, check_health)


class _LiveSSLConnection(_LiveConnection, SSLConnection):
    """The same over TLS."""


class BoundedCluster(RedisCluster):
    """A client of which each command answers or fails within `deadline_s`, and is sent to one node once."""

    def __init__(self, address: StoreAddress, *, deadline_s: float) -> None:
        options = server_options(address, timeout_s=deadline_s)
        del options["db"]
        if options.pop("connection_class", None):
            options["ssl"] = True
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
            require_full_coverage=False,  # a part of the cluster that is down takes only its own keys with it
            reinitialize_steps=0,
            max_connections=CALLS_AT_ONCE + 1,  # one for looking up the nodes
            **{**options, "socket_timeout": deadline_s * _NODE_SHARE},
        )
        # redis-py takes no connection class here; all later nodes are made with these options.
        live = _LiveSSLConnection if address.tls else _LiveConnection
        self.connection_kwargs["connection_class"] = live
        for node in self.startup_nodes:
            node.connection_class = live
        self._configured = address.hosts
        self._deadline_s = deadline_s
        self._turns = asyncio.Semaphore(CALLS_AT_ONCE)
        self._lookup: asyncio.Task[None] | None = None
        self._failed_node: str | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, once. What it did is not known after redis-py's TimeoutError or ConnectionError."""
        try:
            async with asyncio.timeout(self._deadline_s), self._turns:
                return await super().execute_command(*args, **options)
        except TimeoutError as exc:
            raise RedisTimeoutError(f"no answer within {self._deadline_s} s") from exc
        except (RedisConnectionError, RedisTimeoutError) as exc:
            self._failed_node = getattr(exc, "last_failed_node_name", None)
            raise
        except SlotNotCoveredError as exc:
            self._initialize = True
            raise RedisConnectionError("no node of the cluster holds this key's slot at present") from exc

    async def get_nodes_from_slot(self, command: str, *args: Any) -> Any:
        """As redis-py's, with one error for a slot that no node holds."""
        try:
            return await super().get_nodes_from_slot(command, *args)
        except KeyError as exc:
            raise SlotNotCoveredError(str(exc)) from exc

    async def initialize(
        self,
        additional_startup_nodes_info: list[tuple[str, int]] | None = None,  # noqa: ARG002 (redis-py's signature)
        last_failed_node_name: str | None = None,  # noqa: ARG002 (the same)
    ) -> RedisCluster:
        """Have the nodes looked up if that is due; a caller whose deadline ends stops waiting, the look-up goes on."""
        if self._initialize:
            if self._lookup is None or self._lookup.done():
                self._lookup = asyncio.create_task(self._look_up(), name="cluster-lookup")
                self._lookup.add_done_callback(_forget_error)
            await asyncio.shield(self._lookup)
        return self

    async def _look_up(self) -> None:
        # Bounded: each known node is asked at most twice, with its own time-out.
        try:
            await super().initialize(last_failed_node_name=self._failed_node)
        except RedisClusterException as exc:
            # By now redis-py knows only addresses that nodes gave for themselves; those may all have changed, while
            # the names that the URL gives lead to the new ones.
            for host, port in self._configured:
                node = ClusterNode(host, port, **self.connection_kwargs)
                self.nodes_manager.startup_nodes.setdefault(node.name, node)
            raise RedisConnectionError(f"no node of the cluster can be asked: {exc.__cause__ or exc}") from exc

    async def aclose(self) -> None:
        """Have the nodes looked up at the next call. `close_all` is what ends the client.

        redis-py calls this in the midst of a call that one node has answered with CLUSTERDOWN; closing everything
        then would cut off the calls to the other nodes.
        """
        self._initialize = True

    async def close_all(self) -> None:
        """Close all connections; the client is not used any more."""
        if self._lookup is not None:
            self._lookup.cancel()
            await asyncio.wait({self._lookup})
        self._initialize = True
        for nodes in ("nodes_cache", "startup_nodes"):
            with contextlib.suppress(RedisConnectionError, RedisTimeoutError):
                await self.nodes_manager.aclose(nodes)


def link_cluster(address: StoreAddress, *, timeout_s: float, confirm_s: float) -> Link:  # noqa: ARG001 (as for the other kinds)
    """Reach the cluster that the nodes of `address` belong to; one that answers is enough to find the others."""
    client = BoundedCluster(address, deadline_s=timeout_s)
    options = server_options(address, timeout_s=timeout_s)
    if address.tls:
        options["connection_class"] = SSLConnection

    def subscribe() -> WatchedPubSub:
        # What is published on one node is heard on all; a node is chosen anew each time, as the last may be down.
        known = [(node.host, int(node.port)) for node in client.get_primaries()]
        host, port = random.choice(known or address.hosts)  # noqa: S311 (any will do)
        own_pool = ConnectionPool(**subscriber_options({**options, "host": host, "port": port}, timeout_s=timeout_s))
        return WatchedPubSub(own_pool, deadline_s=timeout_s)

    def reached() -> frozenset[str]:
        return frozenset(node.name for node in client.get_primaries())

    return Link(client, client.execute_command, subscribe, client.close_all, GivenLevel(None), None, reached)


def _forget_error(task: asyncio.Task[None]) -> None:
    """Those who wait for the task get its error; when nobody does any longer it is of no interest."""
    if not task.cancelled():
        task.exception()

"""Calls to the nodes of a cluster: each goes over a pipeline to the primary of its key's slot.

`deferd.store.cluster.ClusterClient` knows which node that is. To each node this is the same as to a single server: one
pipeline for calls, and one for each number of replicas that confirm calls, since a WAIT must use the connection of its
call. Redirections are followed here; a call that got one was not executed.

* MOVED: the slot is noted as moved, and the call is sent to the node that was named.
* ASK: the call is sent to the node that was named, right after an ASKING, on the same connection.
* TRYAGAIN: some keys of the call have moved and others have not; it is sent again after a short wait.

Replicas confirm the call at the node that executes it, also after a redirection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.asyncio import ConnectionPool
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.fsync_probe import StoreDurability
from deferd.store.pipeline import ASKING, Command
from deferd.store.replication import NotReplicated, TooFewReplicas, marker_in_slot_of
from deferd.store.server_calls import ServerCalls
from deferd.store.server_clock import NotAfter, given_up_at
from deferd.store.task_cancellation import forget_error

if TYPE_CHECKING:
    from deferd.store.cluster import ClusterClient

_KEYLESS = {"PING", "INFO"}
_REDIRECTIONS = 16
"""After this many redirections of one call, the last one is its error."""
_TRY_AGAIN_S = 0.05
NODE_SHARE = 0.9
"""The part of a call's time after which a node counts as failed, so that the error still names the node."""
_UNSERVED = "no node of the cluster serves this key's slot"
_UNKNOWN = StoreDurability(None)


class NodeCalls(ServerCalls):
    """The calls to the node at an address."""

    def __init__(self, host: str, port: int, options: dict[str, Any], *, timeout_s: float, confirm_s: float) -> None:
        self.host = host
        self.name = f"{host}:{port}"
        pool = ConnectionPool(**{**options, "host": host, "port": port})
        super().__init__(pool, timeout_s=timeout_s, confirm_s=confirm_s, place=f"node {self.name} of the store")


_Send = Callable[[NodeCalls, bool], Awaitable[Any]]
"""Sends a call to a node; after an ASKING, if that is True."""


class ClusterCalls:
    """Calls by key. Each returns or fails within `timeout_s`, or, confirmed by replicas, within `confirm_s`.

    `options` are those of redis-py's connections, without host and port.
    """

    def __init__(self, client: ClusterClient, options: dict[str, Any], *, timeout_s: float, confirm_s: float) -> None:
        self.client = client
        self.timeout_s = timeout_s
        self.confirm_s = confirm_s
        self._options = options
        self._nodes: dict[str, NodeCalls] = {}

    async def call(self, *args: str | bytes | float | NotAfter) -> Any:
        """Run one command, once, at the primary of its first key. One without a key runs at any node."""
        command = args[0]
        if command in _KEYLESS:
            return await self.client.execute_command(*args)
        return await self.calls_of(args[3 if command in {"FCALL", "EVAL"} else 1]).call(*args)

    def calls_of(self, key: Any) -> SlotCalls:
        """Calls to the primary that has the key's slot, of keys in this slot."""
        return SlotCalls(self, key)

    async def servers(self) -> list[NodeCalls]:
        """All primaries that are known."""
        await self.client.initialize()
        return [self.node(primary.host, int(primary.port)) for primary in self.client.get_primaries()]

    def node(self, host: str, port: int) -> NodeCalls:
        """The calls to the node at an address."""
        name = f"{host}:{port}"
        if name not in self._nodes:
            self._nodes[name] = NodeCalls(
                host, port, self._options, timeout_s=self.timeout_s * NODE_SHARE, confirm_s=self.confirm_s
            )
        return self._nodes[name]

    def node_of_slot(self, slot: int) -> NodeCalls | None:
        """The primary that has the slot, as far as it is known."""
        nodes = self.client.nodes_manager.slots_cache.get(slot)
        return self.node(nodes[0].host, int(nodes[0].port)) if nodes else None

    async def close(self) -> None:
        """Close all connections, for good. Calls in progress fail."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))


class SlotCalls:
    """Calls of keys of one slot, which follow it when it moves. Make one of these for each call."""

    def __init__(self, cluster: ClusterCalls, key: Any) -> None:
        self._cluster = cluster
        self._key = key
        self._slot = cluster.client.keyslot(key)
        self._last: NodeCalls | None = None

    @property
    def durability(self) -> StoreDurability:
        """As `ServerCalls.durability`."""
        node = self._last or self._cluster.node_of_slot(self._slot)
        return _UNKNOWN if node is None else node.durability

    @property
    def server(self) -> NodeCalls:
        """As `ServerCalls.server`."""
        node = self._last or self._cluster.node_of_slot(self._slot)
        if node is None:
            raise RedisConnectionError(_UNSERVED)
        return node

    async def probe(self) -> int:
        """As `ServerCalls.probe`."""
        level: int = await self._in_time(lambda node, _: node.probe())
        return level

    async def call(self, *args: str | bytes | float | NotAfter) -> Any:
        """As `ServerCalls.call`."""
        return await self._in_time(partial(_send, self._given_up_in_time(args)))

    async def call_probed(self, *args: str | bytes | float | NotAfter) -> Any:
        """As `ServerCalls.call_probed`."""
        args = self._given_up_in_time(args)

        def send(node: NodeCalls, asks: bool) -> Awaitable[Any]:
            node.durability.refresh()
            return _send(args, node, asks)

        return await self._in_time(send)

    async def call_replicated(self, replicas: int, *args: str | bytes | float | NotAfter) -> Any:
        """As `ServerCalls.call_replicated`."""
        within_s = self._cluster.confirm_s
        args = given_up_at(args, asyncio.get_running_loop().time() + within_s)
        marker = marker_in_slot_of(self._key)

        def send(node: NodeCalls, asks: bool) -> Awaitable[Any]:
            return node.call_replicated(replicas, *args, marker=marker, asks=asks)

        try:
            async with asyncio.timeout(within_s):
                return await self._follow(send)
        except TimeoutError as exc:
            raise NotReplicated(replicas, within_s) from exc

    def _given_up_in_time(self, args: Command) -> Command:
        """The arguments with the end of this call, which redirections do not delay."""
        return given_up_at(args, asyncio.get_running_loop().time() + self._cluster.timeout_s)

    async def _in_time(self, send: _Send) -> Any:
        try:
            async with asyncio.timeout(self._cluster.timeout_s):
                return await self._follow(send)
        except TimeoutError as exc:
            raise RedisTimeoutError(f"no response within {self._cluster.timeout_s} s") from exc

    async def _follow(self, send: _Send) -> Any:
        """Send a call to the primary of the slot, and to the nodes to which it is redirected."""
        client = self._cluster.client
        await client.initialize()
        asked: NodeCalls | None = None
        for last in (*[False] * _REDIRECTIONS, True):
            node = asked or self._cluster.node_of_slot(self._slot)
            if node is None:
                client.refresh_on_next_call()
                raise RedisConnectionError(_UNSERVED)
            self._last = node
            try:
                return await send(node, asked is not None)
            except MovedError as exc:
                if last:
                    raise
                exc.host = exc.host or node.host  # an empty one stands for the node that replied
                node.durability.forget_file()  # it keeps its connections when a failover makes it a replica
                # redis-py expects to know the slot, but a refresh may just have found that no node serves it.
                client.nodes_manager.slots_cache.setdefault(exc.slot_id, [])
                await client.nodes_manager.move_slot(exc)
                asked = None
            except AskError as exc:
                if last:
                    raise
                asked = self._cluster.node(exc.host or node.host, exc.port)
            except TryAgainError:
                if last:
                    raise
                await asyncio.sleep(_TRY_AGAIN_S)
            except (RedisConnectionError, RedisTimeoutError, ClusterDownError):
                client.refresh_on_next_call(failed=node.name)
                raise
            except (ReadOnlyError, TooFewReplicas, NotReplicated):  # another node may have become the primary
                client.refresh_on_next_call()
                raise
        raise AssertionError("unreachable")


def _send(args: Command, node: NodeCalls, asks: bool) -> Awaitable[Any]:
    if asks:
        node.pipeline.send(*ASKING).add_done_callback(forget_error)  # the call that follows gets one too
    return node.pipeline.send(*args)

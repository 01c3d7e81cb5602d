"""A store that is a cluster: each key's commands go to the node that holds its slot.

redis-py's cluster client knows the nodes and their slots here, and sends commands to a certain node or to any. Calls by
key go through `ClusterCalls`. What is different from redis-py:

* It sends a command again after a connection error. Here nothing is sent twice.
* It refreshes the nodes within the call that noticed a failure, and closes all connections when that fails or is
  cancelled. Here a separate task refreshes them from the nodes that respond, the one that failed last, and calls that
  know a node hardly wait for it.
* It closes the connections of all nodes at each CLUSTERDOWN, and so fails other calls. Here that leads to a refresh.
* It does not check whether a pooled connection was closed since its last use, as it does for a single server. Here it
does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from redis.asyncio import ConnectionPool, SSLConnection
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, RedisClusterException, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.durability_levels import StoreDurability
from deferd.store.pipeline import ASKING, Command, NotAfter, given_up_at
from deferd.store.redis_client import POOL_SIZE, WatchedPubSub, connection_options, subscriber_options
from deferd.store.server_calls import NotReplicated, ServerCalls, TooFewReplicas, marker_in_slot_of
from deferd.store.task_cancellation import cancel_and_wait, forget_error
from deferd.store.url import StoreUrl

CALLS_AT_ONCE = 4 * POOL_SIZE
"""Most concurrent calls to each node, so that a node that hangs does not block calls to the others."""
_MOST_CONNECTIONS = 4 * CALLS_AT_ONCE
"""Per node: its own calls, and the calls that other nodes redirect to it."""
_REFRESH_WAIT_S = 0.1
"""How long a call waits for a refresh of the nodes when it knows some from an earlier one."""
_REFRESH_GRACE_S = 0.1
"""How long a refresh waits for more nodes when one has responded."""
_KEYLESS = {"PING", "INFO"}
_REDIRECTIONS = 16
"""After this many redirections of one call, the last one is its error."""
_TRY_AGAIN_S = 0.05
_NODE_SHARE = 0.9
"""The part of a call's time after which a node counts as failed, so that the error still names the node."""
_UNSERVED = "no node of the cluster serves this key's slot"
_UNKNOWN = StoreDurability(None)


class _LiveConnection(Connection):
    """A connection that reconnects before it sends when the node has closed it since its last use."""

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # Every command is followed by its reply, so what can be read now is an end of file.
        if self.is_connected and await self.can_read():
            await self.disconnect(nowait=True)
        await super().send_packed_command(command, check_health)


class _LiveSSLConnection(_LiveConnection, SSLConnection):
    """The same over TLS."""


class ClusterClient(RedisCluster):
    """A client whose commands return or fail within `deadline_s`, and are sent to one node once."""

    def __init__(self, url: StoreUrl, *, deadline_s: float) -> None:
        options = connection_options(url, timeout_s=deadline_s)
        del options["db"]
        if options.pop("connection_class", None):
            options["ssl"] = True
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in url.hosts],
            require_full_coverage=False,  # when a part of the cluster is down, only its keys are unavailable
            reinitialize_steps=0,
            max_connections=_MOST_CONNECTIONS,
            **{**options, "socket_timeout": deadline_s * _NODE_SHARE},
        )
        # redis-py accepts no connection class above. It makes all later nodes with these options.
        live = _LiveSSLConnection if url.tls else _LiveConnection
        self.connection_kwargs["connection_class"] = live
        for node in self.startup_nodes:
            node.connection_class = live
        self._configured = url.hosts
        self._deadline_s = deadline_s
        self._concurrency: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(CALLS_AT_ONCE))
        self._refresh_task: asyncio.Task[None] | None = None
        self._failed_node: str | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, once. After redis-py's TimeoutError or ConnectionError its effect is unknown."""
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task else 0
        try:
            async with asyncio.timeout(self._deadline_s):
                return await super().execute_command(*args, **options)
        except TimeoutError as exc:
            raise RedisTimeoutError(f"no response within {self._deadline_s} s") from exc
        except (RedisConnectionError, RedisTimeoutError) as exc:
            self._failed_node = getattr(exc, "last_failed_node_name", None)
            raise
        finally:
            # redis-py sends by asyncio.wait_for, which before Python 3.12 may swallow a cancellation.
            if task and task.cancelling() > cancelled_before:
                raise asyncio.CancelledError

    async def _execute_command(self, target_node: ClusterNode, *args: Any, **options: Any) -> Any:
        async with self._concurrency[target_node.name]:
            return await super()._execute_command(target_node, *args, **options)

    async def initialize(
        self,
        additional_startup_nodes_info: list[tuple[str, int]] | None = None,  # noqa: ARG002 (redis-py's signature)
        last_failed_node_name: str | None = None,  # noqa: ARG002 (the same)
    ) -> RedisCluster:
        """Refresh the nodes if that is due.

        The refresh may meet a node that hangs. So only the first refresh is waited for; later, a call that waits too
        long uses the nodes it knows.
        """
        if self._initialize:
            if self._refresh_task is None or self._refresh_task.done():
                self._refresh_task = asyncio.create_task(self._refresh(), name="cluster-refresh")
                self._refresh_task.add_done_callback(forget_error)  # those who wait get it
            if self.nodes_manager.slots_cache:
                await asyncio.wait({self._refresh_task}, timeout=_REFRESH_WAIT_S)
            else:
                await asyncio.shield(self._refresh_task)
        return self

    def refresh_on_next_call(self, *, failed: str | None = None) -> None:
        """Refresh the nodes at the next call, from the node of the name `failed` last."""
        self._failed_node = failed or self._failed_node
        self._initialize = True

    async def _refresh(self) -> None:
        """Like redis-py's `initialize`, but keep the connections when it fails, and do not wait for nodes that hang."""
        manager = self.nodes_manager
        known = dict(manager.startup_nodes)
        manager.startup_nodes = {node.name: node for node in await _responding(list(known.values()))} or known
        try:
            await manager.initialize(last_failed_node_name=self._failed_node)
        except (RedisClusterException, IndexError) as exc:  # IndexError: the nodes that respond know no slot
            # redis-py now knows only addresses that nodes reported. All of those may have changed, while the host
            # names of the URL lead to the new ones.
            for host, port in self._configured:
                node = ClusterNode(host, port, **self.connection_kwargs)
                known.setdefault(node.name, node)
            manager.startup_nodes = known
            raise RedisConnectionError(f"no node of the cluster responds: {exc.__cause__ or exc}") from exc
        except BaseException:
            manager.startup_nodes = known
            raise
        self.commands_parser.node = manager.default_node
        self._initialize = False

    async def aclose(self) -> None:
        """Only refresh the nodes at the next call; `close_all` closes the client.

        redis-py calls this during a call that got CLUSTERDOWN from one node. Closing all connections then would fail
        the calls to the other nodes.
        """
        self.refresh_on_next_call()

    async def close_all(self) -> None:
        """Close all connections, for good."""
        if self._refresh_task is not None:
            await cancel_and_wait({self._refresh_task})
        self._initialize = True
        for nodes in ("nodes_cache", "startup_nodes"):
            with contextlib.suppress(RedisConnectionError, RedisTimeoutError):
                await self.nodes_manager.aclose(nodes)


async def _responding(nodes: list[ClusterNode]) -> list[ClusterNode]:
    """The nodes that respond. Does not wait long for the others once one does."""
    pings = {asyncio.create_task(node.execute_command("PING")): node for node in nodes}
    waiting = set(pings)
    responding: list[ClusterNode] = []
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting,
                timeout=_REFRESH_GRACE_S if responding else None,
                return_when=asyncio.ALL_COMPLETED if responding else asyncio.FIRST_COMPLETED,
            )
            is_grace_over = bool(responding)
            responding += [pings[task] for task in done if task.exception() is None]
            if is_grace_over:
                break
    finally:
        await cancel_and_wait(waiting)
    return responding


class _NodeCalls(ServerCalls):
    """The calls to the node at an address."""

    def __init__(self, host: str, port: int, options: dict[str, Any], *, timeout_s: float, confirm_s: float) -> None:
        self.host = host
        self.name = f"{host}:{port}"
        pool = ConnectionPool(**{**options, "host": host, "port": port})
        super().__init__(pool, timeout_s=timeout_s, confirm_s=confirm_s, place=f"node {self.name} of the store")


_Send = Callable[[_NodeCalls, bool], Awaitable[Any]]
"""Sends a call to a node; after an ASKING, if that is True."""


class ClusterCalls:
    """Calls by key to the cluster of the nodes in `url`. One that responds is enough to find the others.

    Each call goes over a pipeline to the primary of its key's slot, and returns or fails within `timeout_s`, or,
    confirmed by replicas, within `confirm_s`. To each node this is the same as to a single server: one pipeline for
    calls, and one for each number of replicas that confirm calls, since a WAIT must use the connection of its call.
    """

    def __init__(self, url: StoreUrl, *, timeout_s: float, confirm_s: float) -> None:
        self.client = ClusterClient(url, deadline_s=timeout_s)
        self.timeout_s = timeout_s
        self.confirm_s = confirm_s
        self._configured = url.hosts
        self._options = connection_options(url, timeout_s=timeout_s)
        if url.tls:
            self._options["connection_class"] = SSLConnection
        self._nodes: dict[str, _NodeCalls] = {}
        self._last_subscribed: tuple[str, int] | None = None
        self._published = itertools.count()

    async def call(self, *args: str | bytes | float | NotAfter) -> Any:
        """Run one command, once, at the primary of its first key. One without a key runs at any node."""
        command = args[0]
        if command in _KEYLESS:
            return await self.client.execute_command(*args)
        return await self.calls_of(args[3 if command in {"FCALL", "EVAL"} else 1]).call(*args)

    def calls_of(self, key: Any) -> SlotCalls:
        """Calls to the primary that has the key's slot, of keys in this slot."""
        return SlotCalls(self, key)

    async def servers(self) -> list[_NodeCalls]:
        """All primaries that are known."""
        await self.client.initialize()
        return [self.node(primary.host, int(primary.port)) for primary in self.client.get_primaries()]

    def node(self, host: str, port: int) -> _NodeCalls:
        """The calls to the node at an address."""
        name = f"{host}:{port}"
        if name not in self._nodes:
            self._nodes[name] = _NodeCalls(
                host, port, self._options, timeout_s=self.timeout_s * _NODE_SHARE, confirm_s=self.confirm_s
            )
        return self._nodes[name]

    def node_of_slot(self, slot: int) -> _NodeCalls | None:
        """The primary that has the slot, as far as it is known."""
        nodes = self.client.nodes_manager.slots_cache.get(slot)
        return self.node(nodes[0].host, int(nodes[0].port)) if nodes else None

    def primaries(self) -> frozenset[str]:
        """The names of the primaries that are known."""
        return frozenset(node.name for node in self.client.get_primaries())

    def pubsub(self) -> WatchedPubSub:
        """A subscription at a node, another one than the last: that may be down, or no longer in the cluster.

        Every node delivers what is published on any.
        """
        known = [(node.host, int(node.port)) for node in self.client.get_primaries()] or list(self._configured)
        others = [node for node in known if node != self._last_subscribed]
        host, port = self._last_subscribed = random.choice(others or known)  # noqa: S311 (not for security)
        self.client.refresh_on_next_call()
        options = {**self._options, "host": host, "port": port}
        own_pool = ConnectionPool(**subscriber_options(options, timeout_s=self.timeout_s))
        return WatchedPubSub(own_pool, deadline_s=self.timeout_s, publish=partial(self._publish, (host, port)))

    async def _publish(self, subscribed_at: tuple[str, int], channel: str | bytes, message: str) -> object:
        """Publish on a node other than that at `subscribed_at`, so that the message crosses the cluster bus.

        Round robin; when a node fails, the next one is tried. Raises redis-py's error when all fail.
        """
        await self.client.initialize()
        nodes = self.client.get_primaries()
        others = [node for node in nodes if (node.host, int(node.port)) != subscribed_at] or nodes
        first = next(self._published) % max(len(others), 1)
        error: Exception = RedisConnectionError("no node of the cluster responds")
        for node in others[first:] + others[:first]:
            try:
                return await self.client.execute_command("PUBLISH", channel, message, target_nodes=node)
            except (RedisConnectionError, RedisTimeoutError) as exc:
                error = exc
        raise error

    async def close(self) -> None:
        """Close all connections, for good. Calls in progress fail."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))
        await self.client.close_all()


class SlotCalls:
    """Calls of keys of one slot, which follow it when it moves. Make one of these for each call.

    A call that got a redirection was not executed:

    * MOVED: the slot is noted as moved, and the call is sent to the node that was named.
    * ASK: the call is sent to the node that was named, right after an ASKING, on the same connection.
    * TRYAGAIN: some keys of the call have moved and others have not; it is sent again after a short wait.

    Replicas confirm the call at the node that executes it, also after a redirection.
    """

    def __init__(self, cluster: ClusterCalls, key: Any) -> None:
        self._cluster = cluster
        self._key = key
        self._slot = cluster.client.keyslot(key)
        self._last: _NodeCalls | None = None

    @property
    def durability(self) -> StoreDurability:
        """As `ServerCalls.durability`."""
        node = self._last or self._cluster.node_of_slot(self._slot)
        return _UNKNOWN if node is None else node.durability

    @property
    def server(self) -> _NodeCalls:
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

        def send(node: _NodeCalls, asks: bool) -> Awaitable[Any]:
            node.durability.refresh()
            return _send(args, node, asks)

        return await self._in_time(send)

    async def call_replicated(self, replicas: int, *args: str | bytes | float | NotAfter) -> Any:
        """As `ServerCalls.call_replicated`."""
        within_s = self._cluster.confirm_s
        args = given_up_at(args, asyncio.get_running_loop().time() + within_s)
        marker = marker_in_slot_of(self._key)

        def send(node: _NodeCalls, asks: bool) -> Awaitable[Any]:
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
        asked: _NodeCalls | None = None
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


def _send(args: Command, node: _NodeCalls, asks: bool) -> Awaitable[Any]:
    if asks:
        node.pipeline.send(*ASKING).add_done_callback(forget_error)  # the call that follows gets one too
    return node.pipeline.send(*args)

"""A store that is a cluster: each key's commands go to the node that holds its slot.

redis-py's cluster client knows the nodes and their slots here, and sends commands to a certain node or to any. Calls by
key go through `deferd.store.cluster_calls`. What is different from redis-py:

* It sends a command again after a connection error. Here nothing is sent twice.
* It refreshes the nodes within the call that noticed a failure, and closes all connections when that fails or is
  cancelled. Here a separate task refreshes them from the nodes that respond, the one that failed last, and calls that
  know a node hardly wait for it.
* It closes the connections of all nodes at each CLUSTERDOWN, and so fails other calls. Here that leads to a refresh.
* It does not check whether a pooled connection was closed meanwhile, as it does for a single server. Here it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

from redis.asyncio import ConnectionPool, SSLConnection
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.backend import Backend
from deferd.store.cluster_calls import NODE_SHARE, ClusterCalls
from deferd.store.redis_client import POOL_SIZE, WatchedPubSub, connection_options, subscriber_options
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
            **{**options, "socket_timeout": deadline_s * NODE_SHARE},
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


def cluster_backend(url: StoreUrl, *, timeout_s: float, confirm_s: float) -> Backend:
    """Connect to the cluster of the nodes in `url`. One that responds is enough to find the others."""
    client = ClusterClient(url, deadline_s=timeout_s)
    options = connection_options(url, timeout_s=timeout_s)
    if url.tls:
        options["connection_class"] = SSLConnection
    calls = ClusterCalls(client, options, timeout_s=timeout_s, confirm_s=confirm_s)

    last_node: tuple[str, int] | None = None

    def pubsub() -> WatchedPubSub:
        # Every node delivers what is published on any. The last one may be down, or no longer in the cluster.
        nonlocal last_node
        known = [(node.host, int(node.port)) for node in client.get_primaries()] or list(url.hosts)
        host, port = last_node = random.choice([node for node in known if node != last_node] or known)  # noqa: S311 (not for security)
        client.refresh_on_next_call()
        own_pool = ConnectionPool(**subscriber_options({**options, "host": host, "port": port}, timeout_s=timeout_s))
        publish = partial(_publish, client, last_node, itertools.count())
        return WatchedPubSub(own_pool, deadline_s=timeout_s, publish=publish)

    def primaries() -> frozenset[str]:
        return frozenset(node.name for node in client.get_primaries())

    async def close() -> None:
        await calls.close()
        await client.close_all()

    return Backend(
        client=client,
        call=calls.call,
        calls_of=calls.calls_of,
        servers=calls.servers,
        topology=primaries,
        pubsub=pubsub,
        close_all=close,
    )


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


async def _publish(
    client: ClusterClient, subscribed_at: tuple[str, int], counter: Iterator[int], channel: str | bytes, message: str
) -> object:
    """Publish on a node other than that at `subscribed_at`, so that the message crosses the cluster bus.

    Round robin; when a node fails, the next one is tried. Raises redis-py's error when all fail.
    """
    await client.initialize()
    nodes = client.get_primaries()
    others = [node for node in nodes if (node.host, int(node.port)) != subscribed_at] or nodes
    first = next(counter) % max(len(others), 1)
    error: Exception = RedisConnectionError("no node of the cluster responds")
    for node in others[first:] + others[:first]:
        try:
            return await client.execute_command("PUBLISH", channel, message, target_nodes=node)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            error = exc
    raise error

"""A store that is a cluster: each key's commands go to the node that holds its slot.

What redis-py does by itself that this narrows:

* It repeats a command after a connection error. Off: only redirections (MOVED, ASK, TRYAGAIN) are followed, and
  with those the command was not carried out.
* It looks up the nodes anew within the call that noticed a failure, and closes the connections of all when that
  fails or is cut short. Here the look-up is a task of its own, it asks those nodes that respond, the one that failed
  last, and calls that know a node do not wait for it for long.
* It asks a node where each command's keys are. Here they are known.
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
from redis.exceptions import RedisClusterException, SlotNotCoveredError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.backend import Link
from deferd.store.fsync_probe import GivenLevel
from deferd.store.redis_client import POOL_SIZE, WatchedPubSub, server_options, subscriber_options
from deferd.store.url import StoreAddress

CALLS_AT_ONCE = 4 * POOL_SIZE
"""Most calls under way to each node, so that one that hangs does not hold up those to the others."""
_MOST_CONNECTIONS = 4 * CALLS_AT_ONCE
"""To each node: besides its calls it gets those that other nodes have redirected to it."""
_LOOKUP_WAIT_S = 0.1
"""How long a call waits for a look-up of the nodes when it has an older one to go by."""
_LOOKUP_GRACE_S = 0.1
"""How long a look-up waits for further nodes when one has responded."""
_KEY_IS_NOT_FIRST = {"EVAL", "EVALSHA"}
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
            max_connections=_MOST_CONNECTIONS,
            **{**options, "socket_timeout": deadline_s * _NODE_SHARE},
        )
        # redis-py takes no connection class here; all later nodes are made with these options.
        live = _LiveSSLConnection if address.tls else _LiveConnection
        self.connection_kwargs["connection_class"] = live
        for node in self.startup_nodes:
            node.connection_class = live
        self._configured = address.hosts
        self._deadline_s = deadline_s
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(CALLS_AT_ONCE))
        self._lookup: asyncio.Task[None] | None = None
        self._failed_node: str | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, once. What it did is not known after redis-py's TimeoutError or ConnectionError."""
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task else 0
        try:
            async with asyncio.timeout(self._deadline_s):
                return await super().execute_command(*args, **options)
        except TimeoutError as exc:
            raise RedisTimeoutError(f"no answer within {self._deadline_s} s") from exc
        except (RedisConnectionError, RedisTimeoutError) as exc:
            self._failed_node = getattr(exc, "last_failed_node_name", None)
            raise
        except SlotNotCoveredError as exc:
            self._initialize = True
            raise RedisConnectionError("no node of the cluster holds this key's slot at present") from exc
        finally:
            # redis-py sends by asyncio.wait_for, which before Python 3.12 may swallow a cancellation.
            if task and task.cancelling() > cancelled_before:
                raise asyncio.CancelledError

    async def _execute_command(self, target_node: ClusterNode, *args: Any, **options: Any) -> Any:
        async with self._turns[target_node.name]:
            return await super()._execute_command(target_node, *args, **options)

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
        """Have the nodes looked up if that is due.

        A node that hangs may be asked first: so a call waits only for the first look-up of all, and goes by what is
        known when a later one takes long.
        """
        if self._initialize:
            if self._lookup is None or self._lookup.done():
                self._lookup = asyncio.create_task(self._look_up(), name="cluster-lookup")
                self._lookup.add_done_callback(_forget_error)
            if self.nodes_manager.slots_cache:
                await asyncio.wait({self._lookup}, timeout=_LOOKUP_WAIT_S)
            else:
                await asyncio.shield(self._lookup)
        return self

    def look_up_again(self) -> None:
        """Have the nodes looked up at the next call."""
        self._initialize = True

    async def _look_up(self) -> None:
        """As redis-py's `initialize`, which closes all connections when it fails and waits for nodes that hang."""
        manager = self.nodes_manager
        known = dict(manager.startup_nodes)
        manager.startup_nodes = {node.name: node for node in await _responding(list(known.values()))} or known
        try:
            await manager.initialize(last_failed_node_name=self._failed_node)
        except (RedisClusterException, IndexError) as exc:  # IndexError: those that respond know of no slot
            # By now redis-py knows only addresses that nodes gave for themselves; those may all have changed, while
            # the names that the URL gives lead to the new ones.
            for host, port in self._configured:
                node = ClusterNode(host, port, **self.connection_kwargs)
                known.setdefault(node.name, node)
            manager.startup_nodes = known
            raise RedisConnectionError(f"no node of the cluster can be asked: {exc.__cause__ or exc}") from exc
        except BaseException:
            manager.startup_nodes = known
            raise
        self.commands_parser.node = manager.default_node
        self._initialize = False

    async def _determine_slot(self, command: str, *args: Any) -> int:
        """As redis-py's, which asks a node, which may hang, where the keys are; here the first argument is one."""
        if command.upper() in _KEY_IS_NOT_FIRST or " " in command:
            return await super()._determine_slot(command, *args)
        return self.keyslot(args[0])

    async def aclose(self) -> None:
        """The same as `look_up_again`. `close_all` is what ends the client.

        redis-py calls this in the midst of a call that one node has answered with CLUSTERDOWN; closing everything
        then would cut off the calls to the other nodes.
        """
        self.look_up_again()

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

    last_place: tuple[str, int] | None = None

    def subscribe() -> WatchedPubSub:
        # What is published on one node is heard on all, and the last may be down or no longer belong to the cluster.
        nonlocal last_place
        known = [(node.host, int(node.port)) for node in client.get_primaries()] or list(address.hosts)
        host, port = last_place = random.choice([one for one in known if one != last_place] or known)  # noqa: S311 (any will do)
        client.look_up_again()
        own_pool = ConnectionPool(**subscriber_options({**options, "host": host, "port": port}, timeout_s=timeout_s))
        publish = partial(_publish, client, last_place, itertools.count())
        return WatchedPubSub(own_pool, deadline_s=timeout_s, publish=publish)

    def reached() -> frozenset[str]:
        return frozenset(node.name for node in client.get_primaries())

    return Link(client, client.execute_command, subscribe, client.close_all, GivenLevel(None), None, reached)


async def _responding(nodes: list[ClusterNode]) -> list[ClusterNode]:
    """Those of the nodes that respond, without waiting long for the others when one does."""
    asking = {asyncio.create_task(node.execute_command("PING")): node for node in nodes}
    waiting = set(asking)
    responding: list[ClusterNode] = []
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting,
                timeout=_LOOKUP_GRACE_S if responding else None,
                return_when=asyncio.ALL_COMPLETED if responding else asyncio.FIRST_COMPLETED,
            )
            was_last = bool(responding)
            responding += [asking[task] for task in done if task.exception() is None]
            if was_last:
                break
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return responding


async def _publish(
    client: BoundedCluster, away_from: tuple[str, int], turns: Iterator[int], channel: str | bytes, message: str
) -> object:
    """Publish on a node other than that at `away_from`, so that the message comes over the cluster's own connections.

    Each in its turn, and the next one when one fails. Raises redis-py's error when all do.
    """
    await client.initialize()
    nodes = client.get_primaries()
    others = [node for node in nodes if (node.host, int(node.port)) != away_from] or nodes
    first = next(turns) % max(len(others), 1)
    error: Exception = RedisConnectionError("no node of the cluster can be asked")
    for node in others[first:] + others[:first]:
        try:
            return await client.execute_command("PUBLISH", channel, message, target_nodes=node)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            error = exc
    raise error


def _forget_error(task: asyncio.Task[None]) -> None:
    """Those who wait for the task get its error; when nobody does any longer it is of no interest."""
    if not task.cancelled():
        task.exception()

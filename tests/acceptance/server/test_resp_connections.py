"""Connections of the Redis protocol: handshakes, limits, hostile bytes, slow readers, and a stop of the service."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from deferd.contract.limits import BODY_DEFAULT_BYTES
from tests.acceptance.resp_calls import fields, packed, redis_client, resp_port
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.benchmarks.measuring import resident_bytes
from tests.preloaded import run_preloaded
from tests.waiting import wait_until

READ_S = 20.0
PUBLIC = "0.0.0.0"  # noqa: S104 (it is refused)


def connected(service: ServiceProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", resp_port(service)), timeout=READ_S)


def read_to_end(connection: socket.socket) -> bytes:
    """What the service sends until it closes the connection."""
    received = b""
    try:
        while data := connection.recv(65_536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_clients_introduce_themselves(client: redis.Redis) -> None:
    hello = fields(client.execute_command("HELLO"))
    assert (hello["server"], hello["mode"], hello["role"]) == (b"deferd", b"standalone", b"master")
    assert client.client_setname("worker-1")
    assert client.client_getname() in ("worker-1", b"worker-1")
    assert client.client_id() == hello["id"]
    assert client.echo("x") == b"x"
    assert client.execute_command("SELECT", 0)
    info: dict[str, Any] = client.info()
    assert (info["role"], info["server_name"]) == ("master", "deferd")
    assert info["db0"]["keys"] >= 0
    assert {"sadd", "spop", "deferd.put"} <= set(client.command())
    for words in (
        ("SELECT", 1),
        ("HELLO", 4),
        ("CLIENT", "KILL"),
        ("AUTH", "x"),
        ("NONE",),
        ("EVAL", "x", 0),
        ("MULTI",),
    ):
        with pytest.raises(redis.RedisError):
            client.execute_command(*words)
    assert client.ping()


def test_quit_is_answered_and_closes(resp_service: ServiceProcess) -> None:
    with connected(resp_service) as connection:
        connection.sendall(packed(b"PING") + packed(b"QUIT") + packed(b"PING"))
        assert read_to_end(connection) == b"+PONG\r\n+OK\r\n"


HOSTILE = {
    "HTTP of a web page": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60\r\n\r\n"
    + packed(b"SADD", b"t", b"a", b"0"),
    "half a gigabyte in a pipeline": packed(b"PING") * 3 + b"*2\r\n$536870912\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_get_an_error_and_a_closed_connection(resp_service: ServiceProcess, data: bytes) -> None:
    with redis_client(resp_service) as client:
        topics = client.keys("*")
        with connected(resp_service) as connection:
            connection.sendall(data)
            received = read_to_end(connection)
        assert re.fullmatch(rb"(?:\+PONG\r\n)*-ERR Protocol error: [^\r\n]+\r\n", received)
        assert client.keys("*") == topics


def test_announcements_and_half_commands_take_no_memory(resp_service: ServiceProcess) -> None:
    pid = resp_service.process.pid
    with redis_client(resp_service) as client:
        client.ping()
        before = resident_bytes(pid)
        half = b"*4000\r\n$4\r\nSADD\r\n$1\r\nt\r\n$%d\r\nx" % (BODY_DEFAULT_BYTES - 100)
        connections = [connected(resp_service) for _ in range(300)]
        for connection in connections:
            connection.sendall(half)
        for _ in range(300):
            with connected(resp_service) as connection:
                connection.sendall(b"*2\r\n$4\r\nECHO\r\n$536870912\r\n")
                read_to_end(connection)
        assert client.ping()
        assert resident_bytes(pid) - before < 20 * 1024 * 1024
        for connection in connections:
            connection.close()


def test_a_client_that_reads_nothing_is_not_read(resp_service: ServiceProcess, topic: str) -> None:
    """It pipelines requests for large replies without end; the service stops to read, and its memory stays flat."""
    pid = resp_service.process.pid
    with redis_client(resp_service) as client:
        client.execute_command("DEFERD.PUT", topic, "a", "x" * 500_000, "DELAY", 60_000)
        before = resident_bytes(pid)
        with connected(resp_service) as connection:
            connection.settimeout(1.0)
            looks = packed(b"DEFERD.GET", topic.encode(), b"a") * 1000
            with pytest.raises(TimeoutError):
                connection.sendall(looks * 1000)  # 40 MB: more than the buffers of the system
            assert client.ping()
            assert resident_bytes(pid) - before < 30 * 1024 * 1024


def test_a_client_that_reads_nothing_takes_few_jobs(resp_service: ServiceProcess, topic: str) -> None:
    jobs = 40
    with redis_client(resp_service) as client, socket.socket() as connection:
        for _ in range(jobs):
            client.sadd(topic, "x" * 900_000, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.connect(("127.0.0.1", resp_port(resp_service)))
        connection.sendall(packed(b"SPOP", topic.encode()) * jobs + packed(b"SPOP", topic.encode(), b"1") * jobs)
        lefts: list[int] = []

        def no_more_are_taken() -> bool:
            lefts.append(client.scard(topic))
            return lefts[-1] < jobs and len(set(lefts[-20:])) == 1 and len(lefts) >= 20

        wait_until(no_more_are_taken, 20, "the service waits for the client")
        assert lefts[-1] > jobs / 2


def test_the_rest_of_a_large_command_is_read_after_a_command_that_waits(
    resp_service: ServiceProcess, topic: str
) -> None:
    large = packed(b"SADD", topic.encode(), b"x" * 500_000, b"0")
    with connected(resp_service) as connection:
        connection.sendall(packed(b"DEFERD.POP", b"nothing.is.here", b"WAIT", b"300") + large[:200_000])
        connection.sendall(large[200_000:300_000])
        assert connection.recv(1000) == b"*0\r\n"
        connection.sendall(large[300_000:])
        assert connection.recv(1000) == b":1\r\n"


def test_a_large_body_is_refused_and_a_smaller_one_is_not(resp_service: ServiceProcess, topic: str) -> None:
    with redis_client(resp_service) as client:
        body = "x" * (BODY_DEFAULT_BYTES - 200)
        client.sadd(topic, body, 0)
        assert client.spop(topic) == body.encode()
    with connected(resp_service) as connection:
        connection.sendall(b"*4\r\n$4\r\nSADD\r\n$1\r\nt\r\n$%d\r\n" % (BODY_DEFAULT_BYTES + 1))
        assert b"at most 1048576 bytes" in read_to_end(connection)


@pytest.mark.parametrize("pop", [(b"SPOP",), (b"DEFERD.POP", b"WAIT", b"1000")], ids=["SPOP", "DEFERD.POP"])
def test_commands_before_an_end_are_carried_out_but_pops(
    resp_service: ServiceProcess, topic: str, pop: tuple[bytes, ...]
) -> None:
    name, (verb, *options) = topic.encode(), pop
    with connected(resp_service) as connection:
        before = packed(b"SADD", name, b"a", b"0") + packed(b"SCARD", name)
        connection.sendall(before + packed(verb, name, *options))
        connection.shutdown(socket.SHUT_WR)
        assert read_to_end(connection) == b":1\r\n:1\r\n"
    with redis_client(resp_service) as client:
        assert client.spop(topic) == b"a"


def test_limits_of_connections_and_times(tmp_path: Path) -> None:
    flags = ("--resp-port", "0", "--max-connections", "3", "--body-timeout", "0.3")
    with running_service(*flags, data_dir=tmp_path) as service:
        with connected(service) as slow:
            slow.sendall(b"*2\r\n$4\r\nECHO\r\n$5\r\nab")
            assert read_to_end(slow) == b"-ERR Protocol error: a command did not arrive in time\r\n"
        busy = [connected(service) for _ in range(3)]
        for connection in busy:
            connection.sendall(packed(b"DEFERD.POP", b"t", b"WAIT", b"30000"))
        wait_until(lambda: _is_refused(service), 10, "all connections are in use")
        for connection in busy:
            connection.close()
        wait_until(lambda: not _is_refused(service), 10, "there is room again")


def _is_refused(service: ServiceProcess) -> bool:
    with connected(service) as connection:
        connection.sendall(packed(b"QUIT"))
        return read_to_end(connection) in (b"-ERR max number of clients reached\r\n", b"")


def test_a_stop_ends_waiting_pops_and_loses_nothing(tmp_path: Path) -> None:
    with running_service("--resp-port", "0", data_dir=tmp_path) as service:
        with connected(service) as waiting, connected(service) as idle, redis_client(service) as client:
            client.sadd("t", "kept", 0)
            waiting.sendall(packed(b"DEFERD.POP", b"other", b"WAIT", b"30000") + packed(b"SPOP", b"t"))
            service.wait_for_waiting_pops(1)
            began = time.monotonic()
            service.stop()
            assert time.monotonic() - began < 6
            assert read_to_end(waiting) == b"*0\r\n"
            assert read_to_end(idle) == b""
        service.start()
        with redis_client(service) as client:
            assert client.spop("t") == b"kept"


@pytest.mark.slow
def test_every_server_process_serves_it(tmp_path: Path) -> None:
    with running_service("--resp-port", "0", "--workers", "2", data_dir=tmp_path) as service:
        for _ in range(2):
            clients = [redis_client(service) for _ in range(10)]
            for number, client in enumerate(clients):
                with client as opened:
                    opened.sadd("t", f"b{number}", 0)
                    assert opened.spop("t") == f"b{number}".encode()
            service.kill_server_processes()


def test_a_public_address_needs_keys(tmp_path: Path) -> None:
    flags = ("--host", PUBLIC, "--port", "0", "--resp-port", "0", "--data-dir", str(tmp_path / "d"))
    found = run_preloaded("serve", *flags, environment=os.environ)
    assert found.returncode == 1
    assert "no key is required" in found.stderr


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ("--port", "0", "--resp-port", str(port), "--data-dir", str(tmp_path / "d"))
        found = run_preloaded("serve", *flags, environment=os.environ)
    assert found.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port} (--host DEFERD_HOST, --resp-port DEFERD_RESP_PORT)" in found.stderr


def test_without_the_setting_it_is_not_served(shared_service: ServiceProcess) -> None:
    assert "the Redis protocol is served" not in shared_service.output()

"""The Redis protocol over TLS: the same commands, and the same bounds."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import pytest

from tests.acceptance.resp_calls import packed, redis_client, resp_port
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.benchmarks.measuring import resident_bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def service(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = ("--resp-port", "0", "--tls-cert", str(files.cert), "--tls-key", str(files.key))
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("service")) as service:
        yield service


def test_clients_use_it_as_without_tls(service: ServiceProcess, files: TlsFiles, topic: str) -> None:
    assert "the Redis protocol is served on rediss://" in service.output()
    body = "x" * 900_000
    with redis_client(service, ssl=True, ssl_ca_certs=str(files.authority_file)) as client:
        for _ in range(5):
            client.sadd(topic, body, 0)
        assert [client.spop(topic) for _ in range(5)] == [body.encode()] * 5
        assert client.execute_command("DEFERD.POP", topic, "WAIT", 50) == []


def test_without_tls_there_is_no_reply(service: ServiceProcess) -> None:
    with socket.create_connection(("127.0.0.1", resp_port(service)), timeout=20) as connection:
        connection.sendall(packed(b"PING"))
        assert b"PONG" not in connection.recv(1000)


def test_a_client_that_reads_nothing_takes_no_memory(service: ServiceProcess, files: TlsFiles, topic: str) -> None:
    context = ssl.create_default_context(cafile=str(files.authority_file))
    pid = service.process.pid
    with redis_client(service, ssl=True, ssl_ca_certs=str(files.authority_file)) as client:
        client.execute_command("DEFERD.PUT", topic, "a", "x" * 500_000, "DELAY", 60_000)
        client.execute_command("DEFERD.GET", topic, "a")
        before = resident_bytes(pid)
        looks = packed(b"DEFERD.GET", topic.encode(), b"a") * 1000
        with (
            socket.create_connection(("127.0.0.1", resp_port(service)), timeout=20) as wire,
            context.wrap_socket(wire, server_hostname="localhost") as connection,
        ):
            connection.settimeout(1.0)
            with pytest.raises(TimeoutError):
                connection.sendall(looks * 1000)  # 40 MB: more than the buffers of the system
            assert client.ping()
            assert resident_bytes(pid) - before < 40 * 1024 * 1024

"""HTTPS of the service itself, and stores over TLS with ACL users."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from deferd.client import AsyncClient, Client
from deferd.client.errors import Unreachable
from deferd.server.credential_files import Certificate, read_context
from deferd.server.startup_errors import CertificateRefused
from deferd.settings import SettingsError, load_settings
from tests.acceptance.api.test_keys_and_listening import refused
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.server.tls_files import TlsFiles, tls_in_front_of
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import connected, cut, request
from tests.integration.store.store_servers import StoreServer
from tests.ports import free_port
from tests.waiting import wait_until

USER, PASSWORD = "jobs-user", "sesame-open-9"
HEAD_TIMEOUT_S = 0.5
WITHIN_S = 15.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def service(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = (*files.flags(), "--head-timeout", str(HEAD_TIMEOUT_S), "--max-body-bytes", str(8 * 1024 * 1024))
    with running_service(*flags, data_dir=tmp_path_factory.mktemp("service")) as service:
        yield service
        assert "Traceback" not in service.output()


def https(service: ServiceProcess) -> str:
    return f"https://127.0.0.1:{service.port}"


def run_a_job(client: Client, topic: str) -> None:
    client.put(topic, {"order": 1}, id="j")
    [job] = client.pop(topic, wait=5)
    assert {"order": 1} == job.body
    client.finish(job)


def test_the_client_works_over_https(service: ServiceProcess, files: TlsFiles, topic: str) -> None:
    assert f"listening on {https(service)}" in service.output()
    with Client(https(service), tls=files.trust()) as client:
        run_a_job(client, topic)


def test_a_command_trusts_the_authorities_of_a_file(service: ServiceProcess, files: TlsFiles, topic: str) -> None:
    shell = Shell(https(service))
    shell.good("put", topic, "--ca-file", str(files.authority_file))
    assert shell.run("topic", topic, DEFERD_CA_FILE=str(files.authority_file)).returncode == 0
    assert "certificate verify failed" in shell.refused(1, "topic", topic, "--retry-for", "0")
    checked = shell.good("doctor", "--ca-file", str(files.authority_file))
    assert re.search(r"^ok +tls +TLSv1\.3, the certificate ends \d{4}-\d\d-\d\d \(in ", checked, re.MULTILINE)


@pytest.mark.slow
def test_several_processes_speak_https(files: TlsFiles, tmp_path: Path, topic: str) -> None:
    with (
        running_service(*files.flags(), "--workers", "2", data_dir=tmp_path) as service,
        Client(https(service), tls=files.trust()) as client,
    ):
        run_a_job(client, topic)
    assert "Traceback" not in service.output()


def test_plain_http_gets_no_response_on_an_https_port(service: ServiceProcess, files: TlsFiles) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{service.port}/healthz", timeout=10)
    assert httpx.get(f"{https(service)}/healthz", verify=files.trust()).status_code == 200


def test_tls_below_1_2_is_refused(service: ServiceProcess, files: TlsFiles) -> None:
    context = files.trust()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert httpx.get(f"{https(service)}/healthz", verify=context).status_code == 200
    assert ssl.TLSVersion.TLSv1_2 == read_context(files.cert, files.key).minimum_version


@pytest.mark.parametrize("piece", [100_000, 900], ids=["at once", "in pieces"])
async def test_the_limits_hold_over_https(service: ServiceProcess, files: TlsFiles, piece: int) -> None:
    raw = request("GET", "/healthz", None, "A: " + "b" * 40_000)
    async with connected(service.port, files.trust()) as wire:
        for at in range(0, len(raw), piece):
            wire.send(raw[at : at + piece])
        assert (await wire.read_response()).status == 431


async def test_a_slow_request_times_out_over_https(service: ServiceProcess, files: TlsFiles) -> None:
    async with connected(service.port, files.trust()) as wire:
        wire.send(request("GET", "/healthz"), b"GET /hea")
        assert [200, 408] == [(await wire.read_response()).status, (await wire.read_response()).status]
        assert await wire.is_closed()


@pytest.mark.slow
async def test_the_last_response_of_a_connection_may_be_read_slowly_over_https(
    service: ServiceProcess, files: TlsFiles, topic: str
) -> None:
    async with AsyncClient(https(service), tls=files.trust()) as client:
        await client.put(topic, "x" * 7_000_000)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", service.port))
    reader, writer = await asyncio.open_connection(sock=raw, ssl=files.trust(), server_hostname="localhost")
    try:
        writer.write(request("GET", f"/topics/{topic}/pop", None, "Connection: close"))
        received = bytearray()
        for _ in range(14):  # what the system's buffers do not hold
            received += await reader.readexactly(250_000)
            await asyncio.sleep(0.25)
        received += await reader.read()
    finally:
        await cut(writer)
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert 1 == len(json.loads(body)["jobs"])


@pytest.mark.slow
async def test_a_client_that_does_not_start_a_handshake_is_disconnected(service: ServiceProcess) -> None:
    """It occupies a connection, like a client that stops within a head."""
    async with connected(service.port) as wire:
        with contextlib.suppress(ConnectionError):
            assert await wire.is_closed()


def shown_certificate(service: ServiceProcess, files: TlsFiles) -> bytes | None:
    """The certificate that a new connection gets."""
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=10) as raw,
        files.trust().wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        return connection.getpeercert(binary_form=True)


@pytest.mark.slow
def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, topic: str) -> None:
    files, workers = TlsFiles(tmp_path / "files"), 2
    with (
        running_service(*files.flags(), "--workers", str(workers), data_dir=tmp_path) as service,
        Client(https(service), tls=files.trust(), retry_for=0) as client,
    ):

        def is_shown(wanted: bytes) -> bool:  # new connections reach one process or the other
            return all(shown_certificate(service, files) == wanted for _ in range(8))

        client.put(topic, id="before")
        first = shown_certificate(service, files)
        renewed = files.renew("renewed")
        assert renewed != first
        wait_until(lambda: is_shown(renewed), WITHIN_S, "the new certificate is shown")
        client.put(topic, id="after")  # on the connection that it has
        reloaded = "reloaded the certificate"  # twice by a process that checked between the two writes
        wait_until(lambda: service.output().count(reloaded) >= workers, WITHIN_S, "it is reloaded")

        files.key.write_text("no key", encoding="utf-8")
        refused_once = "the certificate stays as it was: --tls-key (DEFERD_TLS_KEY)"
        wait_until(lambda: service.output().count(refused_once) == workers, WITHIN_S, "the error is logged")
        assert is_shown(renewed)

        again = files.renew("again")
        wait_until(lambda: is_shown(again), WITHIN_S, "it continues to read the files")
        assert workers == service.output().count(refused_once)
    assert "Traceback" not in service.output()


@pytest.mark.slow
def test_server_processes_restarted_with_a_broken_certificate_file_use_the_last_good_one(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "files")
    flags = ("--workers", "2", "--log-level", "debug")
    with running_service(*files.flags(), *flags, data_dir=tmp_path) as service:
        renewed = files.renew("renewed")
        reread = "reloaded the keys and certificate files for new server processes"
        wait_until(lambda: reread in service.output(), WITHIN_S, "the supervisor has read the files again")
        files.key.write_text("no key", encoding="utf-8")
        service.kill_server_processes()
        assert shown_certificate(service, files) == renewed
        service.wait_logged("the certificate stays as it was: --tls-key (DEFERD_TLS_KEY)", 2)

        again = files.renew("again")
        wait_until(lambda: shown_certificate(service, files) == again, WITHIN_S, "they continue to read the files")
    assert "Traceback" not in service.output()
    assert "did not start to serve" not in service.output()


def test_a_certificate_is_reloaded_once_both_files_match(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    certificate = Certificate(files.cert, files.key)
    assert not certificate.read_if_changed()
    cert, key = files.issue("renewed")
    cert.replace(files.cert)
    for _ in range(2):
        with pytest.raises(CertificateRefused, match="is not the key of the certificate"):
            certificate.read_if_changed()
    key.replace(files.key)
    assert [True, False] == [certificate.read_if_changed() for _ in range(2)]
    files.key.unlink()
    with pytest.raises(CertificateRefused, match="is not readable: No such file"):
        certificate.read_if_changed()


async def test_the_end_of_a_certificate_is_logged_before_and_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, now = TlsFiles(tmp_path), datetime.now(UTC)
    for days, said in ((60, None), (3, "is valid until"), (-1, "has expired at")):
        cert, key = files.issue(f"{days}", not_after=now + timedelta(days=days))
        caplog.clear()
        following = asyncio.create_task(Certificate(cert, key).follow())
        await asyncio.sleep(0)  # it has looked, and waits to look again
        following.cancel()
        expected = [] if said is None else [f"--tls-cert (DEFERD_TLS_CERT) {cert} {said}"]
        assert [record.getMessage().partition(f" {now.year}")[0] for record in caplog.records] == expected


@pytest.mark.slow
def test_a_client_is_told_that_the_certificate_of_the_service_has_expired(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "files")
    cert, key = files.issue("expired", not_after=datetime.now(UTC) - timedelta(days=1))
    with running_service("--tls-cert", str(cert), "--tls-key", str(key), data_dir=tmp_path) as service:
        with Client(https(service), tls=files.trust(), retry_for=0) as client, pytest.raises(Unreachable) as caught:
            client.put("t")
        assert "certificate has expired" in str(caught.value)
        wait_until(lambda: "has expired at" in service.output(), WITHIN_S, "the log says it")


def test_a_certificate_that_is_too_weak_is_refused(tmp_path: Path) -> None:
    cert, key = tmp_path / "weak.pem", tmp_path / "weak-key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:1024", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    with pytest.raises(CertificateRefused) as caught:
        read_context(cert, key)
    assert f"--tls-cert (DEFERD_TLS_CERT) {cert} is too weak: ee key too small" == str(caught.value)


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key"])
def test_a_certificate_needs_a_key_and_a_key_a_certificate(files: TlsFiles, setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({setting: str(getattr(files, setting.removeprefix("tls_")))})
    [sentence] = caught.value.problems
    assert "HTTPS takes a certificate and its key" in sentence
    for name in ("--tls-cert (DEFERD_TLS_CERT)", "--tls-key (DEFERD_TLS_KEY)"):
        assert name in sentence


@pytest.mark.slow
def test_unusable_files_are_named(files: TlsFiles, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:x", "-in", str(files.key), "-out", str(locked)]
    if b"EC PRIVATE" in files.key.read_bytes():
        command[1] = "ec"
    subprocess.run(command, check=True, capture_output=True)
    missing, other_key = tmp_path / "missing.pem", files.issue("other")[1]
    empty = tmp_path / "empty.pem"
    empty.touch()
    cert_is, key_is = "--tls-cert (DEFERD_TLS_CERT) {}", "--tls-key (DEFERD_TLS_KEY) {}"
    cases = [
        (missing, files.key, f"{cert_is.format(missing)} is not readable: No such file or directory"),
        (files.cert, missing, f"{key_is.format(missing)} is not readable: No such file or directory"),
        (tmp_path, files.key, f"{cert_is.format(tmp_path)} is not readable: Is a directory"),
        (empty, files.key, f"{cert_is.format(empty)} has no certificate in PEM form"),
        (files.key, files.key, f"{cert_is.format(files.key)} has no certificate in PEM form"),
        (files.cert, empty, f"{key_is.format(empty)} has no private key in PEM form without a passphrase"),
        (files.cert, locked, f"{key_is.format(locked)} has no private key in PEM form without a passphrase"),
        (files.cert, other_key, f"{key_is.format(other_key)} is not the key of the certificate in --tls-cert"),
    ]
    for cert, key, sentence in cases:
        with pytest.raises(CertificateRefused) as caught:
            Certificate(cert, key)
        assert sentence == str(caught.value)
    assert refused("--tls-cert", str(missing), "--tls-key", str(missing), folder=tmp_path).endswith(cases[0][2])


def test_without_keys_https_listens_on_loopback_addresses_only(files: TlsFiles, tmp_path: Path) -> None:
    line = refused("--host", "0.0.0.0", *files.flags(), folder=tmp_path)  # noqa: S104 (it is refused)
    assert "which other machines can reach, and no key is required" in line


ACL = (f"user {USER} on >{PASSWORD} ~* &* +@all", "user default on nopass -@all +ping +info +shutdown")


@pytest.mark.slow
def test_a_store_is_reached_over_tls_as_a_user_of_its_acl(files: TlsFiles, tmp_path: Path, topic: str) -> None:
    with (
        StoreServer(tmp_path / "store", lines=ACL) as store,
        tls_in_front_of(store.port, files) as port,
    ):
        run_a_job_over_tls(port, files, tmp_path, topic)


@pytest.mark.slow
@pytest.mark.usefixtures("older_redis")  # the embedded store has no TLS
def test_a_store_that_speaks_tls_itself_is_reached_as_a_user_of_its_acl(
    files: TlsFiles, tmp_path: Path, topic: str
) -> None:
    port = free_port()
    tls = (f"tls-port {port}", f"tls-cert-file {files.cert}", f"tls-key-file {files.key}", "tls-auth-clients no")
    with StoreServer(tmp_path / "store", lines=(*ACL, *tls)):
        run_a_job_over_tls(port, files, tmp_path, topic)


def run_a_job_over_tls(port: int, files: TlsFiles, folder: Path, topic: str) -> None:
    address = f"@localhost:{port}/0?ssl_ca_certs={files.authority_file}"
    url = f"rediss://{USER}:{PASSWORD}{address}"
    with (
        running_service(data_dir=folder, DEFERD_REDIS_URL=url) as service,
        Client(service.url) as client,
    ):
        run_a_job(client, topic)
    wrong_password = refused(folder=folder, DEFERD_REDIS_URL=f"rediss://{USER}:not-this{address}")
    unknown_authority = refused(folder=folder, DEFERD_REDIS_URL=url.partition("?")[0])
    assert f"the store at rediss://localhost:{port} refused the login" in wrong_password
    assert "certificate verify failed" in unknown_authority
    log = service.output() + wrong_password + unknown_authority
    assert not [secret for secret in (PASSWORD, "not-this") if secret in log]

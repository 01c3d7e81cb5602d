"""How both clients reach a service: TLS, unix sockets, proxies, IPv6, several addresses, and processes after a fork."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import functools
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from deferd import AsyncClient, Client, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.transport import default_context
from tests.acceptance.client.scripted_server import (
    Peer,
    Script,
    job_response,
    never_responding,
    responding,
    scripted_server,
)
from tests.acceptance.server.tls_files import TlsFiles, tls_in_front_of
from tests.acceptance.service_process import ServiceProcess

TIMEOUT_S = 5.0
Look = Callable[..., str]


def blocking_look(url: str | list[str], id: str = "a", topic: str = "t", **options: Any) -> str:
    with Client(url, **{"timeout": TIMEOUT_S, "retry_for": 0, **options}) as client:
        assert client.get(topic, id).id == id
        return client.get(topic, id).id


def async_look(
    url: str | list[str],
    id: str = "a",
    topic: str = "t",
    *,
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    **options: Any,
) -> str:
    async def looks() -> str:
        async with AsyncClient(url, **{"timeout": TIMEOUT_S, "retry_for": 0, **options}) as client:
            assert (await client.get(topic, id)).id == id
            return (await client.get(topic, id)).id

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(looks())


uvloop_look = functools.partial(async_look, loop=uvloop.new_event_loop)


@pytest.fixture(params=[blocking_look, async_look, uvloop_look], ids=["blocking", "asyncio", "uvloop"])
def look(request: pytest.FixtureRequest) -> Look:
    """Gets a job twice with a new client."""
    function: Look = request.param
    return function


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_tls(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    return context


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_a_connection_that_is_given_up_is_reset(
    look: Look, files: TlsFiles, server_tls: ssl.SSLContext, encrypted: bool
) -> None:
    """So the kernel drops what it has not sent."""
    ends: list[int] = []
    ended = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        peer.request()
        until_closed = select.poll()  # within TLS a read does not tell a reset from an early end
        until_closed.register(peer.socket, select.POLLIN)
        until_closed.poll(TIMEOUT_S * 1000)
        ends.append(peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        ended.release()

    with scripted_server(script, tls=server_tls if encrypted else None) as server:
        with pytest.raises(NoAnswer, match=r"nothing was received|not complete in time"):  # the latter if it is slow
            look(server.url, timeout=0.1, tls=files.trust())
        assert ended.acquire(timeout=TIMEOUT_S)
    assert ends == [errno.ECONNRESET]


# TLS


def test_the_end_of_tls_is_announced(look: Look, files: TlsFiles, server_tls: ssl.SSLContext) -> None:
    ended = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        for _ in range(2):
            peer.send(job_response(peer.request()))
        assert peer.until_closed() == b""  # an end without close_notify raises SSLEOFError
        ended.release()

    with scripted_server(script, tls=server_tls) as server:
        assert look(server.url, tls=files.trust()) == "a"
        assert ended.acquire(timeout=TIMEOUT_S)
        assert server.connections == 1


def test_the_name_of_the_service_is_sent_and_checked(look: Look, files: TlsFiles, tmp_path: Path) -> None:
    names: list[str | None] = []
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(files.cert, files.key)
    server_tls.sni_callback = lambda _, name, __: names.append(name)
    with scripted_server(responding, tls=server_tls) as server:
        assert look(f"https://localhost:{server.port}", tls=files.trust()) == "a"
        assert names == ["localhost"]
        other = TlsFiles(tmp_path)
        issued = other.authority.issue_cert("other.example")
        issued.configure_cert(server_tls)
        with pytest.raises(Unreachable, match="certificate"):
            look(f"https://localhost:{server.port}", tls=other.trust())
        assert names == ["localhost", "localhost"]


def test_an_unknown_authority_is_refused(look: Look, server_tls: ssl.SSLContext) -> None:
    received: list[str] = []
    with (
        scripted_server(lambda peer: received.append(peer.request()), tls=server_tls) as server,
        pytest.raises(Unreachable, match=r"self-signed certificate|unable to get local issuer"),
    ):
        look(server.url)
    assert received == []


@pytest.mark.parametrize("way", ["argument", "DEFERD_CA_FILE", "SSL_CERT_FILE"])
def test_the_authorities_are_those_of_the_system_and_of_a_file(
    look: Look, files: TlsFiles, server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """SSL_CERT_FILE is where OpenSSL finds those of the system."""
    file = files.authority_file
    if way != "argument":
        monkeypatch.setenv(way, str(file))
    with scripted_server(responding, tls=server_tls) as server:
        assert look(server.url, **({"ca_file": file} if way == "argument" else {})) == "a"


def test_a_file_without_authorities_is_refused(tmp_path: Path) -> None:
    for file, why in ((tmp_path / "none.pem", "No such file"), (Path(__file__), "no certificate or crl found")):
        with pytest.raises(
            ValueError, match=f"the file with certificate authorities, '{file}', cannot be used: .*{why}"
        ):
            Client("https://localhost", ca_file=file)
    with pytest.raises(ValueError, match="tls or ca_file, not both"):
        Client("https://localhost", ca_file=__file__, tls=ssl.create_default_context())


def test_without_authorities_of_the_system_those_of_certifi_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
    assert default_context(None).cert_store_stats()["x509_ca"] > 50


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_where_a_variable_names_the_authorities_no_others_are_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    context = default_context(None)
    assert context.cert_store_stats()["x509_ca"] == 0
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_service_without_tls_is_unreachable_by_https(look: Look) -> None:
    def script(peer: Peer) -> None:
        peer.socket.recv(100)
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with scripted_server(script) as server, pytest.raises(Unreachable):
        look(server.url.replace("http:", "https:"))


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x03"])
def test_a_tls_handshake_that_stops_times_out(look: Look, sent: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.send(sent)
        peer.until_closed()

    with scripted_server(script) as server:
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            look(server.url.replace("http:", "https:"), timeout=0.3)
        assert 0.2 < time.monotonic() - began_s < 3


def test_a_response_that_ends_early_within_tls_is_no_answer(
    look: Look, files: TlsFiles, server_tls: ssl.SSLContext
) -> None:
    def script(peer: Peer) -> None:
        peer.send(job_response(peer.request())[:-1])

    with scripted_server(script, tls=server_tls) as server, pytest.raises(NoAnswer) as failed:
        look(server.url, tls=files.trust())
    assert not isinstance(failed.value, Unreachable)


# Unix sockets


def test_a_service_is_reached_by_a_unix_socket(look: Look, tmp_path: Path) -> None:
    heads: list[str] = []

    def script(peer: Peer) -> None:
        while True:
            heads.append(peer.head())
            peer.send(job_response("/jobs/t/a"))

    with scripted_server(script, path=tmp_path / "d.sock") as server:
        assert look(server.url) == "a"
        assert heads[0].splitlines()[:2] == ["GET /jobs/t/a HTTP/1.1", "host: localhost"]
        assert look(f"unix://{str(tmp_path).replace('t', '%74')}/d.sock") == "a"


def test_a_unix_socket_that_is_not_there_is_unreachable(look: Look, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="No such file"):
        look(f"unix://{tmp_path}/none")
    with scripted_server(responding, path=tmp_path / "d.sock") as server:
        assert look([f"unix://{tmp_path}/none", server.url]) == "a"


# Proxies


class HttpProxy:
    """A proxy that asks for a password, forwards requests and opens tunnels. `heads` are those that it received."""

    CREDENTIALS = "Basic " + base64.b64encode(b"me:s3cret").decode()

    def __init__(self) -> None:
        self.heads: list[str] = []

    def script(self, peer: Peer) -> None:
        head = peer.head()
        self.heads.append(head)
        line, *headers = head.split("\r\n")
        method, target, _ = line.split(" ")
        if f"proxy-authorization: {self.CREDENTIALS}" not in headers:
            peer.send(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 6\r\n\r\ndenied")
            return
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            rest = b""
        else:
            authority, _, path = target.removeprefix("http://").partition("/")
            host, _, port = authority.rpartition(":")
            kept = [header for header in headers if not header.startswith("proxy-")]
            rest = "\r\n".join([f"{method} /{path} HTTP/1.1", *kept, "connection: close", "", ""]).encode()
        with socket.create_connection((host, int(port)), TIMEOUT_S) as upstream:
            if method == "CONNECT":
                peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            upstream.sendall(rest)
            back = threading.Thread(target=self._relay, args=(upstream, peer.socket), daemon=True)
            back.start()
            self._relay(peer.socket, upstream)
            back.join(TIMEOUT_S)

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def proxy_url(port: int, user: str = "me:s3cret") -> str:
    return f"http://{user}@127.0.0.1:{port}"


def test_requests_go_through_a_proxy(look: Look, shared_service: ServiceProcess, topic: str) -> None:
    with Client(shared_service.url) as client:
        client.put(topic, id="a")
    proxy = HttpProxy()
    with scripted_server(proxy.script) as server:
        assert look(shared_service.url, "a", topic, proxy=proxy_url(server.port), key="k3y") == "a"
    assert proxy.heads[0].startswith(f"GET {shared_service.url}/jobs/{topic}/a HTTP/1.1\r\n")
    assert "authorization: Bearer k3y" in proxy.heads[0].split("\r\n")


def test_https_goes_through_a_tunnel_of_the_proxy(
    look: Look, shared_service: ServiceProcess, files: TlsFiles, topic: str
) -> None:
    with Client(shared_service.url) as client:
        client.put(topic, id="a")
    proxy = HttpProxy()
    with scripted_server(proxy.script) as server, tls_in_front_of(shared_service.port, files) as port:
        url = f"https://localhost:{port}"
        assert look(url, "a", topic, proxy=proxy_url(server.port), tls=files.trust(), key="k3y") == "a"
    assert [head.split("\r\n")[0] for head in proxy.heads] == [f"CONNECT localhost:{port} HTTP/1.1"]
    assert "k3y" not in proxy.heads[0]


def test_a_proxy_that_refuses_is_reported_without_secrets(look: Look, shared_service: ServiceProcess) -> None:
    with scripted_server(HttpProxy().script) as server:
        wrong = proxy_url(server.port, "me:wr0ng")
        with pytest.raises(UnexpectedAnswer, match=r"407: .* begins with 'denied'") as refused:
            look(shared_service.url, proxy=wrong)
        with pytest.raises(Unreachable, match=r"the proxy refused .*: status 407") as not_reached:
            look("https://localhost:1", proxy=wrong)
    for failed in (refused, not_reached):
        assert "wr0ng" not in str(failed.value)


@pytest.mark.parametrize(
    "sent",
    [b"", b"HTTP/1.1 200 OK\r\n\r\nX", b"HTTP/1.1 200 OK\r\n", b"\0", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000],
    ids=["nothing", "more", "half", "garbage", "too much"],
)
def test_a_broken_proxy_is_unreachable(look: Look, sent: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.head()
        peer.send(sent)

    with scripted_server(script) as server, pytest.raises(Unreachable):
        look("https://localhost:1", proxy=proxy_url(server.port))


def test_the_time_to_connect_includes_the_proxy(look: Look) -> None:
    def script(peer: Peer) -> None:
        peer.head()
        while True:
            peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            time.sleep(0.1)

    with scripted_server(script) as server:
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            look("https://localhost:1", proxy=proxy_url(server.port), timeout=0.4)
        assert 0.3 < time.monotonic() - began_s < 3


def test_proxies_of_the_environment_are_not_used(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with scripted_server(responding) as server:
        assert look(server.url) == "a"


# Addresses


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_service_is_reached_by_ipv6(look: Look) -> None:
    with scripted_server(responding, host="::1") as server:
        assert look(server.url) == "a"


@contextlib.contextmanager
def full_listener() -> Iterator[socket.socket]:
    """A listener to which connecting takes forever."""
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener


def resolve_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let the name service.test have 127.0.0.1 with each of these ports as its addresses."""
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if host == "service.test" and not options.get("flags"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
        return original(host, *args, **options)

    async def in_loop(_: object, host: str, *args: Any, **options: Any) -> Any:
        return getaddrinfo(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(uvloop.Loop, "getaddrinfo", in_loop)


def test_each_address_of_a_host_is_tried(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server(responding) as server:
        resolve_to(monkeypatch, 9, 10, server.port)
        assert look("http://service.test") == "a"
        resolve_to(monkeypatch, 9, 10)
        with pytest.raises(Unreachable, match=r"refused.*;.*refused|All connection attempts failed"):
            look("http://service.test")


@pytest.mark.slow
def test_an_address_that_does_not_respond_leaves_time_for_the_next(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server(responding) as server, full_listener() as full:
        resolve_to(monkeypatch, full.getsockname()[1], server.port)
        assert look("http://service.test", timeout=2) == "a"
        resolve_to(monkeypatch, full.getsockname()[1])
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            look("http://service.test", timeout=0.3)
        assert 0.2 < time.monotonic() - began_s < 2


def test_a_name_that_does_not_exist_is_unreachable(look: Look) -> None:
    with pytest.raises(Unreachable):
        look("http://no-such-host.invalid")


# Cancellation while connecting


@pytest.mark.parametrize("url", ["https://127.0.0.1:{}", "http://127.0.0.1:{}", "http://service.test"])
@pytest.mark.parametrize("script", [never_responding, responding])
async def test_a_call_that_is_cancelled_while_it_connects_frees_its_turn(
    url: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_server(script) as server:
        resolve_to(monkeypatch, server.port, server.port)
        async with AsyncClient(url.format(server.port), connections=1, retry_for=0, timeout=0.5) as client:
            for ticks in range(40):
                call = asyncio.create_task(client.get("t", "a"))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
            if script is responding and url.startswith("http:"):
                assert (await client.get("t", "a")).id == "a"
            else:
                with pytest.raises((NoAnswer, Unreachable)) as failed:
                    await client.get("t", "a")
                assert "in use" not in str(failed.value)


# Processes


def test_an_asynchronous_client_can_be_used_after_a_fork() -> None:
    program = """
import asyncio, os, sys
from deferd import AsyncClient
client = AsyncClient(sys.argv[1], retry_for=0)
async def looks(name):
    return {(await client.get("t", name)).id for _ in range(20)} == {name}
async def looks_and_closes(name):
    good = await looks(name)
    await client.close()
    return good
runner = asyncio.Runner()
assert runner.run(looks("before"))
child = os.fork()
if not child:
    os._exit(0 if asyncio.new_event_loop().run_until_complete(looks_and_closes("child")) else 1)
_, status = os.waitpid(child, 0)
assert runner.run(looks_and_closes("parent"))
runner.close()
sys.exit(status)
"""
    with scripted_server(responding) as server:
        command = [sys.executable, "-c", program, server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert server.connections == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each socket an inode")
@pytest.mark.parametrize("call", ["Client(url).get('t', 'a')", "asyncio.run(AsyncClient(url).get('t', 'a'))"])
def test_a_forked_child_lets_go_of_connections_that_are_being_made(call: str) -> None:
    program = f"""
import asyncio, os, socket, stat, threading, time
from deferd import AsyncClient, Client
listener = socket.create_server(("127.0.0.1", 0), backlog=0)
address = listener.getsockname()
url = f"http://127.0.0.1:{{address[1]}}"
fillers = [socket.socket() for _ in range(4)]
for filler in fillers:
    filler.setblocking(False)
    filler.connect_ex(address)
def is_of_ip(descriptor):
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
    except OSError:  # it is closed
        return False
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return copy.family == socket.AF_INET
def count():
    return sum(map(is_of_ip, range(3, 64)))
before = count()
threading.Thread(target=lambda: {call}, daemon=True).start()
while count() == before:
    time.sleep(0.01)
time.sleep(0.1)
child = os.fork()
if not child:
    os._exit(count() - before)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stderr) == (0, "")

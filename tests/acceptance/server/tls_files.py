"""Certificates for tests, and a TLS end in front of a server that has none."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import trustme

_PIECE_BYTES = 65536


class TlsFiles:
    """A certificate for this machine, its key, and the authority that signed it, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = trustme.CA()
        self.authority_file = folder / "authority.pem"
        self.authority.cert_pem.write_to_path(str(self.authority_file))
        self.cert, self.key = self.issue("service")

    def issue(self, name: str, *, not_after: datetime | None = None) -> tuple[Path, Path]:
        """Another certificate for this machine and its key."""
        issued = self.authority.issue_cert("localhost", "127.0.0.1", not_after=not_after)
        cert, key = self.folder / f"{name}-cert.pem", self.folder / f"{name}-key.pem"
        for blob in issued.cert_chain_pems:
            blob.write_to_path(str(cert), append=True)
        issued.private_key_pem.write_to_path(str(key))
        return cert, key

    def renew(self, name: str) -> bytes:
        """Put another certificate and its key in place of those of the service, one after the other; what it is."""
        cert, key = self.issue(name)
        end = "-----END CERTIFICATE-----"
        first, _, _ = cert.read_text(encoding="utf-8").partition(end)
        cert.replace(self.cert)
        key.replace(self.key)
        return ssl.PEM_cert_to_DER_cert(first + end)

    def trust(self) -> ssl.SSLContext:
        """The TLS context of a client that trusts the authority."""
        return ssl.create_default_context(cafile=str(self.authority_file))

    def flags(self) -> tuple[str, ...]:
        """The flags that configure the certificate of a service."""
        return ("--tls-cert", str(self.cert), "--tls-key", str(self.key))


@contextlib.contextmanager
def tls_in_front_of(port: int, files: TlsFiles) -> Iterator[int]:
    """A port of this machine that ends TLS and relays to `port` and back."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    def serve(raw: socket.socket) -> None:
        with contextlib.suppress(OSError):
            outer = context.wrap_socket(raw, server_side=True)
            inner = socket.create_connection(("127.0.0.1", port))
            open_sockets.extend((outer, inner))
            threading.Thread(target=pass_on, args=(inner, outer), daemon=True).start()
            pass_on(outer, inner)

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                target.sendall(piece)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for one in open_sockets:
                one.close()

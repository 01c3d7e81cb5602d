"""The certificate of the service's own HTTPS: read at the start, and again when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from pathlib import Path

from deferd.settings import Settings, flag, variable

CHECK_S = 1.0
"""How often the files are looked at."""
_ANY_BYTES = "latin-1"
"""PEM is ASCII; text between its blocks may be anything."""
_log = logging.getLogger("deferd.certificate")


class CertificateRefused(Exception):
    """The certificate or its key cannot be used; the text is a sentence that names the setting and the file."""


class Certificate:
    """What a service with `--tls-cert` and `--tls-key` proves by who it is. Making it reads the files.

    `context` is for the server. It is the same all the time: each new connection is given the newest certificate,
    while those that are open stay as they are. `last_good` is what was in the files, certificate and key, when they
    could last be used.

    Raises:
        CertificateRefused: see `read_context`; not when there is a `last_good`, which then counts, and that is logged.
    """

    def __init__(self, cert: Path, key: Path, last_good: tuple[str, str] | None = None) -> None:
        self._files = cert, key
        self._complaint = ""
        try:
            self._seen = _contents(cert, key)
            self.context = self._newest = read_context(cert, key)
        except CertificateRefused as exc:
            if last_good is None:
                raise
            self._complaint = str(exc)
            _log.error("the certificate stays as it was: %s", exc)
            self._seen = last_good
            self.context = self._newest = _context_of(last_good)
        self.context.sni_callback = self._show_newest

    @property
    def last_good(self) -> tuple[str, str]:
        """What was in the files when they could last be used."""
        return self._seen

    def _show_newest(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _of: ssl.SSLContext) -> None:
        connection.context = self._newest

    def read_if_changed(self) -> bool:
        """Whether the files have changed, and new connections get what is in them. It reads the disk.

        Raises:
            CertificateRefused: what is there now cannot be used, and the certificate stays as it was.
        """
        seen = _contents(*self._files)
        if seen == self._seen:
            return False
        self._newest = read_context(*self._files)
        self._seen = seen  # if they changed in between, they differ from this
        return True

    async def follow(self) -> None:
        """Read the files again when they change, until cancelled. What is wrong with them is said once."""
        trouble, times = self._complaint, 2 if self._complaint else 0
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                renewed = await asyncio.to_thread(self.read_if_changed)
            except CertificateRefused as exc:
                times = times + 1 if str(exc) == trouble else 1
                trouble = str(exc)
                if times == 2:  # the first time, one of the two files may have been replaced and the other not yet
                    _log.error("the certificate stays as it was: %s", exc)
            except Exception:  # noqa: BLE001 (to end here would let the certificate run out)
                _log.exception("the certificate stays as it was: its files could not be looked at")
            else:
                trouble, times = "", 0
                if renewed:
                    _log.info("the certificate was read again")


def certificate(settings: Settings, last_good: tuple[str, str] | None = None) -> Certificate | None:
    """What these settings say that the certificate is; None when the service speaks HTTP. Raises CertificateRefused.

    `last_good` is for files that are broken now: what was in them when they could last be used.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key, last_good)


def read_context(cert: Path, key: Path) -> ssl.SSLContext:
    """A server's context with the certificate and key of these files, TLS 1.2 at least.

    Raises:
        CertificateRefused: a file is not there, is none in PEM form, or the key is another certificate's or has a
            passphrase, or OpenSSL holds the certificate for too weak.
    """
    _contents(cert, key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except (OSError, ValueError):
        raise CertificateRefused(f"{_named('tls_cert', cert)} holds no certificate in PEM form") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")  # or it would ask a terminal
    except OSError as exc:  # an SSLError is one
        reason = getattr(exc, "reason", None) or ""
        if reason == "KEY_VALUES_MISMATCH":
            said = f"{_named('tls_key', key)} is not the key of the certificate in {flag('tls_cert')}"
        elif reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
            said = f"{_named('tls_cert', cert)} is too weak: {reason.lower().replace('_', ' ')}"
        else:
            said = f"{_named('tls_key', key)} holds no private key in PEM form and without a passphrase"
        raise CertificateRefused(said) from None
    return context


def _context_of(contents: tuple[str, str]) -> ssl.SSLContext:
    """As `read_context`, of contents instead of files; OpenSSL reads files only, so they are files for a moment."""
    try:
        with tempfile.TemporaryDirectory(prefix="deferd-tls-") as folder:  # which only its owner may enter
            cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
            for file, content in zip((cert, key), contents, strict=True):
                file.write_bytes(content.encode(_ANY_BYTES))
            return read_context(cert, key)
    except OSError as exc:
        reason = exc.strerror or exc
        raise CertificateRefused(
            f"the last good certificate cannot be written to a file for a moment: {reason}"
        ) from exc


def _contents(cert: Path, key: Path) -> tuple[str, str]:
    """What is in the files. Raises CertificateRefused when one cannot be read."""
    return _content("tls_cert", cert), _content("tls_key", key)


def _content(name: str, file: Path) -> str:
    try:
        return file.read_bytes().decode(_ANY_BYTES)
    except OSError as exc:
        raise CertificateRefused(f"{_named(name, file)} is not readable: {exc.strerror or exc}") from exc


def _named(name: str, file: Path) -> str:
    return f"{flag(name)} ({variable(name)}) {file}"

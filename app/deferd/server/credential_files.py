"""The files with the API keys and the certificate, and what they held when they were last valid.

The supervisor passes the last valid content to each server process that it starts. A process that starts while a file
is broken then serves with the same keys and certificate as the others, and follows the file from there.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from prometheus_client import Gauge

from deferd.api.auth.api_keys import KeysRefused
from deferd.api.auth.key_source import key_source
from deferd.contract.timestamps import format_instant
from deferd.server.startup_errors import CannotServe, CertificateRefused
from deferd.settings import Settings, flag, variable

_SUPERVISOR_CHECK_S = 0.25
"""More often than the server processes check, so that what one of them has read is known here when it dies."""
_supervisor_log = logging.getLogger("deferd.server.supervisor")


@dataclass(frozen=True)
class LastGoodCredentials:
    """The text of the keys file; the certificate and its private key in PEM form. None: not configured."""

    keys: str | None = field(default=None, repr=False)
    certificate: tuple[str, str] | None = field(default=None, repr=False)


class CredentialFiles:
    """The keys and the certificate of the settings; each is None if not configured. The constructor reads them.

    Raises:
        KeysRefused, CertificateRefused: they cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.keys = key_source(settings)
        if self.keys is not None:
            self.keys.read()
        self.certificate = certificate(settings)

    @property
    def last_good(self) -> LastGoodCredentials:
        """Their content when it was last valid."""
        return LastGoodCredentials(
            None if self.keys is None else self.keys.last_good,
            None if self.certificate is None else self.certificate.last_good,
        )

    async def follow(self) -> None:
        """Read the files when they change, until cancelled. The server processes log what is wrong with them."""
        sources = [source for source in (self.keys, self.certificate) if source is not None]
        while sources:
            await asyncio.sleep(_SUPERVISOR_CHECK_S)
            for source in sources:
                try:
                    if await asyncio.to_thread(source.read_if_changed):
                        _supervisor_log.debug("reloaded the keys and certificate files for new server processes")
                except (KeysRefused, CertificateRefused):
                    continue
                except Exception:  # noqa: BLE001 (ending here would keep a revoked key for new server processes)
                    _supervisor_log.exception("cannot check the keys and certificate files for changes")


async def read_credentials(settings: Settings) -> CredentialFiles:
    """The files as they are now. Raises CannotServe when they cannot be used."""
    try:
        return await asyncio.to_thread(CredentialFiles, settings)
    except (KeysRefused, CertificateRefused) as exc:
        raise CannotServe(str(exc)) from exc


CHECK_S = 1.0
"""How often the files are checked for changes."""
_DAY_S = 86_400.0
REMINDED_S = 14 * _DAY_S
"""From so long before its end on the log says each day that the certificate must be renewed."""
_ANY_BYTES = "latin-1"
"""PEM is ASCII; text between its blocks may be anything."""
_log = logging.getLogger("deferd.certificate")


class Certificate:
    """The certificate of `--tls-cert` and `--tls-key`. The constructor reads the files.

    `context` is for the server and never replaced: it gives each new connection the newest certificate, and open
    connections keep theirs. `last_good` is the content of both files when they were last valid.

    Raises:
        CertificateRefused: see `read_context`. With a `last_good` that is used instead and the error is logged.
    """

    def __init__(self, cert: Path, key: Path, last_good: tuple[str, str] | None = None) -> None:
        self._files = cert, key
        self._refusal = ""
        self._ends_s: float | None = None
        self._next_reminder_s = 0.0
        try:
            self._seen = _contents(cert, key)
            self.context = self._newest = read_context(cert, key)
            self._ends_s = _end_of(cert)
        except CertificateRefused as exc:
            if last_good is None:
                raise
            self._refusal = str(exc)
            _log.error("the certificate stays as it was: %s", exc)
            self._seen = last_good
            self.context = self._newest = _context_of(last_good)
        self.context.sni_callback = self._show_newest
        self._report_end()

    @property
    def last_good(self) -> tuple[str, str]:
        """The content of the files when they were last valid."""
        return self._seen

    def _show_newest(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _of: ssl.SSLContext) -> None:
        connection.context = self._newest

    def read_if_changed(self) -> bool:
        """Reload the files if they have changed; whether they have. It reads the disk.

        Raises:
            CertificateRefused: their content cannot be used, and the certificate stays as it was.
        """
        seen = _contents(*self._files)
        if seen == self._seen:
            return False
        self._newest = read_context(*self._files)
        self._ends_s, self._next_reminder_s = _end_of(self._files[0]), 0.0
        self._report_end()
        self._seen = seen  # a change in between is seen next time
        return True

    async def follow(self) -> None:
        """Reload the files when they change, until cancelled. An error is logged once, the end of validity daily."""
        refusal, times = self._refusal, 2 if self._refusal else 0
        while True:
            self._remind(time.time())
            await asyncio.sleep(CHECK_S)
            try:
                reloaded = await asyncio.to_thread(self.read_if_changed)
            except CertificateRefused as exc:
                times = times + 1 if str(exc) == refusal else 1
                refusal = str(exc)
                if times == 2:  # the first time, maybe only one of the two files has been replaced
                    _log.error("the certificate stays as it was: %s", exc)
            except Exception:  # noqa: BLE001 (ending here would let the certificate expire)
                _log.exception("the certificate stays as it was: its files cannot be checked for changes")
            else:
                refusal, times = "", 0
                if reloaded:
                    _log.info("reloaded the certificate")

    def _report_end(self) -> None:
        if self._ends_s is not None:
            _end_metric().set(self._ends_s)

    def _remind(self, now_s: float) -> None:
        """Log that the certificate ends soon, or has ended, at most once a day. Nothing else notices: clients do."""
        if self._ends_s is None or now_s < self._next_reminder_s or now_s < self._ends_s - REMINDED_S:
            return
        has_ended = now_s >= self._ends_s
        self._next_reminder_s = now_s + _DAY_S if has_ended else min(now_s + _DAY_S, self._ends_s)
        level, text = logging.WARNING, "is valid until %s only: renew it"
        if has_ended:
            level, text = logging.ERROR, "has expired at %s, and clients refuse it: renew it"
        ends_at = format_instant(datetime.fromtimestamp(self._ends_s, UTC))
        _log.log(level, f"%s {text}", _named("tls_cert", self._files[0]), ends_at, extra={"ends_at": ends_at})


@cache
def _end_metric() -> Gauge:
    """Not made at import: it would be 0 in a service without HTTPS."""
    text = "When the certificate of the service ends, in seconds since the epoch; only services with HTTPS."
    return Gauge("deferd_certificate_end_timestamp_seconds", text, multiprocess_mode="livemin")


def certificate(settings: Settings, last_good: tuple[str, str] | None = None) -> Certificate | None:
    """The certificate of these settings; None for a service without HTTPS. Raises CertificateRefused.

    `last_good` is used while the files are invalid; see `Certificate`.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key, last_good)


def read_context(cert: Path, key: Path) -> ssl.SSLContext:
    """A server context with the certificate and key of these files, for TLS 1.2 or newer.

    Raises:
        CertificateRefused: a file is missing or not PEM, the key belongs to another certificate or has a passphrase,
            or OpenSSL considers the certificate too weak.
    """
    _contents(cert, key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except (OSError, ValueError):
        raise CertificateRefused(f"{_named('tls_cert', cert)} has no certificate in PEM form") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")  # or OpenSSL would prompt on the terminal
    except OSError as exc:  # an SSLError is one
        reason = getattr(exc, "reason", None) or ""
        if reason == "KEY_VALUES_MISMATCH":
            text = f"{_named('tls_key', key)} is not the key of the certificate in {flag('tls_cert')}"
        elif reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
            text = f"{_named('tls_cert', cert)} is too weak: {reason.lower().replace('_', ' ')}"
        else:
            text = f"{_named('tls_key', key)} has no private key in PEM form without a passphrase"
        raise CertificateRefused(text) from None
    return context


def _end_of(cert: Path) -> float | None:
    """Until when the first certificate of a file is valid, in seconds since 1970; None when that cannot be read.

    The public functions of `ssl` show only certificates of others, of which they have verified the authority.
    """
    try:
        return ssl.cert_time_to_seconds(ssl._ssl._test_decode_cert(str(cert))["notAfter"])  # type: ignore[attr-defined]  # see above
    except (AttributeError, KeyError, OSError, ValueError):
        return None


def _context_of(contents: tuple[str, str]) -> ssl.SSLContext:
    """As `read_context`, from contents: they are written to temporary files, because OpenSSL only reads files."""
    try:
        with tempfile.TemporaryDirectory(prefix="deferd-tls-") as folder:  # accessible to its owner only
            cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
            for file, content in zip((cert, key), contents, strict=True):
                file.write_bytes(content.encode(_ANY_BYTES))
            return read_context(cert, key)
    except OSError as exc:
        reason = exc.strerror or exc
        raise CertificateRefused(f"the last valid certificate cannot be written to a temporary file: {reason}") from exc


def _contents(cert: Path, key: Path) -> tuple[str, str]:
    """The content of the files. Raises CertificateRefused when one cannot be read."""
    return _content("tls_cert", cert), _content("tls_key", key)


def _content(name: str, file: Path) -> str:
    try:
        return file.read_bytes().decode(_ANY_BYTES)
    except OSError as exc:
        raise CertificateRefused(f"{_named(name, file)} is not readable: {exc.strerror or exc}") from exc


def _named(name: str, file: Path) -> str:
    return f"{flag(name)} ({variable(name)}) {file}"

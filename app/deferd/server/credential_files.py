"""The files with the API keys and the certificate, and what they held when they were last valid.

The supervisor passes the last valid content to each server process that it starts. A process that starts while a file
is broken then serves with the same keys and certificate as the others, and follows the file from there.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from deferd.api.auth.api_keys import KeysRefused
from deferd.api.auth.key_source import key_source
from deferd.server.startup_errors import CannotServe
from deferd.server.tls import CertificateRefused, certificate
from deferd.settings import Settings

_CHECK_S = 0.25
"""More often than the server processes check, so that what one of them has read is known here when it dies."""
_log = logging.getLogger("deferd.server.supervisor")


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
            await asyncio.sleep(_CHECK_S)
            for source in sources:
                try:
                    if await asyncio.to_thread(source.read_if_changed):
                        _log.debug("reloaded the keys and certificate files for new server processes")
                except (KeysRefused, CertificateRefused):
                    continue
                except Exception:  # noqa: BLE001 (ending here would keep a revoked key for new server processes)
                    _log.exception("cannot check the keys and certificate files for changes")


async def read_credentials(settings: Settings) -> CredentialFiles:
    """The files as they are now. Raises CannotServe when they cannot be used."""
    try:
        return await asyncio.to_thread(CredentialFiles, settings)
    except (KeysRefused, CertificateRefused) as exc:
        raise CannotServe(str(exc)) from exc

"""The keys and the certificate as they were when their files could last be used.

A supervisor keeps them for the worker processes that it starts: one that starts while a file is broken, and so refused,
goes on with what the others have, and follows the file from there.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from deferd.api.auth.api_keys import KeysRefused
from deferd.api.auth.key_source import key_source
from deferd.server.tls import CertificateRefused, certificate
from deferd.settings import Settings

_LOOK_EVERY_S = 0.25
"""More often than the workers look, so that what one of them has seen is known here when it dies."""
_log = logging.getLogger("deferd.server.supervisor")


@dataclass(frozen=True)
class LastGood:
    """The text of the keys file; the certificate and its private key in PEM form. None: there is no such file."""

    keys: str | None = field(default=None, repr=False)
    certificate: tuple[str, str] | None = field(default=None, repr=False)


class FollowedFiles:
    """The files of the keys and of the certificate that the settings name. Making it reads them.

    Raises:
        KeysRefused, CertificateRefused: they cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._keys = key_source(settings)
        if self._keys is not None:
            self._keys.read()
        self._certificate = certificate(settings)

    @property
    def last_good(self) -> LastGood:
        """What was in them when they could last be used."""
        return LastGood(
            None if self._keys is None else self._keys.last_good,
            None if self._certificate is None else self._certificate.last_good,
        )

    async def follow(self) -> None:
        """Read them again when they change, until cancelled. What is wrong with them is left to the workers to log."""
        followed = [source for source in (self._keys, self._certificate) if source is not None]
        while followed:
            await asyncio.sleep(_LOOK_EVERY_S)
            for source in followed:
                try:
                    if await asyncio.to_thread(source.read_if_changed):
                        _log.debug("the files of keys and certificate were read again for new workers")
                except (KeysRefused, CertificateRefused):
                    continue
                except Exception:  # noqa: BLE001 (to end here would keep a key that was withdrawn for new workers)
                    _log.exception("the files of keys and certificate could not be looked at")

"""The TLS settings of a client that is given none."""

from __future__ import annotations

import ssl


def default_context() -> ssl.SSLContext:
    """A context that checks the certificate and the host name against the authorities of the certifi package.

    Environment variables such as SSL_CERT_FILE are not read.
    """
    import certifi  # noqa: PLC0415 (clients without https do not need it)

    return ssl.create_default_context(cafile=certifi.where())

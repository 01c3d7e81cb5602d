"""Why the service cannot start or keep running, and the log line that reports it."""

from __future__ import annotations

import logging

from redis.exceptions import RedisError

from deferd.api.auth.api_keys import KeysRefused
from deferd.contract.errors import DeferdError
from deferd.store.preflight import StoreRefused

_log = logging.getLogger("deferd")


class CannotServe(Exception):
    """The service cannot start or continue; the text is one sentence for operators."""


class CertificateRefused(Exception):
    """The certificate or its key cannot be used; the text names the setting and the file."""


def log_startup_error(exc: Exception) -> None:
    """Log in one line why the service cannot run; a bug in the application comes with its traceback."""
    cause = exc.__cause__
    expected = cause is None or isinstance(
        cause, StoreRefused | KeysRefused | CertificateRefused | DeferdError | OSError | RedisError
    )
    _log.critical("%s", exc, exc_info=None if expected or isinstance(exc, StoreRefused) else cause)

"""Why a store cannot be reached, in the system's words: for callers and operators, without addresses and secrets."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

_NUMBER = re.compile(r"\bErr(?:no|or) (\d+)\b")
"""In texts of asyncio and redis-py, which have no `errno`: ``Error 111 connecting to ...``."""
_OWN_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_TOO_MANY_CLIENTS = "max number of clients"


def failure_reason(error: BaseException) -> str | None:
    """The reason in an error or in one that led to it; None when there is none."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or at.__context__
    # What redis-py says of an error has its number only: 1 for each that concerns TLS.
    reasons = (reason_of(one) for reason_of in (_of_kind, _of_text) for one in chain)
    return next((reason for reason in reasons if reason is not None), None)


def _of_kind(error: BaseException) -> str | None:
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS fails: {error.reason or error}"
        case socket.gaierror():
            return f"its name cannot be resolved: {error.strerror}"
        case OSError(errno=int() as number):
            return _of_number(number)
    return None


def _of_text(error: BaseException) -> str | None:
    if _TOO_MANY_CLIENTS in str(error):
        return "it has as many clients as its maxclients allows"
    found = _NUMBER.search(str(error))
    return None if found is None else _of_number(int(found[1]))


def _of_number(number: int) -> str | None:
    if number not in errno.errorcode:
        return None
    return f"this process has {os.strerror(number).lower()}" if number in _OWN_FILES else os.strerror(number)

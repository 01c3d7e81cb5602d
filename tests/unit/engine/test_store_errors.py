"""Why calls of the store fail: the reason in the words of the system, and the log that names each once."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from deferd.engine.scripts import FailureLog, failure_reason

REFUSED, RESET = errno.ECONNREFUSED, errno.ECONNRESET


def expired() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired")
    error.verify_message = "certificate has expired"
    return error


def led_to(cause: Exception | None, text: str) -> RedisConnectionError:
    """As redis-py raises it while it handles the cause."""
    error = RedisConnectionError(text)
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (led_to(ConnectionRefusedError(REFUSED, "x"), "Error connecting to 10.0.0.7"), "Connection refused"),
        (led_to(None, f"Error {REFUSED} connecting to 10.0.0.7:6379."), "Connection refused"),
        (led_to(None, f"Multiple exceptions: [Errno {REFUSED}] Connect call failed, [Errno 9]"), "Connection refused"),
        (led_to(None, f"the connection to the store broke: [Errno {RESET}] x"), "Connection reset by peer"),
        (led_to(socket.gaierror(-2, "Not known"), "x"), "its name cannot be resolved: Not known"),
        (led_to(expired(), "Error 1 connecting"), "its certificate is refused: certificate has expired"),
        (led_to(OSError(errno.EMFILE, "x"), "x"), "this process has too many open files"),
        (led_to(None, "max number of clients reached"), "it has as many clients as its maxclients allows"),
        (led_to(None, "the service is shutting down"), None),
        (led_to(None, "Error 99999 of something"), None),
    ],
    ids=str,
)  # fmt: skip
def test_the_reason_is_named_without_addresses(error: Exception, reason: str | None) -> None:
    assert failure_reason(error) == reason


def test_errors_in_a_circle_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert failure_reason(first) is None


def test_a_reason_is_logged_once_and_their_number_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog()
    for number in range(100):
        log.note("put", f"reason {number}")
        log.note("pop", "reason 0")
    assert caplog.text.count("calls fail: reason 0\n") == 1
    assert len(caplog.records) == 20

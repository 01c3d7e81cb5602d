"""The audit log: a line for each admin action that was carried out and for each request that was refused.

Its logger is `deferd.audit`. A key is named, an unknown one is not, and tokens are never written. The client is the
address that the connection comes from, or behind a `--trusted-proxy` that of its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from deferd.contract.errors import DeferdError, StoreUnavailable

_log = logging.getLogger("deferd.audit")
_TOPIC_SHOWN = 200
DONE, UNKNOWN = "done", "unknown"
WINDOW_S = 10.0
DISTINCT_MAX = 500


class AuditedRequest(NamedTuple):
    """A request as the log shows it: its operation, its topic if known, and the address of the client.

    `subject` is the name of what it concerns other than a topic, such as a schedule.
    """

    operation: str
    topic: str | None
    client: str | None
    subject: str | None = None


class AuditLog:
    """Writes the log, with a bound on refusals so that they cannot fill a disk.

    A refusal is written at once. Refusals of the same key, operation, topic, address and outcome within the next
    WINDOW_S seconds are counted and written as one line at its end. In that time at most DISTINCT_MAX different
    refusals are written; one line gives the number of the others.
    """

    def __init__(self) -> None:
        self._repeats: dict[tuple[str | None, AuditedRequest, str], int] = {}
        self._omitted = 0
        self._window_end: asyncio.TimerHandle | None = None

    def recording(self, key: str | None, request: AuditedRequest) -> AbstractContextManager[None]:
        """Around an admin action: write its outcome, unless it was refused and so changed nothing."""
        return reporting(lambda outcome: _write(logging.INFO, key, _shortened(request), outcome))

    def refused(self, key: str | None, request: AuditedRequest, code: str) -> None:
        """Write that a request was refused with the error `code`; `key` None: it had no known key."""
        request = _shortened(request)
        refusal = (key, request, code)
        if refusal in self._repeats:
            self._repeats[refusal] += 1
        elif len(self._repeats) < DISTINCT_MAX:
            self._repeats[refusal] = 0
            _write(logging.WARNING, key, request, code)
        else:
            self._omitted += 1
        if self._window_end is None:
            self._window_end = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)

    def close(self) -> None:
        """Write what was counted so far."""
        if self._window_end is not None:
            self._window_end.cancel()
            self._end_window()

    def _end_window(self) -> None:
        repeats, self._repeats, self._window_end = self._repeats, {}, None
        omitted, self._omitted = self._omitted, 0
        for (key, request, code), times in repeats.items():
            if times:
                _write(logging.WARNING, key, request, code, times)
        if omitted:
            _log.warning(
                "%d more refusals are not logged one by one", omitted, extra={"outcome": "refused", "count": omitted}
            )


@contextlib.contextmanager
def reporting(report: Callable[[str], None]) -> Iterator[None]:
    """Around an action: report its outcome, unless it was refused and so changed nothing.

    When it ends without a response of the store the outcome is unknown.
    """
    outcome: str | None = UNKNOWN
    try:
        yield
        outcome = DONE
    except StoreUnavailable:
        raise
    except DeferdError:
        outcome = None
        raise
    finally:
        if outcome is not None:
            report(outcome)


def _shortened(request: AuditedRequest) -> AuditedRequest:
    return request if request.topic is None else request._replace(topic=request.topic[:_TOPIC_SHOWN])


def _write(level: int, key: str | None, request: AuditedRequest, outcome: str, times: int | None = None) -> None:
    fields = {
        "key": key,
        "call": request.operation,
        "topic": request.topic,
        "client": request.client,
        "outcome": outcome,
        **({} if request.subject is None else {"subject": request.subject}),
    }
    _log.log(
        level,
        "%s: %s%s%s by %s from %s%s",
        outcome,
        request.operation,
        "" if request.subject is None else f" {request.subject}",
        "" if request.topic is None else f" on topic {request.topic!r}",
        "no known key" if key is None else f"key {key}",
        request.client or "an unknown address",
        "" if times is None else f", {times} times more",
        extra=fields if times is None else {**fields, "count": times},
    )

"""Sends a request until it gets a definite response: retries transient errors, and fails over between replicas.

A request is sent again only where that does no harm: always when it was certainly not executed (no connection, 429),
and after a lost response (broken connection, time-out, 408, 502, 503, 504) if it is repeatable.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from deferd.client.errors import NoAnswer, Unreachable
from deferd.client.requests import ApiRequest, Result
from deferd.client.retry import RetryPolicy
from deferd.client.transport import Transport
from deferd.contract.errors import DeferdError

_RETRY = RetryPolicy()

Value = TypeVar("Value")


class SendOutcome(NamedTuple, Generic[Value]):
    """The result of a request: a value or an error.

    `doubtful`: the response to an earlier attempt was lost, so that attempt may have been executed.
    """

    value: Value | None
    error: DeferdError | None
    doubtful: bool

    def result(self) -> Value:
        """The value. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # without an error, the value is set


class Sender:
    """Sends requests to the replicas of one service at `urls`: to one of them, and to the next when that one fails.

    `retry_for_s` is the longest time from the first attempt of a request to the start of its last one.
    """

    def __init__(self, transport: Transport, urls: Sequence[str], *, retry_for_s: float) -> None:
        self._transport = transport
        self.urls = tuple(urls)
        self._current = 0
        self.retry_for_s = retry_for_s

    async def send(self, request: ApiRequest[Result], *, retry_for_s: float | None = None) -> Result:
        """Send a request and return its result; `retry_for_s` overrides the sender's.

        Raises:
            DeferdError: the service refused; the error that it named.
            NoAnswer, UnexpectedAnswer: see `deferd.client.errors`.
        """
        return (await self.try_to_send(request, retry_for_s=retry_for_s)).result()

    async def try_to_send(
        self, request: ApiRequest[Result], *, retry_for_s: float | None = None
    ) -> SendOutcome[Result]:
        """As `send`, but return the error instead of raising it."""
        end_s = time.monotonic() + (self.retry_for_s if retry_for_s is None else retry_for_s)
        doubtful = False
        attempts = 0
        while True:
            replica = self._current
            attempts += 1
            try:
                response = await self._transport.exchange(self.urls[replica], request)
                return SendOutcome(request.read_response(*response), None, doubtful)
            except DeferdError as error:
                is_transient = _RETRY.is_transient(error)
                doubtful = doubtful or (is_transient and _RETRY.may_have_been_executed(error))
                if not is_transient or (doubtful and not request.repeatable):
                    return SendOutcome(None, _with_doubt(error, doubtful), doubtful)
                if not _RETRY.is_refusal(error):
                    if replica == self._current:
                        self._current = (replica + 1) % len(self.urls)
                    if attempts < len(self.urls):  # each replica is tried once before the first pause
                        continue
                pause_s = _RETRY.pause_s(max(attempts // len(self.urls) - 1, 0), error)
                if time.monotonic() + pause_s > end_s:
                    return SendOutcome(None, _with_doubt(error, doubtful), doubtful)
            await self._transport.sleep(pause_s)


def _with_doubt(error: DeferdError, doubtful: bool) -> DeferdError:
    """The last error, or NoAnswer if it denies an execution that an earlier attempt may have caused."""
    if not doubtful or not (isinstance(error, Unreachable) or _RETRY.is_refusal(error)):
        return error
    no_answer = NoAnswer(f"an earlier attempt got no response and may have been executed; the last one: {error}")
    no_answer.__cause__ = error
    return no_answer

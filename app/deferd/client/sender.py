"""Sends a request until it gets a definite response: retries transient errors, and fails over between replicas.

A request is sent again only where that does no harm: always when it was certainly not executed (no connection, 429),
and after a lost response (broken connection, time-out, 408, 502, 503, 504) if it is repeatable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from deferd.client.circuit import Circuit
from deferd.client.errors import NoAnswer, Unreachable
from deferd.client.requests import ApiRequest, Result, ready
from deferd.client.retry import RetryPolicy
from deferd.client.transport import Transport
from deferd.contract.errors import DeferdError, TooLate
from deferd.contract.real_time import monotonic_s

_RETRY = RetryPolicy()
_READY = ready()

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

    `retry_for_s` is the longest time from the first attempt of a request to the start of its last one. While the
    service does not respond, it counts from the beginning of that outage: later requests fail the sooner, and at once
    when the outage is older. Meanwhile only one request at a time asks whether the service is back; see Circuit.
    """

    def __init__(self, transport: Transport, urls: Sequence[str], *, retry_for_s: float) -> None:
        self._transport = transport
        self.urls = tuple(urls)
        self._current = 0
        self._circuit = Circuit(len(self.urls))
        self.retry_for_s = retry_for_s

    async def send(self, request: ApiRequest[Result], *, retry_for_s: float | None = None) -> Result:
        """Send a request and return its result; `retry_for_s` overrides the sender's.

        Raises:
            DeferdError: the service refused; the error that it named.
            NoAnswer, UnexpectedAnswer: see `deferd.client.errors`.
        """
        return (await self.try_to_send(request, retry_for_s=retry_for_s)).result()

    async def try_to_send(
        self, request: ApiRequest[Result], *, retry_for_s: float | None = None, doubtful: bool = False
    ) -> SendOutcome[Result]:
        """As `send`, but return the error instead of raising it.

        `doubtful`: an earlier request, whose response was lost, may have done the same already.
        """
        retry_for_s = self.retry_for_s if retry_for_s is None else retry_for_s
        end_s = monotonic_s() + retry_for_s
        outage_s = max(retry_for_s, self.retry_for_s)  # less is the rest of a call that has been in a batch
        circuit = self._circuit
        last = SendOutcome[Result](None, None, doubtful)
        rounds = 0
        while True:
            probe = None
            if circuit.is_open and not request.asks_readiness:
                probe = circuit.begin_probe()
                if probe is None:  # another call is asking, or it is too early
                    pause_s, error = circuit.pause_s(), last.error or circuit.error(request)
                    if monotonic_s() + pause_s > min(end_s, circuit.down_since_s + outage_s):
                        return _failed(error, last.doubtful)
                    await self._transport.sleep(pause_s)
                    continue
            try:
                if probe is not None and request.wait_s:  # a long poll says too late that the service is back
                    await self._try_each_replica(_READY, probe, doubtful=False)
                    if circuit.is_open:
                        continue
                last, is_definite = await self._try_each_replica(request, probe, doubtful=last.doubtful)
            finally:
                if probe is not None:
                    circuit.end_probe(probe)
            if last.error is None or is_definite:
                return last
            rounds += 1
            if circuit.is_open and not request.asks_readiness and monotonic_s() < end_s:
                continue  # to wait for a probe
            pause_s = _RETRY.pause_s(rounds - 1, last.error)
            if monotonic_s() + pause_s > end_s:
                return _failed(last.error, last.doubtful)
            await self._transport.sleep(pause_s)

    async def _try_each_replica(
        self, request: ApiRequest[Result], probe: object | None, *, doubtful: bool
    ) -> tuple[SendOutcome[Result], bool]:
        """Send a request once to each replica until one accepts or refuses it.

        Returns the outcome, and whether the request must not be sent again.
        """
        outcome = SendOutcome[Result](None, None, doubtful)
        for _ in self.urls:
            replica = self._current
            sent_at_s = monotonic_s()
            try:
                result = await self._exchange(self.urls[replica], request)
            except DeferdError as error:
                self._circuit.failed(error, sent_at_s, probe, wait_s=request.wait_s, replica=replica)
                is_transient = _RETRY.is_transient(error)
                is_refusal = _RETRY.is_refusal(error)
                doubtful = doubtful or (is_transient and _RETRY.may_have_been_executed(error))
                if is_transient and not is_refusal and replica == self._current:
                    self._current = (replica + 1) % len(self.urls)
                if not is_transient or (doubtful and not request.repeatable):
                    return _failed(error, doubtful), True
                outcome = SendOutcome(None, error, doubtful)
                if is_refusal:
                    break
            else:
                self._circuit.responded()
                return SendOutcome(result, None, doubtful), True
        return outcome, False

    async def _exchange(self, url: str, request: ApiRequest[Result]) -> Result:
        try:
            return request.read_response(*await self._transport.exchange(url, request), url=url)
        except TooLate:
            # It was not executed. If the service's clock was not known well enough, it is now, from this response.
            return request.read_response(*await self._transport.exchange(url, request), url=url)


def _failed(error: DeferdError, doubtful: bool) -> SendOutcome[Any]:
    return SendOutcome(None, _with_doubt(error, doubtful), doubtful)


def _with_doubt(error: DeferdError, doubtful: bool) -> DeferdError:
    """The last error, or NoAnswer if it denies an execution that an earlier attempt may have caused."""
    if not doubtful or not (isinstance(error, Unreachable) or _RETRY.is_refusal(error)):
        return error
    no_answer = NoAnswer(f"an earlier attempt got no response and may have been executed; the last one: {error}")
    no_answer.__cause__ = error
    return no_answer

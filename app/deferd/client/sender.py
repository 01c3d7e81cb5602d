"""Sends a request until it gets a definite response: retries transient errors, and fails over between replicas.

A request is sent again only where that does no harm: always when it was certainly not executed (no connection, 429),
and after a lost response (broken connection, time-out, 408, 502, 503, 504) if it is repeatable.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.requests import ApiRequest, Result, ready
from deferd.client.transport import Transport
from deferd.contract.clocks import epoch_s, monotonic_s
from deferd.contract.errors import DeferdError, RateLimited, StoreUnavailable, TooLate, TopicFull, TryLater


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which errors are worth a retry, and the pause before it: one policy for the client and the worker.

    Pauses double from `first_pause_s` up to `max_pause_s`, with jitter. A pause is never shorter than the Retry-After
    of the response. A proxy may ask for hours: without `heeds_proxies` only the service's own counts.
    """

    first_pause_s: float = 0.1
    max_pause_s: float = 5.0
    heeds_proxies: bool = True

    def pause_s(self, failures: int, error: DeferdError | None = None) -> float:
        """Seconds to wait after `error`, when `failures` attempts failed before this one."""
        grown_s = min(self.first_pause_s * 2.0 ** min(failures, 10), self.max_pause_s)
        return max(jittered(grown_s), self._requested_s(error) * random.uniform(1, 1.25))  # noqa: S311 (spreads load)

    def _requested_s(self, error: DeferdError | None) -> float:
        if isinstance(error, TryLater) or (self.heeds_proxies and isinstance(error, UnexpectedAnswer)):
            return error.retry_after_s or 0
        return 0

    @staticmethod
    def is_transient(error: DeferdError) -> bool:
        """Whether the same request may succeed later without anybody changing anything."""
        if isinstance(error, UnexpectedAnswer):
            return error.status in _TRANSIENT_STATUSES
        if isinstance(error, ClientClosed):
            return False
        return isinstance(error, NoAnswer | StoreUnavailable | TopicFull | RateLimited | TooLate)

    @staticmethod
    def is_refusal(error: DeferdError) -> bool:
        """Whether the request was turned away before it was executed, by a service that is up or by a busy client."""
        if isinstance(error, UnexpectedAnswer):
            return error.status == _TOO_MANY_REQUESTS
        return isinstance(error, TopicFull | RateLimited | TooLate | ClientBusy)

    @classmethod
    def may_have_been_executed(cls, error: DeferdError) -> bool:
        """Whether a transient error leaves open if the service executed the request."""
        return not cls.is_refusal(error) and not isinstance(error, Unreachable)


_TOO_MANY_REQUESTS = 429
_TRANSIENT_STATUSES = (_TOO_MANY_REQUESTS, 408, 502, 503, 504)


def jittered(pause_s: float) -> float:
    """Between half of `pause_s` and all of it, so that those who failed together do not return together."""
    return pause_s * random.uniform(0.5, 1)  # noqa: S311 (spreads load)


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
    when the outage is older. During an outage only one request at a time asks whether the service is back; see Circuit.
    """

    def __init__(self, transport: Transport, urls: Sequence[str], *, retry_for_s: float) -> None:
        self._transport = transport
        self.urls = tuple(urls)
        self._current = 0
        self._circuit = Circuit(len(self.urls))
        self.retry_for_s = retry_for_s

    async def sleep(self, seconds: float) -> None:
        """Wait before a further call."""
        await self._transport.sleep(seconds)

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


_PAUSES = RetryPolicy(first_pause_s=0.1, max_pause_s=1.0)
_PROBE_S = 5.0
"""A probe without a result for this long no longer keeps others from probing. No `Retry-After` does so for longer."""
_POLL_S = 0.1
_SURE_AFTER_S = 1.0
_FORGOTTEN_S = 300.0
"""A failure that comes this long after the last one begins a new outage: nobody knows what was between."""
_ENOUGH = 2
"""The weight of failures that show that a replica does not respond: one that is sure, or two others."""
_GATEWAY_STATUSES = (502, 503, 504)


class Circuit:
    """Whether the service responds, as the requests of a client have shown: a circuit breaker.

    It opens when requests to all `replicas` of the service have failed in a row, and closes with the first response.
    While it is open, only one request at a time asks whether the service is back: the probe, which is the first call
    after a pause that grows from 0.1 s to 1 s. The others wait for its result, or fail.

    One failure of each is enough when no connection could be made, or the response is more than a second late. A broken
    connection, or a gateway without a service, may concern one request only: it takes two of each. A circuit opens
    only if all replicas have failures, no matter how many fail at one of them.
    """

    def __init__(self, replicas: int) -> None:
        self._weights = [0] * replicas
        """The weight of the failures of each replica since the last response; see _ENOUGH."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._failed_at_s = 0.0
        self._responded_at_s = 0.0
        self._probe: object | None = None
        self._probes = 0
        self._next_probe_s = 0.0
        self._next_pause_s = 0.0
        self._last_error = ""
        self.is_open = False
        self.down_since_s = 0.0
        """When the first of the failed requests should have had its response at best, by the monotonic clock."""

    def responded(self) -> None:
        """Note a response of the service."""
        self._responded_at_s = monotonic_s()
        if any(self._weights):
            with self._own_lock():
                self._weights = [0] * len(self._weights)
                self._probes = 0
                self._probe = None
                self.is_open = False

    def failed(
        self, error: DeferdError, sent_at_s: float, probe: object | None, *, wait_s: float = 0.0, replica: int = 0
    ) -> None:
        """Note an error of a request that was sent to a replica at `sent_at_s`.

        `wait_s` is how long the service may take for it by design: a long poll that breaks off says nothing about the
        time before.
        """
        if not _is_failure(error):
            self.responded()
            return
        if isinstance(error, ClientBusy | ClientClosed) or sent_at_s < self._responded_at_s:
            return
        now_s = monotonic_s()
        due_s = min(sent_at_s + wait_s, now_s)
        is_sure = isinstance(error, Unreachable) or now_s - due_s > _SURE_AFTER_S
        with self._own_lock():
            if now_s - self._failed_at_s > _FORGOTTEN_S:
                self._weights = [0] * len(self._weights)
            if not any(self._weights) or due_s < self.down_since_s:
                self.down_since_s = due_s
            self._weights[replica] += _ENOUGH if is_sure else 1
            self._failed_at_s = now_s
            self._last_error = str(error)
            if probe is not None:
                self._next_pause_s = min(_PAUSES.pause_s(self._probes, error), _PROBE_S)
            elif not self.is_open:
                self.is_open = min(self._weights) >= _ENOUGH
                self._next_probe_s = now_s + min(_PAUSES.pause_s(0, error), _PROBE_S)

    def begin_probe(self) -> object | None:
        """A token if this call may ask now whether the service is back, otherwise None."""
        with self._own_lock():
            now_s = monotonic_s()
            if now_s < self._next_probe_s:
                return None
            self._probe = object()
            self._probes += 1
            self._next_probe_s = now_s + _PROBE_S
            self._next_pause_s = _PAUSES.pause_s(self._probes)
            return self._probe

    def end_probe(self, probe: object) -> None:
        """End a probe, also one that was cancelled before it had a result."""
        with self._own_lock():
            if self._probe is probe:
                self._probe = None
                self._next_probe_s = monotonic_s() + self._next_pause_s

    def _own_lock(self) -> threading.Lock:
        """The lock; after a fork a new one: another thread of the parent process may have held it."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
            self._probe = None  # its result comes in the parent process
        return self._lock

    def pause_s(self) -> float:
        """How long to wait before asking again for a probe, or for its result."""
        if self._probe is not None:
            return jittered(_POLL_S)
        return max(self._next_probe_s - monotonic_s(), jittered(_POLL_S) / 10)

    def error(self, request: ApiRequest[Any]) -> Unreachable:
        """The error of a request that is not sent because the circuit is open."""
        down_s = monotonic_s() - self.down_since_s
        since = datetime.fromtimestamp(epoch_s() - down_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        next_s = self._next_probe_s - monotonic_s()
        following = "an attempt is under way" if self._probe is not None else f"the next attempt is in {next_s:.1f} s"
        return Unreachable(
            f"{request.method} {request.path}: not sent, because the service has not responded since {since} "
            f"({down_s:.1f} s): {self._last_error}; {following}"
        )


def _is_failure(error: DeferdError) -> bool:
    """Whether an error is the lack of a response of the service."""
    if isinstance(error, UnexpectedAnswer):
        return error.status in _GATEWAY_STATUSES and not error.is_problem
    return isinstance(error, NoAnswer)

"""Sends calls until they are answered: again after trouble that passes, and to another service when one is away.

A call is sent again when that can do no harm: always while it is certain that it was not carried out (no connection,
429), and after a lost answer (a broken connection, a time-out, 408, 502, 503, 504) if it is repeatable. Waits grow from
`_FIRST_WAIT_S` to `_LONGEST_WAIT_S`, are spread so that clients do not come back in step, and are at least what the
service asks for in Retry-After.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from deferd.client.errors import ClientBusy, ClientClosed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.requests import Answer, Call, read_answer
from deferd.client.transport import Network
from deferd.contract.errors import DeferdError, RateLimited, StoreUnavailable, TopicFull, TryLater

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_TOO_MANY = 429
_PASSING_TROUBLE = (_TOO_MANY, 408, 502, 503, 504)

Answered = TypeVar("Answered")


class Outcome(NamedTuple, Generic[Answered]):
    """What came of a call: an answer or an error. `doubtful`: an earlier try may have been carried out unanswered."""

    answer: Answered | None
    error: DeferdError | None
    doubtful: bool

    def result(self) -> Answered:
        """The answer. Raises the error when there is one."""
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value]  # there is no error, so this is the answer


class Sender:
    """Sends to the services at `urls`, which are replicas of one: to the first, and on to the next when it is away.

    `retry_for_s` is the most time from the first try of a call to the beginning of its last.
    """

    def __init__(self, network: Network, urls: Sequence[str], *, retry_for_s: float) -> None:
        self._network = network
        self.urls = tuple(urls)
        self._current = 0
        self._retry_for_s = retry_for_s

    async def send(self, call: Call[Answer], *, retry_for_s: float | None = None) -> Answer:
        """The call's answer; `retry_for_s` in place of the sender's own.

        Raises:
            DeferdError: the service refused; the error that it named.
            NoAnswer, UnexpectedAnswer: see `deferd.client.errors`.
        """
        return (await self.try_to_send(call, retry_for_s=retry_for_s)).result()

    async def try_to_send(self, call: Call[Answer], *, retry_for_s: float | None = None) -> Outcome[Answer]:
        """As `send`, but an error is a part of what comes back."""
        end_s = time.monotonic() + (self._retry_for_s if retry_for_s is None else retry_for_s)
        doubtful = False
        tries = 0
        while True:
            at = self._current
            tries += 1
            try:
                reply = await self._network.exchange(self.urls[at], call)
                answer = read_answer(call, reply.status, reply.content, reply.retry_after)
                return Outcome(answer, None, doubtful)
            except DeferdError as error:
                if not _passes(error):
                    return Outcome(None, _with_doubt(error, doubtful), doubtful)
                is_away = not _is_refused_for_now(error)
                doubtful = doubtful or (is_away and not isinstance(error, Unreachable))
                if doubtful and not call.repeatable:
                    return Outcome(None, _with_doubt(error, doubtful), doubtful)
                if is_away and at == self._current:
                    self._current = (at + 1) % len(self.urls)
                if is_away and tries < len(self.urls):  # each service is asked once before the first wait
                    continue
                wait_s = self._wait_s(tries, error)
                if time.monotonic() + wait_s > end_s:
                    return Outcome(None, _with_doubt(error, doubtful), doubtful)
            await self._network.sleep(wait_s)

    def _wait_s(self, tries: int, error: DeferdError) -> float:
        rounds = max(tries // len(self.urls) - 1, 0)
        grown_s = min(_FIRST_WAIT_S * 2.0 ** min(rounds, 10), _LONGEST_WAIT_S)
        asked_s = (error.retry_after_s if isinstance(error, TryLater | UnexpectedAnswer) else 0) or 0
        return max(grown_s * random.uniform(0.5, 1), asked_s * random.uniform(1, 1.25))  # noqa: S311 (spreads waits)


def _passes(error: DeferdError) -> bool:
    """Whether the same call may fare better in a moment."""
    if isinstance(error, UnexpectedAnswer):
        return error.status in _PASSING_TROUBLE
    if isinstance(error, ClientClosed):
        return False
    return isinstance(error, NoAnswer | StoreUnavailable | TopicFull | RateLimited)


def _is_refused_for_now(error: DeferdError) -> bool:
    """Whether the service is there, or was not asked, and the call was not carried out."""
    if isinstance(error, UnexpectedAnswer):
        return error.status == _TOO_MANY
    return isinstance(error, TopicFull | RateLimited | ClientBusy)


def _with_doubt(error: DeferdError, doubtful: bool) -> DeferdError:
    """The last error, unless it says that the call was not carried out where an earlier try may have been."""
    if not doubtful or not (isinstance(error, Unreachable) or _is_refused_for_now(error)):
        return error
    told = NoAnswer(f"an earlier try was not answered and may have been carried out; the last one: {error}")
    told.__cause__ = error
    return told

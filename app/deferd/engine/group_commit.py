"""Group commit: calls that arrive at the same time share one call of the store.

While a call for a topic is under way, the calls that arrive are collected and go together in the next one. A call that
arrives alone is sent at once, so there is no added delay. Under load, sharing saves a round trip and a script run for
each call, and an fsync where the store fsyncs always.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

from deferd.contract.errors import StoreUnavailable, TooLate
from deferd.engine.scripts import request_ending_at, request_ends_at_s
from deferd.store.pipeline import CallTooLate

Item = TypeVar("Item")
Result = TypeVar("Result")
OnResult = Callable[[Result | None, Exception | None], None]
"""Called once with the result, or with None and the error of the store call."""
_LOG = logging.getLogger(__name__)
_ENDS_SOON_S = 0.02
"""A call whose request ends this soon is not sent with others: if it reached the store too late, they would be sent a
second time."""


class _Waiting(msgspec.Struct, Generic[Item, Result], eq=False):  # made for every call, in half of a tuple's time
    """An item that waits for a call, and when its request ends."""

    item: Item
    on_result: OnResult[Result]
    ends_at_s: float


class GroupCommit(Generic[Item, Result]):
    """Collects items by topic and sends them with `send(topic, items)`, which returns their results in order.

    A result may be the error of its item alone.

    A call takes at most `most_items` items, and of several items at most `most_bytes` together, as `size` counts them.
    It may have an effect until the first of their requests ends; from then on it does nothing, and the others are sent
    again.
    """

    def __init__(
        self,
        send: Callable[[str, list[Item]], Awaitable[Sequence[Result | StoreUnavailable]]],
        *,
        size: Callable[[Item], int],
        most_items: int = 500,
        most_bytes: int = 512 * 1024,
    ) -> None:
        self._send = send
        self._size = size
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._waiting: dict[str, list[_Waiting[Item, Result]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, topic: str, item: Item) -> Result:
        """Send `item`, together with others of its topic, and return its result.

        An error of the store call is raised to all that were in it.
        """
        waiting = self._waiting.get(topic)
        if waiting is not None:
            future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            waiting.append(_Waiting(item, partial(settle, future), request_ends_at_s()))
            return await future
        self._waiting[topic] = []
        try:
            result = (await self._send(topic, [item]))[0]
            if isinstance(result, StoreUnavailable):
                raise result
            return result
        finally:
            if self._waiting[topic]:
                self._start(topic)
            else:
                del self._waiting[topic]

    def add(self, topic: str, item: Item, on_result: OnResult[Result]) -> None:
        """As `submit` for callers without a task: `on_result` is called, never from within this call.

        What is added in one turn of the event loop shares a call.
        """
        waiting = self._waiting.get(topic)
        added: _Waiting[Item, Result] = _Waiting(item, on_result, request_ends_at_s())
        if waiting is not None:
            waiting.append(added)
        else:
            self._waiting[topic] = [added]
            self._start(topic)

    def _start(self, topic: str) -> None:
        task = asyncio.get_running_loop().create_task(self._send_waiting(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_waiting(self, topic: str) -> None:
        """Send the items that wait, batch by batch, until none is left.

        The next batch is sent before the results of the last one are handed out: the store works on it at the same
        time.
        """
        call_soon = asyncio.get_running_loop().call_soon
        while self._waiting[topic]:
            batch = self._take_batch(self._waiting[topic])
            if len(batch) > 1:
                batch, ending = _without_ending(batch)
                if ending:
                    call_soon(_hand_out, ending, (), TooLate())
                if not batch:
                    continue
            results: Sequence[Result | StoreUnavailable] = ()
            error: Exception | None = None
            try:
                with request_ending_at(min([one.ends_at_s for one in batch])):
                    results = await self._send(topic, [one.item for one in batch])
            except Exception as exc:  # noqa: BLE001 (every caller must learn of any error)
                error = exc
                if isinstance(exc.__cause__, CallTooLate):
                    others, ending = _without_ending(batch)
                    if ending:
                        self._waiting[topic][:0] = others
                        batch = ending
            if self._waiting[topic] or error is not None:  # an error may come at once, before earlier results
                call_soon(_hand_out, batch, results, error)
            else:
                _hand_out(batch, results, error)
        del self._waiting[topic]

    def _take_batch(self, waiting: list[_Waiting[Item, Result]]) -> list[_Waiting[Item, Result]]:
        taken, size = 0, 0
        for one in waiting:
            size += self._size(one.item)
            if taken and (taken == self._most_items or size > self._most_bytes):
                break
            taken += 1
        batch = waiting[:taken]
        del waiting[:taken]
        return batch


class SearchingCommit(GroupCommit[Item, Result]):
    """A group commit of items that `send` may miss. For those `search(topic, items)` is called, in a commit of their
    own: nobody whose item is found waits for the search.
    """

    def __init__(
        self,
        send: Callable[[str, list[Item]], Awaitable[Sequence[Result | StoreUnavailable]]],
        search: Callable[[str, list[Item]], Awaitable[Sequence[Result | StoreUnavailable]]],
        is_missing: Callable[[Result], bool],
        *,
        size: Callable[[Item], int],
        most_items: int,
    ) -> None:
        super().__init__(send, size=size, most_items=most_items)
        self._searches: GroupCommit[Item, Result] = GroupCommit(search, size=size, most_items=most_items)
        self._is_missing = is_missing

    async def submit(self, topic: str, item: Item) -> Result:
        """See GroupCommit."""
        result = await super().submit(topic, item)
        return await self._searches.submit(topic, item) if self._is_missing(result) else result

    def add(self, topic: str, item: Item, on_result: OnResult[Result]) -> None:
        """See GroupCommit."""
        ends_at_s = request_ends_at_s()

        def on_sent(result: Result | None, error: Exception | None) -> None:
            if error is not None or not self._is_missing(result):  # type: ignore[arg-type]  # as in `settle`
                on_result(result, error)
                return
            with request_ending_at(ends_at_s):
                self._searches.add(topic, item, on_result)

        super().add(topic, item, on_sent)


def _without_ending(
    batch: list[_Waiting[Item, Result]],
) -> tuple[list[_Waiting[Item, Result]], list[_Waiting[Item, Result]]]:
    """Split a batch: the items to send together, and the items whose requests have ended or end soon."""
    soon_s = asyncio.get_running_loop().time() + _ENDS_SOON_S
    ending = [one for one in batch if one.ends_at_s < soon_s]
    return ([one for one in batch if one.ends_at_s >= soon_s] if ending else batch), ending


def _hand_out(
    batch: list[_Waiting[Item, Result]],
    results: Sequence[Result | StoreUnavailable],
    error: Exception | None,
) -> None:
    for at, one in enumerate(batch):
        try:
            if at < len(results):
                result = results[at]
                if isinstance(result, StoreUnavailable):
                    one.on_result(None, result)
                else:
                    one.on_result(result, None)
            else:
                one.on_result(None, error or ValueError("the store call returned too few results"))
        except Exception:  # noqa: BLE001 (the other callers must still get theirs)
            _LOG.exception("the result of a store call could not be handled")


def settle(future: asyncio.Future[Result], result: Result | None, error: Exception | None) -> None:
    """Set the result or the error, unless the task that awaited it was cancelled."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # without an error it is a Result

"""Joins concurrent calls of one client into batches: a group commit on the client's side.

A call that arrives alone is sent at once. Calls that arrive while a request for the same group is under way are
collected and go together in the next one, so none waits for others to arrive. `AsyncBatching` does this for the tasks
of an event loop, `BlockingBatching` for threads; this module has what they share.

At most AT_ONCE requests of a group hold up its other calls, each for HOLD_S: a request that takes longer, for example
because it hangs, no longer counts. This is checked every HOLD_S / 2, so a call waits in the client for less than
1.5 HOLD_S, and a group has at most AT_ONCE requests under way for each HOLD_S of the time-out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

from deferd.contract.errors import DeferdError
from deferd.contract.real_time import monotonic_s

Result = TypeVar("Result")

AT_ONCE = 2
"""Requests of a group at the same time: while the service works on one, the client prepares another."""
HOLD_S = 0.5
MOST_JOBS = 500
MOST_BYTES = 512 * 1024
MOST_BYTES_OF_ONE = 64 * 1024
"""A larger call is sent by itself at once."""
_GROUPS_KEPT = 1000


class Call(ABC, Generic[Result]):
    """One call of the user. `piece` is its JSON in a batch.

    After its batch it has a `value` or an `error`, or it is `again` to be sent by itself; `doubtful` if it may have
    been executed.
    """

    __slots__ = ("again", "began_s", "doubtful", "error", "piece", "value", "waiter")

    def __init__(self) -> None:
        self.began_s: float | None = None
        """When it began to wait for a batch; None if it was sent at once."""
        self.piece = b""
        self.waiter: Any = None
        self.value: Any = None
        self.error: DeferdError | None = None
        self.again = False
        self.doubtful = False

    @abstractmethod
    def json(self) -> bytes:
        """The call in a batch. Raises InvalidInput if it cannot be written as JSON."""

    @abstractmethod
    async def send_alone(self) -> Result:
        """Send it as a request of its own, with regard to `doubtful` and the time since `began_s`."""

    def wait(self, waiter: Any) -> None:
        """Begin to wait for a batch; `waiter` belongs to the Batching."""
        self.began_s = monotonic_s()
        self.waiter = waiter

    def fail(self, error: DeferdError) -> None:
        """End with an error."""
        self.error = error
        self.again = False

    def succeed(self, value: Result) -> None:
        """End with a value."""
        self.value = value
        self.again = False

    def send_again(self, *, doubtful: bool) -> None:
        """Let it be sent by itself, because the batch had no result for it."""
        self.again = True
        self.doubtful = doubtful

    async def outcome(self) -> Result:
        """The result after its batch. Raises its error."""
        if self.again:
            return await self.send_alone()
        if self.error is not None:
            raise self.error
        value: Result = self.value
        return value


class CallKind(Protocol):
    """Sends batches of calls of one kind. `most_jobs` and `most_bytes` adapt to what the service accepts."""

    most_jobs: int
    most_bytes: int

    async def send_batch(self, calls: list[Any]) -> None:
        """Send calls in one request and set the outcome of each. Raises nothing of the service."""


class Batching(Protocol):
    """Runs calls, joined into batches where there are several at the same time."""

    async def run(self, kind: CallKind, key: Hashable, call: Call[Result]) -> Result:
        """The result of a call; calls with the same `kind` and `key` may share a request."""


class Slot:
    """A request under way that holds up other calls, with `count` calls in it. `over`: it has its response."""

    __slots__ = ("began_s", "count", "over")

    def __init__(self, count: int) -> None:
        self.began_s = monotonic_s()
        self.count = count
        self.over = False


class CallGroup:
    """The calls of one kind and key that wait, and the requests that hold them up."""

    def __init__(self, kind: CallKind) -> None:
        self.kind = kind
        self.waiting: deque[Call[Any]] = deque()
        self.slots: list[Slot] = []

    def begin(self, count: int) -> Slot:
        """Count a request as under way."""
        slot = Slot(count)
        self.slots.append(slot)
        return slot

    def has_room(self) -> bool:
        """Whether waiting calls may be sent now."""
        return len(self.slots) < AT_ONCE

    def drop_ended(self) -> None:
        """Stop counting requests that are over or have held up others for HOLD_S."""
        oldest_s = monotonic_s() - HOLD_S
        self.slots = [slot for slot in self.slots if not slot.over and slot.began_s > oldest_s]

    def take(self) -> list[Call[Any]]:
        """The calls of the next batch: all that wait, but no more than their share of the requests under way.

        With equal shares the requests overlap: the client encodes and decodes one while the service works on another.
        """
        outstanding = len(self.waiting) + sum(slot.count for slot in self.slots)
        most_jobs = min(-(-outstanding // AT_ONCE), self.kind.most_jobs)
        batch: list[Call[Any]] = []
        size = 0
        while self.waiting and len(batch) < most_jobs:
            size += len(self.waiting[0].piece) + 1
            if batch and size > self.kind.most_bytes:
                break
            batch.append(self.waiting.popleft())
        if len(batch) > 1:
            for call in batch:
                call.send_again(doubtful=True)  # unless its batch ends with another outcome for it
        return batch


Group = TypeVar("Group", bound=CallGroup)


def without_idle(groups: dict[Hashable, Group]) -> dict[Hashable, Group]:
    """The groups, without those that are not in use if there are many."""
    if len(groups) < _GROUPS_KEPT:
        return groups
    return {key: group for key, group in groups.items() if group.waiting or group.slots}

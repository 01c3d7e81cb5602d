"""Joins puts of concurrent tasks or threads into batches: a group commit on the client's side."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Unpack

from deferd.client.idempotency import with_id
from deferd.client.jobs import PutResult
from deferd.client.put_options import PutOptions, check_put, put_fields
from deferd.client.requests import as_json, job_fields
from deferd.contract.errors import Forbidden, InvalidInput
from deferd.contract.limits import BATCH_MAX


class PutsBatch(Protocol):
    """Puts up to 1000 jobs that have an id each. `doubtful`: they may have been put before."""

    def __call__(self, jobs: list[dict[str, Any]], *, doubtful: bool) -> Awaitable[list[PutResult]]: ...


class _Waiting:
    """A put on its way; one of `result` and `error` is there when its batch was answered."""

    __slots__ = ("doubtful", "error", "fields", "given_up", "result")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.doubtful = False
        self.given_up = False
        self.result: PutResult | None = None
        self.error: Exception | None = None


class PutBuffer:
    """Puts of many tasks at once, sent as batches.

    A put returns when its batch is answered, so it is exactly as durable as a put alone: with a result of status 201
    or 200 the job is stored. Nothing is held back to wait for company: whoever finds no batch under way sends at once
    all that has gathered, up to 1000 jobs.
    """

    def __init__(self, put_batch: PutsBatch, turn: AbstractAsyncContextManager[Any]) -> None:
        self._put_batch = put_batch
        self._turn = turn
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """How many puts wait for the next batch."""
        return len(self._waiting)

    async def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> PutResult:
        """Put a job in the next batch. The arguments are those of `Client.put`.

        A taken id raises nothing: the result then has status 409 and the `code`. A job that is too large has a result
        of 413.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: the job is not valid; it is in no batch then.
            DeferdError: the batch failed, as a call of `put_many` may.
        """
        mine = _Waiting(checked_put(topic, body, options))
        self._waiting.append(mine)
        try:
            async with self._turn:
                while mine.result is None and mine.error is None:
                    await self._send_some()
        finally:
            mine.given_up = True
        if mine.result is None:
            raise mine.error or AssertionError("a batch ended without a word on one of its jobs")
        return mine.result

    async def _send_some(self) -> None:
        """Send what has gathered. When that is cut off, the jobs of others go back to the head of the line."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < BATCH_MAX:
            one = self._waiting.popleft()
            if not one.given_up:
                batch.append(one)
        if not batch:
            return
        try:
            await self._send(batch)
        except BaseException:  # an Exception is the jobs' own; this is a cancel, or Ctrl-C
            left = [one for one in batch if one.result is None and one.error is None]
            for one in left:
                one.doubtful = True
            self._waiting.extendleft(reversed(left))
            raise

    async def _send(self, batch: list[_Waiting]) -> None:
        try:
            results = await self._put_batch([one.fields for one in batch], doubtful=any(one.doubtful for one in batch))
        except (InvalidInput, Forbidden) as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            # Nothing is stored then. Who it is about is told, the others go on without it.
            half = len(batch) // 2
            await self._send(batch[:half])
            await self._send(batch[half:])
        except Exception as error:  # noqa: BLE001 (whatever it is, each of its jobs is told)
            for one in batch:
                one.error = error
        else:
            for one, result in zip(batch, results, strict=True):
                one.result = result


def checked_put(topic: str, body: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """A job to put, with its id. A wrong value is found here, where it costs nobody else's job."""
    fields = with_id(job_fields(put_fields(topic, body, options)))
    as_json(fields)
    check_put(fields)
    return fields

"""Combines puts of concurrent tasks or threads into batches: a group commit on the client's side."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

from deferd.client.idempotency import put_batch_once, with_id
from deferd.client.jobs import PutResult
from deferd.client.put_options import PutOptions, check_put, put_fields
from deferd.client.request_body import as_json, job_fields
from deferd.client.sender import Sender
from deferd.contract.errors import Forbidden, InvalidInput
from deferd.contract.limits import BATCH_MAX


class _PendingPut:
    """A put in the buffer. After the response to its batch it has a `result` or an `error`."""

    __slots__ = ("abandoned", "doubtful", "error", "fields", "result")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.doubtful = False
        self.abandoned = False
        self.result: PutResult | None = None
        self.error: Exception | None = None


class PutBuffer:
    """Combines concurrent puts into batches.

    A put returns when its batch was stored, so it is exactly as durable as a single put: with a result of status 201
    or 200 the job is stored. No put waits for others to arrive: when no batch is in flight, the next put sends all that
    have gathered, up to 1000 jobs.
    """

    def __init__(self, sender: Sender, lock: AbstractAsyncContextManager[Any]) -> None:
        self._sender = sender
        self._lock = lock
        self._pending: deque[_PendingPut] = deque()

    @property
    def waiting(self) -> int:
        """The number of puts that wait for the next batch."""
        return len(self._pending)

    async def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> PutResult:
        """Put a job in the next batch. The arguments are those of `Client.put`.

        If the id is taken, nothing is raised: the result has status 409 and the `code`. If the job is too large, the
        result has status 413.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: the job is invalid; it is in no batch then.
            DeferdError: the batch failed, as in `put_many`.
        """
        mine = _PendingPut(checked_put(topic, body, options))
        self._pending.append(mine)
        try:
            async with self._lock:
                while mine.result is None and mine.error is None:
                    await self._send_pending()
        finally:
            mine.abandoned = True
        if mine.result is None:
            raise mine.error or AssertionError("a batch ended without a result for one of its jobs")
        return mine.result

    async def _send_pending(self) -> None:
        """Send a batch. If this task is cancelled, the jobs of the others return to the head of the queue."""
        batch: list[_PendingPut] = []
        while self._pending and len(batch) < BATCH_MAX:
            put = self._pending.popleft()
            if not put.abandoned:
                batch.append(put)
        if not batch:
            return
        try:
            await self._send(batch)
        except BaseException:  # a cancel or Ctrl-C: _send keeps every Exception in its jobs
            unsent = [put for put in batch if put.result is None and put.error is None]
            for put in unsent:
                put.doubtful = True
            self._pending.extendleft(reversed(unsent))
            raise

    async def _send(self, batch: list[_PendingPut]) -> None:
        doubtful = any(put.doubtful for put in batch)
        try:
            results = await put_batch_once(self._sender, [put.fields for put in batch], doubtful=doubtful)
        except (InvalidInput, Forbidden) as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            # Nothing was stored. Halving the batch finds the job that is refused; the others are stored without it.
            half = len(batch) // 2
            await self._send(batch[:half])
            await self._send(batch[half:])
        except Exception as error:  # noqa: BLE001 (each put raises it)
            for put in batch:
                put.error = error
        else:
            for put, result in zip(batch, results, strict=True):
                put.result = result


def checked_put(topic: str, body: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """A job to put, with its id. An invalid job is found here, where it does not fail the batch of others."""
    fields = with_id(job_fields(put_fields(topic, body, options)))
    as_json(fields)
    check_put(fields)
    return fields

"""Batches: jobs that are counted, so that one job is put when all of them have ended. The methods of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypedDict

from deferd.client.job_requests import IfReserved
from deferd.client.request_body import encode, without_none
from deferd.client.requests import ApiRequest, request_for
from deferd.client.sender import Sender
from deferd.contract.errors import BatchNotFound
from deferd.contract.operations import batches as operations
from deferd.contract.operations.batches import Batch, BatchEnd


class BatchEndDict(TypedDict, total=False):
    """BatchEnd as a JSON object."""

    topic: str
    id: str


def set_batch(
    name: str, *, on_end: BatchEnd | BatchEndDict | str | None = None, expect: int | None = None, seal: bool = False
) -> ApiRequest[Batch]:
    """`PUT /batches/{name}`: create, change or seal a batch."""
    fields: dict[str, Any] = without_none(expect=expect)
    if seal:
        fields["seal"] = True
    if on_end is not None:
        fields["on_end"] = {"topic": on_end} if isinstance(on_end, str) else on_end
    return request_for(operations.SET_BATCH, name, body=encode(fields), success=(200, 201))


class BatchMethods:
    """The calls for batches."""

    _sender: Sender

    async def set_batch(
        self,
        name: str,
        *,
        on_end: BatchEnd | BatchEndDict | str | None = None,
        expect: int | None = None,
        seal: bool = False,
    ) -> Batch:
        """Create, change or seal a batch: when it is sealed and all its jobs have ended, it puts one job.

        ::

            client.set_batch("import-42", on_end="imports.done")
            client.put("parse", "part-1", batch="import-42")
            client.put("parse", "part-2", batch="import-42")
            client.set_batch("import-42", seal=True)

        `on_end` is the topic of that job, or its topic and id; a new batch needs it. With `expect` the batch seals
        itself when it has so many jobs. What is left out stays as it is.

        Raises:
            InvalidInput: a value is invalid; the batch is new and has no `on_end`; or there are as many as may be.
            DifferentShard: the topic of `on_end` is in another shard of the store than the batch.
        """
        return await self._sender.send(set_batch(name, on_end=on_end, expect=expect, seal=seal))

    async def batch(self, name: str) -> Batch:
        """Get a batch with its counts. Raises BatchNotFound."""
        return await self._sender.send(request_for(operations.GET_BATCH, name))

    async def batches(self) -> AsyncIterator[Batch]:
        """List all batches, by name within each shard of the store."""
        cursor = None
        while True:
            query = without_none(cursor=cursor)
            page = await self._sender.send(request_for(operations.LIST_BATCHES, query=query))
            for batch in page.batches:
                yield batch
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete_batch(self, name: str, *, if_reserved: IfReserved = "cancel") -> int:
        """Cancel the jobs of a batch and delete it: it puts no job. Returns how many were cancelled.

        With ``if_reserved="refuse"`` jobs that a consumer holds stay.

        Raises BatchNotFound, but not when it was deleted by an attempt whose response was lost.
        """
        cancelled = 0
        while True:
            query = None if if_reserved == "cancel" else {"if_reserved": if_reserved}
            outcome = await self._sender.try_to_send(request_for(operations.DELETE_BATCH, name, query=query))
            if outcome.doubtful and isinstance(outcome.error, BatchNotFound):
                return cancelled
            deleted = outcome.result()
            cancelled += deleted.cancelled
            if deleted.deleted:
                return cancelled

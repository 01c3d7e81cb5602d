"""Puts that return a PutResult. Deprecated: concurrent puts of a client share requests by themselves."""

from __future__ import annotations

from typing import Any, Unpack

from deferd.client.idempotency import with_id
from deferd.client.joined_calls import JoinedCalls
from deferd.client.put_options import PutOptions, check_put, put_fields
from deferd.client.request_body import as_json, job_fields
from deferd.contract.responses.job_calls import PutResult


class PutBuffer:
    """Puts jobs as `Client.put` does, but returns a PutResult. Made by `Client.buffer`, which is deprecated."""

    def __init__(self, calls: JoinedCalls) -> None:
        self._calls = calls
        self.waiting = 0
        """The number of puts that are under way."""

    async def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> PutResult:
        """Put a job. The arguments are those of `Client.put`.

        If the id is taken, nothing is raised: the result has status 409 and the `code`. If the job is too large, the
        result has status 413.

        Raises:
            TypeError: an option is unknown.
            InvalidInput: the job is invalid.
            DeferdError: as in `put_many`.
        """
        fields = with_id(job_fields(put_fields(topic, body, options)))
        as_json(fields)
        check_put(fields)  # an invalid job is found here, before it is sent
        self.waiting += 1
        try:
            return await self._calls.put_for_result(fields)
        finally:
            self.waiting -= 1

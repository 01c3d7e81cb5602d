"""The client for asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from deferd.client import calls
from deferd.client.calls import Answer, Call
from deferd.client.failures import NoAnswer
from deferd.client.jobs import Delivery, FinishResult, Job, PutResult
from deferd.limits import BATCH_MAX, WAIT_DEFAULT_S
from deferd.model import FinishItem, PutJob

_JSON = {"content-type": "application/json"}


class AsyncClient:
    """Calls one deferd service over connections that it keeps open; use it as a context manager, or close it.

    `timeout` is the most seconds that the service may take to answer a call, beyond the `wait` of a pop; connecting
    and finding a free connection have the same bound each. At most `connections` calls run at a time, further ones
    queue for their turn. Every call raises CallRefused when the service says no, and NoAnswer when it says nothing.
    """

    def __init__(self, url: str, *, timeout: float = 10.0, connections: int = 100) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout
        # The transport alone: cookies, redirects and the like of httpx.AsyncClient take as long again as the call.
        self._transport = httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections), trust_env=False
        )

    async def send(self, call: Call[Answer]) -> Answer:
        """Send a call made by `deferd.client.calls`; the other methods are the usual ones of these."""
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + call.wait_s)
        request = httpx.Request(
            call.method,
            self._url + call.path,
            params=call.query,
            content=call.body,
            headers=_JSON if call.body is not None else None,
            extensions={"timeout": timeout.as_dict()},
        )
        try:
            response = await self._transport.handle_async_request(request)
            try:
                content = await response.aread()
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise NoAnswer(f"{call.method} {call.path}: {str(error) or type(error).__name__}") from error
        return calls.read_answer(call, response.status_code, content)

    async def put(self, job: PutJob | Mapping[str, Any]) -> Job:
        """Put a job; returns it as it is stored.

        When its id is taken, `on_conflict` decides: `reject` (the default) raises CallRefused `job_exists`, `keep`
        returns the job that was there, `replace` puts this one in its place, or raises `job_reserved`.
        """
        return await self.send(calls.put(job))

    async def put_many(self, jobs: Sequence[PutJob | Mapping[str, Any]]) -> list[PutResult]:
        """Put jobs, each answered on its own and in order; none for no jobs.

        They go in batches of 1000. A batch is refused as a whole when one of its jobs is not valid; the batches
        before it are stored then.
        """
        results: list[PutResult] = []
        for start in range(0, len(jobs), BATCH_MAX):
            batch = calls.put_many(jobs[start : start + BATCH_MAX])
            answer = await self.send(batch)
            results += answer
        return results

    async def pop(
        self,
        topics: str | Sequence[str],
        *,
        count: int = 1,
        wait: float = WAIT_DEFAULT_S,
        ttr: float | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
    ) -> list[Delivery]:
        """Take up to `count` (1 to 1000) ready jobs, waiting up to `wait` seconds (0 to 60) for the first.

        Several topics are served in strict priority. `ttr` is the length of the lease in seconds, in place of each
        job's own; `consumer` is shown as the holder. Asking again with the same `request_id` gives the same jobs.
        """
        return await self.send(
            calls.pop(topics, count=count, wait=wait, ttr=ttr, consumer=consumer, request_id=request_id)
        )

    async def finish(self, job: Delivery, result: Any = None) -> None:
        """Say that a job is done. `result`, a JSON value, is kept with its record if the job has a `retain`.

        Raises CallRefused `receipt_stale` when the delivery is over, `job_cancelled` when the job was cancelled
        meanwhile, `job_not_found` when it is gone.
        """
        await self.send(calls.finish(job, result))

    async def finish_many(
        self, topic: str, jobs: Sequence[Delivery | FinishItem | Mapping[str, Any]]
    ) -> list[FinishResult]:
        """Finish jobs of one topic, each answered on its own and in order; none for no jobs. Batches as in put_many."""
        results: list[FinishResult] = []
        for start in range(0, len(jobs), BATCH_MAX):
            batch = calls.finish_many(topic, jobs[start : start + BATCH_MAX])
            answer = await self.send(batch)
            results += answer
        return results

    async def purge(self, topic: str) -> int:
        """Remove all jobs of a topic and return how many; holders of reserved ones are told that they are cancelled.

        A topic without settings is then forgotten. Raises CallRefused `topic_not_found` when it is not known.
        """
        return await self.send(calls.purge(topic))

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

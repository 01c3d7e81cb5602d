"""Looks up what a repeated pop of several topics got before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from deferd.engine.pattern_waits import ENOUGH_BYTES, body_bytes
from deferd.engine.queue import JobQueue, PopRequest
from deferd.engine.record import JobRecord


async def earlier_deliveries(
    job_queue: JobQueue,
    requests: Mapping[str, PopRequest],
    *,
    is_down: Callable[[str], bool],
    on_failure: Callable[[str, Exception], None],
) -> list[JobRecord]:
    """The jobs that these requests still hold from an earlier response, over all topics that can be reached.

    `requests` are by topic, and ask for no new jobs. The jobs are bounded as one response: separate pops of single
    topics may have returned more together. `on_failure` is called for each topic that fails. Raises the error of one
    topic when none can be reached.
    """
    up = [topic for topic in requests if not is_down(topic)] or list(requests)
    replies = await asyncio.gather(*(job_queue.pop(topic, [requests[topic]]) for topic in up), return_exceptions=True)
    deliveries: list[JobRecord] = []
    errors = []
    for topic, reply in zip(up, replies, strict=True):
        if not isinstance(reply, BaseException):
            if body_bytes(deliveries) < ENOUGH_BYTES:
                deliveries += reply.jobs[0]
        elif isinstance(reply, Exception):
            on_failure(topic, reply)
            errors.append(reply)
        else:
            raise reply
    if errors and len(errors) == len(requests):
        raise errors[-1]
    return deliveries

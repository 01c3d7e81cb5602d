"""When a service has begun to reschedule jobs."""

from __future__ import annotations

import asyncio

import httpx

from tests.acceptance.http_calls import NO_TLS


async def has_begun_to_reschedule(url: str) -> None:
    """Wait until this service, which was just started, has rescheduled its first jobs."""
    async with asyncio.timeout(20), httpx.AsyncClient(base_url=url, verify=NO_TLS) as client:
        while '"bulk_reschedule"' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0)

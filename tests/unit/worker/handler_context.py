"""A context for handlers that are called without a worker."""

from __future__ import annotations

import asyncio
from typing import Any

from deferd import Context
from tests.deliveries import delivery_of


async def _no_touch(_context: Context) -> None:
    raise AssertionError("nothing touches the job here")


def context_of(body: Any) -> Context:
    """The context of a delivery with this body."""
    loop = asyncio.new_event_loop()
    loop.close()
    return Context(delivery_of(body=body), _no_touch, loop)

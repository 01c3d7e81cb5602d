"""Pushing as a part of the application: it begins with the engine, and ends before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import State

from deferd.api import serialization
from deferd.api.context import AppContext
from deferd.api.openapi.document import VERSION


@asynccontextmanager
async def pushing(context: AppContext, state: State) -> AsyncIterator[None]:
    """Push meanwhile, if the settings allow any target; `state.drain` then ends pushing too."""
    settings = context.settings
    if not settings.push_allow:
        yield
        return
    from deferd.push.http_sender import HttpSender  # noqa: PLC0415 (aiohttp takes time and memory)
    from deferd.push.pushers import Pushers  # noqa: PLC0415

    engine = context.engine
    pushers = context.pushers = Pushers(
        engine,
        context.targets,
        HttpSender(context.targets, ca_file=settings.push_ca_file),
        user_agent=f"deferd/{VERSION}",
        serialize_jobs=serialization.deliveries,
        drain_s=settings.drain_timeout,
    )
    pushers.start()

    def drain() -> None:
        pushers.drain()
        engine.drain()

    state.drain = drain
    try:
        yield
    finally:
        context.pushers = None
        await pushers.close()

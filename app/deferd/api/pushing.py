"""Pushing as a part of the application: it begins with the engine, and ends before it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import State

from deferd.api.context import AppContext
from deferd.api.job_templates import written_deliveries
from deferd.api.openapi.document import VERSION
from deferd.contract.errors import DeferdError

_LOG = logging.getLogger(__name__)


@asynccontextmanager
async def pushing(context: AppContext, state: State) -> AsyncIterator[None]:
    """Push meanwhile, if the settings allow any target; `state.drain` then ends pushing too."""
    settings = context.settings
    if not settings.push_allow:
        await _warn_of_pushed_topics(context)
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
        serialize_jobs=written_deliveries,
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


async def _warn_of_pushed_topics(context: AppContext) -> None:
    """Say so if jobs wait for a process that pushes, as this one does not: nobody can pop them either."""
    try:
        pushed = await context.engine.push.all()
    except DeferdError:
        return  # the store is unavailable, which is logged elsewhere
    if pushed:
        _LOG.warning(
            "topics are pushed, but this process pushes nothing because it has no --push-allow: %d topics, such as %s",
            len(pushed),
            min(pushed),
        )

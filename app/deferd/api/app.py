"""Putting the service together: routes, settings, and an engine that lives as long as the process serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deferd.api.auth.browser_guard import OwnMachine
from deferd.api.auth.gate import Access
from deferd.api.auth.key_source import key_source
from deferd.api.openapi import document
from deferd.api.routes import deliveries, jobs, operations, pop, test_clock, topics
from deferd.api.service import Service
from deferd.api.unsent_bytes import UnsentBytes
from deferd.engine.engine import Engine
from deferd.engine.record import to_ms
from deferd.settings import Settings
from deferd.store.connection import connect

_ROUTES = [
    *jobs.router.routes,
    *pop.router.routes,
    *deliveries.router.routes,
    *topics.router.routes,
    *operations.router.routes,
    *operations.PAGES,
]


def create_app(settings: Settings, store_url: str, last_good_keys: str | None = None) -> Service:
    """The ASGI application over the store at `store_url`. `last_good_keys`: see `key_source`.

    Its lifespan connects the store and runs an Engine. `app.state.drain()` is for the server to call when it begins
    to stop: parked pops are answered empty, new ones do not park. It may be called at any time.
    """

    @asynccontextmanager
    async def lifespan(app: Service) -> AsyncIterator[None]:
        store = await connect(store_url, timeout_s=settings.store_timeout, confirm_s=settings.replication_timeout)
        try:
            app.engine = Engine(
                store,
                shards=settings.shards,
                tick_s=settings.tick,
                dead_retention_ms=to_ms(settings.dead_retention),
                max_topic_labels=settings.max_topic_labels,
                movable_clock=settings.test_clock,
                embedded=settings.redis_url is None,
            )
            await app.engine.start()
            app.state.drain = app.engine.drain
            try:
                async with app.gate.keeping(app.engine.usage):
                    yield
            finally:
                await app.engine.close()
        finally:
            await store.close()

    app = Service(
        title=document.TITLE,
        version=document.VERSION,
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI would look for a tracer on every request.
        telemetry={"tracing": False, "metrics": False},
    )
    app.settings = settings
    app.unsent = UnsentBytes(settings.max_unsent_bytes)
    source = key_source(settings, last_good_keys)
    app.access = None if source is None else Access(source)
    app.gate = app.access or OwnMachine(settings.allowed_host)
    app.state.drain = _nothing_to_drain
    app.router.routes.extend(_ROUTES)
    if settings.test_clock:
        app.router.routes.extend(test_clock.router.routes)
    return app


def _nothing_to_drain() -> None:
    """Before the engine runs nobody is parked."""

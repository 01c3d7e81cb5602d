"""The application: its routes, its context, and an engine and pushers that live as long as the process serves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from deferd.api.auth.browser_guard import BrowserGuard
from deferd.api.auth.gate import KeyGate
from deferd.api.auth.key_source import key_source
from deferd.api.context import AppContext
from deferd.api.dispatch import RequestHandler
from deferd.api.job_responses import written_deliveries
from deferd.api.openapi import document
from deferd.api.responses import JsonResponse
from deferd.api.routes import (
    batches,
    deliveries,
    events,
    history,
    inspection,
    jobs,
    now,
    push,
    relays,
    schedules_and_calendars,
    system,
    tasks,
    topics,
)
from deferd.contract.errors import DeferdError
from deferd.engine.engine import Engine
from deferd.engine.record import to_ms
from deferd.settings import Settings
from deferd.shelf.client import ShelfClient
from deferd.store.connection import connect
from deferd.store.data_dir import DataDirectory

_SWAGGER_FILES = Path(str(files("fastapi_offline") / "static"))
"""Swagger UI from a package: FastAPI's own page loads it from other hosts and stays blank without them."""


async def _docs_page(_request: Request) -> HTMLResponse:
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=document.TITLE,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )
    page.headers["x-frame-options"] = "DENY"  # against clickjacking
    return page


def _file(name: str) -> Route:
    async def send_file(_request: Request) -> FileResponse:
        return FileResponse(_SWAGGER_FILES / name)

    return Route(f"/docs/{name}", send_file, include_in_schema=False)


async def _openapi_json(request: Request) -> Response:
    app: FastAPI = request.scope["app"]
    return JsonResponse(app.openapi_schema or await asyncio.to_thread(app.openapi))


PAGES = [
    Route("/openapi.json", _openapi_json, include_in_schema=False),
    Route("/docs", _docs_page, include_in_schema=False),
    *(_file(name) for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")),
]


_LOG = logging.getLogger(__name__)
_MAKING_DOCUMENT = threading.Lock()
"""Of all applications: a second model of a response, made meanwhile, would get another name in the document."""
_MODULES = (
    *(jobs, deliveries, topics, push, batches, schedules_and_calendars, inspection),
    *(history, now, events, tasks, relays, system),
)
"""In the order of the OpenAPI document."""
_ROUTES = [*(route for module in _MODULES for route in module.router.routes), *PAGES]


class Service(FastAPI):
    """FastAPI's application, of which the OpenAPI document, the router and the lifespan are used.

    One `RequestHandler` stands in place of FastAPI's five layers of middleware. It does what they do for this service
    (errors become responses) in a third of their time. So middleware and exception handlers would never be called, and
    adding one raises: errors get their response in `problem_details`, and what concerns every request belongs in
    `RequestHandler.handle`.
    """

    def __init__(
        self,
        context: AppContext,
        routes: Sequence[BaseRoute],
        lifespan: Callable[[Service], AbstractAsyncContextManager[None]],
    ) -> None:
        super().__init__(
            title=document.TITLE,
            version=document.VERSION,
            lifespan=lifespan,
            openapi_url=None,
            redirect_slashes=False,
            # FastAPI would look for a tracer on every request.
            telemetry={"tracing": False, "metrics": False},
        )
        self.context = context
        self.router.routes.extend(routes)
        self.request_handler = _request_handler(context, self.router)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, without FastAPI's search for a tracer."""
        if scope["type"] == "http":
            scope["app"] = self
            await self.request_handler(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> RequestHandler:
        """The request handler, in place of FastAPI's middleware."""
        return self.request_handler

    def add_middleware(self, *_args: Any, **_options: Any) -> NoReturn:
        """Raise RuntimeError; see the class."""
        raise RuntimeError(
            "this application calls no middleware and no exception handlers: see deferd.api.app.Service for where "
            "such code belongs"
        )

    middleware = add_exception_handler = exception_handler = add_middleware

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made by the first call, which takes half a second: call this in a thread."""
        with _MAKING_DOCUMENT:
            if self.openapi_schema is None:
                self.openapi_schema = document.document(self.routes)
            return self.openapi_schema


def create_app(
    settings: Settings,
    store_url: str,
    last_good_keys: str | None = None,
    *,
    console: Callable[[AppContext, RequestHandler], ASGIApp] | None = None,
    shelf_socket: Path | None = None,
    runs_relays: bool = True,
) -> Service:
    """The ASGI application over the store at `store_url`. `last_good_keys`: see `key_source`.

    `shelf_socket` is where the process of the shelf is called, if there is one. With `runs_relays` false another
    process runs those of the settings.

    `console` makes what serves `/` and `/console/...`; without it these paths do not exist. It is a client of the
    request handler that it is given, in the same process.

    Its lifespan connects to the store and runs an Engine. The server calls `app.state.drain()` when it begins to stop:
    waiting pops then return without jobs, and new ones do not wait. It may be called at any time.
    """

    @asynccontextmanager
    async def lifespan(app: Service) -> AsyncIterator[None]:
        store = await connect(store_url, timeout_s=settings.store_timeout, confirm_s=settings.replication_timeout)
        if settings.redis_url is None:
            store.fault = DataDirectory(settings.data_dir).fault.reason
        shelf = None if shelf_socket is None else ShelfClient(shelf_socket)
        try:
            engine = context.engine = Engine(
                store,
                shards=settings.shards,
                tick_s=settings.tick,
                dead_retention_ms=to_ms(settings.dead_retention),
                max_topic_labels=settings.max_topic_labels,
                movable_clock=settings.test_clock,
                embedded=settings.redis_url is None,
                sample_consumers=context.consumers.sample,
                shelf=shelf,
            )
            await engine.start()
            app.state.drain = engine.drain
            try:
                async with (
                    _pushing(context, app.state),
                    context.gate.running(engine.usage),
                    _relaying(app, settings if runs_relays else None),
                ):
                    yield
            finally:
                await engine.close()
        finally:
            if shelf is not None:
                await shelf.close()
            await store.close()

    source = key_source(settings, last_good_keys)
    context = AppContext(settings, BrowserGuard(settings.allowed_host) if source is None else KeyGate(source))
    routes = [*_ROUTES, *system.clock_router.routes] if settings.test_clock else _ROUTES
    app = Service(context, routes, lifespan)
    if console is not None:
        app.request_handler.console = console(context, app.request_handler)
    app.state.drain = _nothing_to_drain
    return app


def _request_handler(context: AppContext, router: Router) -> RequestHandler:
    if not context.settings.tracing:
        return RequestHandler(context, router)
    from deferd.api.tracing import TracedRequestHandler  # noqa: PLC0415 (imports opentelemetry)

    return TracedRequestHandler(context, router)


def _nothing_to_drain() -> None:
    """Before the engine runs no pop waits."""


@asynccontextmanager
async def _pushing(context: AppContext, state: State) -> AsyncIterator[None]:
    """Push jobs during the block, if the settings allow any target; `state.drain` then ends pushing too."""
    settings = context.settings
    if not settings.push_allow:
        await _warn_of_pushed_topics(context)
        yield
        return
    from deferd.push.http_sender import HttpSender  # noqa: PLC0415 (aiohttp takes time and memory)
    from deferd.push.pushers import Pushers  # noqa: PLC0415 (it imports aiohttp)

    engine = context.engine
    pushers = context.pushers = Pushers(
        engine,
        context.targets,
        HttpSender(context.targets, ca_file=settings.push_ca_file),
        user_agent=f"deferd/{document.VERSION}",
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


@asynccontextmanager
async def _relaying(app: Service, settings: Settings | None) -> AsyncIterator[None]:
    """Send the outboxes of the settings during the block; `state.drain` then ends that too."""
    if settings is None or not settings.relay:
        yield
        return
    from deferd.api.own_relays import OwnRelays  # noqa: PLC0415 (it imports psycopg, which not all services have)

    urls = [url.get_secret_value() for url in settings.relay]
    relays = OwnRelays(urls, app.request_handler, settings.max_body_bytes)
    drain_others = app.state.drain

    def drain() -> None:
        relays.drain()
        drain_others()

    relays.start()
    app.state.drain = drain
    try:
        yield
    finally:
        await relays.close()


async def _warn_of_pushed_topics(context: AppContext) -> None:
    """Warn if jobs wait for a process that pushes and this one does not: nobody can pop them either."""
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

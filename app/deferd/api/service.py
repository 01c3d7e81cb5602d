"""The application object: what it holds for its routes, and the few layers that a request goes through."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from deferd.api import contract
from deferd.api.boundary import Boundary
from deferd.engine.engine import Engine
from deferd.settings import Settings


class Service(FastAPI):
    """FastAPI with deferd's settings and engine. `engine` is there from the end of start-up on."""

    settings: Settings
    engine: Engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; without FastAPI's look for a tracer, which each request would pay for."""
        if scope["type"] == "http" and self.middleware_stack is not None:
            scope["app"] = self
            await self.middleware_stack(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """One layer, `Boundary`, in place of FastAPI's own five.

        It does what they do for this service (errors become answers) and costs a third of their time. A layer that
        is added later (keys, rate limits) goes between it and the router.
        """
        return Boundary(self.router)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, built once."""
        if self.openapi_schema is None:
            self.openapi_schema = contract.document(self.routes)
        return self.openapi_schema


def engine_of(request: Request) -> Engine:
    """The engine that serves this request."""
    engine: Engine = request.scope["app"].engine
    return engine

"""The application object: what it holds for its routes, and the few layers that a request goes through."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from deferd.api.auth.browser_guard import OwnMachine
from deferd.api.auth.gate import Access
from deferd.api.dispatch import Boundary
from deferd.api.openapi import document
from deferd.api.unsent_bytes import UnsentBytes
from deferd.engine.engine import Engine
from deferd.settings import Settings


class Service(FastAPI):
    """FastAPI with deferd's settings and engine. `engine` and `boundary` are there from the end of start-up on.

    `access` is the gate of a service with keys; None when there are none, and nobody is asked for one. Every request
    passes `gate`.
    """

    settings: Settings
    access: Access | None
    gate: Access | OwnMachine
    engine: Engine
    boundary: Boundary
    unsent: UnsentBytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; without FastAPI's look for a tracer, which each request would pay for."""
        if scope["type"] == "http" and self.middleware_stack is not None:
            scope["app"] = self
            await self.middleware_stack(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> Boundary:
        """One layer, `Boundary`, in place of FastAPI's own five.

        It does what they do for this service (errors become answers) and costs a third of their time. The gate stands
        within it.
        """
        self.boundary = Boundary(self, self.router)
        return self.boundary

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, built once."""
        if self.openapi_schema is None:
            self.openapi_schema = document.document(self.routes)
        return self.openapi_schema

"""The application object: its document, and what FastAPI offers and the service does not call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute

from deferd.api.app import create_app
from deferd.api.openapi import document
from deferd.settings import Settings

REQUESTS = 5
"""No more than the event loop has threads on one core."""


@pytest.mark.parametrize("hook", ["add_middleware", "middleware", "add_exception_handler", "exception_handler"])
def test_a_hook_that_would_never_be_called_raises(hook: str) -> None:
    with pytest.raises(RuntimeError, match="calls no middleware and no exception handlers"):
        getattr(create_app(Settings(), ""), hook)("http")


async def test_the_openapi_document_is_made_once_and_not_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)
    makers: list[threading.Thread] = []

    def make(_routes: Sequence[BaseRoute]) -> dict[str, Any]:
        makers.append(threading.current_thread())
        assert all(asked.acquire(timeout=10) for _ in range(REQUESTS)), "the others do not ask meanwhile"
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(document, "document", make)
    service = create_app(Settings(), "")
    openapi = service.openapi

    def ask() -> dict[str, Any]:
        asked.release()
        return openapi()

    monkeypatch.setattr(service, "openapi", ask)
    transport = httpx.ASGITransport(service)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        responses = await asyncio.gather(*(client.get("/openapi.json") for _ in range(REQUESTS)))

    assert [response.json() for response in responses] == [{"openapi": "3.1.0"}] * REQUESTS
    assert len(makers) == 1
    assert threading.main_thread() not in makers

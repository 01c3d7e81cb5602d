"""The application object: its document, and what FastAPI offers and the service does not call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute

from deferd.api.app import create_app
from deferd.api.openapi import document
from deferd.settings import Settings


@pytest.mark.parametrize("hook", ["add_middleware", "middleware", "add_exception_handler", "exception_handler"])
def test_a_hook_that_would_never_be_called_raises(hook: str) -> None:
    with pytest.raises(RuntimeError, match="calls no middleware and no exception handlers"):
        getattr(create_app(Settings(), ""), hook)("http")


async def test_the_openapi_document_is_made_once_and_not_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[threading.Thread] = []

    def make(_routes: Sequence[BaseRoute]) -> dict[str, Any]:
        makers.append(threading.current_thread())
        time.sleep(0.1)  # for the others to ask meanwhile
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(document, "document", make)
    transport = httpx.ASGITransport(create_app(Settings(), ""))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        responses = await asyncio.gather(*(client.get("/openapi.json") for _ in range(5)))

    assert [response.json() for response in responses] == [{"openapi": "3.1.0"}] * 5
    assert len(makers) == 1
    assert threading.main_thread() not in makers

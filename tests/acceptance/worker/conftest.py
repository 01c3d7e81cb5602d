"""A client of the shared service."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deferd import AsyncClient
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
async def client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client

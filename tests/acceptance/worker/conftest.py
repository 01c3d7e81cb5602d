"""A client and a worker of the shared service, and a proxy before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from deferd import AsyncClient, Worker
from tests.acceptance.client.lossy_proxy import LossyProxy, lossy_proxy
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
async def client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url) as client:
        yield client


@pytest.fixture
def worker(shared_service: ServiceProcess) -> Worker:
    return Worker(shared_service.url, grace=5)


@pytest.fixture
def proxy(shared_service: ServiceProcess) -> Iterator[LossyProxy]:
    with lossy_proxy(shared_service.url) as proxy:
        yield proxy

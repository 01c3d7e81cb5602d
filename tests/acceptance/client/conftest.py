"""A proxy before the shared service, and a client that uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from deferd import AsyncClient
from tests.acceptance.client.lossy_proxy import LossyProxy, lossy_proxy
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def proxy(shared_service: ServiceProcess) -> Iterator[LossyProxy]:
    with lossy_proxy(shared_service.url) as proxy:
        yield proxy
        assert proxy.is_done(), "not all planned faults have happened"


@pytest.fixture
async def client(proxy: LossyProxy) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(proxy.url, timeout=5) as client:
        yield client

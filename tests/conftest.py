"""What all tests share: async ones run on asyncio, the only event loop of deferd."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"

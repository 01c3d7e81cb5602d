"""What the tests of the shelf share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deferd.store.connection import Store
from tests.shelving import Shelved


@pytest.fixture
async def shelved(store: Store, tmp_path: Path) -> AsyncIterator[Shelved]:
    """An engine with a shelf, whose jobs move when the test says so."""
    shelved = Shelved(store, tmp_path)
    yield shelved
    await shelved.close()

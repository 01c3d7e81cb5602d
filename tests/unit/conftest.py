"""What several unit tests need."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """For measurements: it would traverse all objects of the test run; the service excludes those of its start."""
    gc.disable()
    yield
    gc.enable()

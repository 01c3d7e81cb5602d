"""Fixtures: a receiver, and an engine whose pushed topics are pushed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deferd.engine.engine import Engine
from tests.integration.push.pushing_engine import PushingEngine, pushing_engine
from tests.push_receiver import Receiver, receiver


@pytest.fixture
async def target() -> AsyncIterator[Receiver]:
    async with receiver() as one:
        yield one


@pytest.fixture
async def pushing(engine: Engine, target: Receiver) -> AsyncIterator[PushingEngine]:
    async with pushing_engine(engine, target) as one:
        yield one

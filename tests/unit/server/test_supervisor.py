"""How long the supervisor waits before it restarts a server process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from deferd.server.credential_files import CredentialFiles
from deferd.server.serve_context import ServeContext, listen
from deferd.server.supervisor import ProcessPool
from deferd.settings import Settings

LONG_S = 600.0
SOON_S = 20.0


@pytest.fixture
def pool(tmp_path: Path) -> ProcessPool:
    settings = Settings(data_dir=tmp_path)
    with listen("127.0.0.1", 0, allow_public=False) as listener:
        context = ServeContext(listener, "unix:///none", "", {})
        return ProcessPool(settings, context, CredentialFiles(settings), str(tmp_path))


async def test_a_pause_is_short_while_no_process_serves(pool: ProcessPool) -> None:
    async with asyncio.timeout(SOON_S):
        await pool.pause(LONG_S)


async def test_a_pause_ends_when_the_last_serving_process_dies(pool: ProcessPool) -> None:
    async with asyncio.timeout(SOON_S):
        with pool.one_serves():
            with pool.one_serves():
                pause = asyncio.create_task(pool.pause(LONG_S))
            await asyncio.sleep(0.8)  # longer than a pause while none serves
            assert not pause.done()
        await pause


async def test_a_pause_lasts_its_full_time_while_another_process_serves(pool: ProcessPool) -> None:
    with pool.one_serves():
        began = time.monotonic()
        await pool.pause(0.7)
    assert time.monotonic() - began >= 0.7

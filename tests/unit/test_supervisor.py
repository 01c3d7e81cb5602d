"""How long the supervisor waits before it starts another worker process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from deferd.server.last_good import FollowedFiles
from deferd.server.run import Premises, listen
from deferd.server.supervisor import Team
from deferd.settings import Settings

LONG_S = 600.0
SOON_S = 20.0


@pytest.fixture
def team(tmp_path: Path) -> Team:
    settings = Settings(data_dir=tmp_path)
    with listen("127.0.0.1", 0, anywhere=False) as listener:
        return Team(settings, Premises(listener, "unix:///none", "", {}), FollowedFiles(settings), str(tmp_path))


async def test_a_pause_is_short_while_no_worker_serves(team: Team) -> None:
    async with asyncio.timeout(SOON_S):
        await team.pause(LONG_S)


async def test_a_pause_ends_when_the_last_worker_that_serves_dies(team: Team) -> None:
    async with asyncio.timeout(SOON_S):
        with team.one_serves():
            with team.one_serves():
                pause = asyncio.create_task(team.pause(LONG_S))
            await asyncio.sleep(0.8)  # longer than a pause while none serves
            assert not pause.done()
        await pause


async def test_a_pause_is_whole_while_another_worker_serves(team: Team) -> None:
    with team.one_serves():
        began = time.monotonic()
        await team.pause(0.7)
    assert time.monotonic() - began >= 0.7

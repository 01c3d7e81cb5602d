"""A short run of schedules under faults: each occurrence is put exactly once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.recurring import report_recurring, run_recurring

pytestmark = pytest.mark.slow(seconds=85)

SEED = 20_261


@pytest.mark.skipif(sys.platform != "linux", reason="the store that is killed relies on Linux")
async def test_each_occurrence_is_put_once_while_processes_are_killed(tmp_path: Path) -> None:
    outcome = await run_recurring(tmp_path, SEED, occurrences=600, schedules=30)
    print(f"\n{report_recurring(outcome)}")
    assert outcome.is_clean, report_recurring(outcome)
    assert outcome.delivered > 300
    assert outcome.cancelled > 0

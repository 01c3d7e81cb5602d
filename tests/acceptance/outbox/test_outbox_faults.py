"""A short fault run of the outbox: what was committed is there once, and what was not never, whatever fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.outbox.injection import FaultKind
from tests.faults.outbox.run import report, run

SEED = 20_264
KINDS = (
    FaultKind.DEPOSE_FROZEN_RELAY,
    FaultKind.CRASH_DATABASE,
    FaultKind.KILL_SERVICE,
    FaultKind.KILL_STORE,
    FaultKind.CUT_RESPONSES,
)


@pytest.mark.slow(seconds=30)
def test_committed_calls_take_effect_once_whichever_process_fails(tmp_path: Path) -> None:
    seed = int(os.environ.get("DEFERD_FAULTS_SEED") or SEED)
    outcome = run(tmp_path, seed, len(KINDS), kinds=KINDS)

    print(report(outcome))
    assert outcome.wrong == [], report(outcome)
    assert outcome.never_injected == set()
    assert outcome.waiting.alive > 50
    assert outcome.waiting.cancelled > 50
    assert outcome.delivered.delivered > 30
    for made in ("slow_commit", "open_for_long", "overlapping", "put_cancel_put", "savepoint rolled back"):
        assert outcome.made[made] > 0, made

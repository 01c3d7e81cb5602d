"""A short fault run: each kind of fault once, under load, and nothing that was promised is broken."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.faults.plan import FaultKind, draw_plan
from tests.faults.report import report
from tests.faults.run import ALL_TOPICS, run

SEED = 20_251


def test_a_seed_stands_for_a_plan_in_which_each_kind_comes_before_any_comes_again() -> None:
    plan = draw_plan(7, 3 * len(FaultKind))
    assert plan == draw_plan(7, 3 * len(FaultKind))
    assert plan != draw_plan(8, 3 * len(FaultKind))
    assert {fault.kind for fault in plan[: len(FaultKind)]} == set(FaultKind)


@pytest.mark.skipif(sys.platform != "linux", reason="the store's disk is filled by prlimit, which Linux has")
@pytest.mark.timeout(180)
async def test_no_promise_is_broken_while_each_kind_of_fault_comes_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("DEFERD_FAULTS_SEED") or SEED)
    plan = draw_plan(seed, len(FaultKind))
    print(f"\nseed {seed}", *plan, sep="\n")

    outcome = await run(tmp_path, seed, plan)

    print(report(outcome))
    assert outcome.broken.lost == []
    assert outcome.broken.held_twice == []
    assert outcome.broken.delivered_after_cancel == []
    assert outcome.broken.delivered_after_finish == []
    assert outcome.audit == []
    assert outcome.violations == []
    assert outcome.undecided == []
    assert outcome.left == 0
    assert {fault.kind for fault, _ in outcome.faults} == set(FaultKind)
    assert abs(outcome.clock_errors_h[0] - outcome.clock_errors_h[1]) > 0.5, "the services' clocks were alike"
    assert outcome.jobs_checked > 50 * len(ALL_TOPICS)
    assert outcome.longest > 8
    for call in (("put", "created"), ("put", "exists"), ("cancel", "delayed"), ("cancel", "reserved")):
        assert outcome.operations[call] > 0, call
    for call in (("finish", "done"), ("finish", "stale"), ("finish", "cancelled"), ("put", "unknown")):
        assert outcome.operations[call] > 0, call

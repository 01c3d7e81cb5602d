"""A short fault run: each kind of fault once, under load, and every promise is kept."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

import deferd
from deferd.engine import store_watch
from tests.faults.plan import OF_SERVICES, OF_SHELF, WITHOUT_SHELF, FaultKind, draw_plan
from tests.faults.push_targets import Behaviour
from tests.faults.report import is_clean, report
from tests.faults.rollout import BOTH, Release
from tests.faults.run import ALL_TOPICS, run
from tests.previous_release import needs_history, unpack

SEED = 20_251
SOURCES = Path(deferd.__file__).parent
OUTCOMES_SEEN = [
    *(("put", outcome) for outcome in ("created", "stored", "exists", "kept", "unknown")),
    *(("put", outcome) for outcome in ("appended", "follows", "follow-up appended")),
    *(("cancel by ids", outcome) for outcome in ("delayed", "reserved")),
    *(("cancel by tag", "delayed"), ("cancel by state", "done"), ("change by state", "done")),
    *(("change", outcome) for outcome in ("done", "held", "not found")),
    *(("cancel", outcome) for outcome in ("delayed", "reserved", "finished", "not found")),
    *(("finish", outcome) for outcome in ("done", "stale", "cancelled")),
    *(("finish any", outcome) for outcome in ("done", "stale", "not found")),
    ("finish, put", "done"),
    *(("release", outcome) for outcome in ("done", "dead")),
    *((kind, "done") for kind in ("snooze", "touch", "bury", "redrive", "deliver")),
    *(("end", outcome) for outcome in ("finished", "dead", "cancelled")),
    *(("sadd", "stored"), ("spop", "done"), ("spop", "unknown")),
    *(("look", outcome) for outcome in ("delayed", "finished", "not found")),
]
OF_SHELF_AND_STORE = OF_SHELF | {
    *(FaultKind.KILL_SERVICE, FaultKind.KILL_TIMER_HOLDER, FaultKind.KILL_STORE, FaultKind.FREEZE_STORE),
    *(FaultKind.RESTART_STORE, FaultKind.FILL_DISK, FaultKind.FILL_MEMORY, FaultKind.DELAY_STORE_RESPONSES),
    FaultKind.PAUSE_STORE,
}


def test_a_seed_determines_a_plan_in_which_every_kind_comes_before_any_repeats() -> None:
    plan = draw_plan(7, 3 * len(WITHOUT_SHELF))
    assert plan == draw_plan(7, 3 * len(WITHOUT_SHELF))
    assert plan != draw_plan(8, 3 * len(WITHOUT_SHELF))
    assert {fault.kind for fault in plan[: len(WITHOUT_SHELF)]} == set(WITHOUT_SHELF)


@pytest.mark.gate
def test_a_service_reads_its_hosts_time_only_from_the_shifted_clock() -> None:
    """`shifted_clock` replaces `time.time` and `time.time_ns`; other ways to read the clock would not be shifted."""
    other_ways = re.compile(
        r"\b(datetime\.(now|utcnow|today)|date\.today|clock_gettime(?!\(_CLOCK\))|(localtime|gmtime|ctime|asctime)\(\))"
    )
    assert store_watch._CLOCK in {getattr(time, "CLOCK_BOOTTIME", None), time.CLOCK_MONOTONIC}  # neither has a date
    files = [SOURCES.glob("*.py"), *((SOURCES / part).rglob("*.py") for part in ("api", "engine", "store"))]
    read = {file.name: file.read_text() for of_part in files for file in of_part}
    assert len(read) > 50
    assert [f"{name}: {found[0]}" for name, text in read.items() for found in other_ways.finditer(text)] == []


@pytest.mark.slow(seconds=180)
@pytest.mark.skipif(sys.platform != "linux", reason="the store's disk is filled by prlimit, which only Linux has")
def test_no_promise_is_broken_while_each_kind_of_fault_comes_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("DEFERD_FAULTS_SEED") or SEED)
    outcome = run(tmp_path, seed, len(WITHOUT_SHELF))

    print(report(outcome))
    assert outcome.not_injected == []
    assert outcome.broken.lost == []
    assert outcome.broken.overlapping_leases == []
    assert outcome.broken.delivered_after_cancel == []
    assert outcome.broken.delivered_after_finish == []
    assert outcome.broken.forgotten == []
    assert outcome.broken.reused_receipts == []
    assert outcome.broken.split_chains == []
    assert outcome.broken.split_items == []
    assert outcome.broken.lost_items == []
    assert outcome.broken.put_while_taken == []
    assert outcome.broken.late == []
    assert outcome.flow_control.over_in_flight == []
    assert outcome.flow_control.over_rate == []
    assert outcome.flow_control.out_of_order == []
    assert outcome.flow_control.never_reached == []
    assert outcome.wrong_responses == []
    assert outcome.wrong_pushes == []
    assert outcome.wrong_batches == []
    assert outcome.batches > 50
    assert [found for found in outcome.members.broken if found] == []
    assert outcome.audit == []
    assert outcome.violations == []
    assert outcome.undecided == []
    assert outcome.left == 0
    assert outcome.never_injected == set()
    assert abs(outcome.clock_errors_h[0] - outcome.clock_errors_h[1]) > 0.5, "the services' clocks were equal"
    assert outcome.uncertainty_ms < 50, "the store's clock was moved during the run, so that the check allows too much"
    assert outcome.jobs_checked > 50 * len(ALL_TOPICS)
    assert outcome.longest > 8
    assert set(Behaviour) == set(outcome.pushes), "a behaviour of the push targets did not come"
    assert outcome.pushes_closed > 0
    assert outcome.members.taken > 100
    assert [verb for verb, outcomes in outcome.verbs.items() if not outcomes] == []
    for call in OUTCOMES_SEEN:
        assert outcome.operations[call] > 0, call


@pytest.mark.slow(seconds=60)
def test_no_promise_is_broken_while_all_delayed_jobs_go_to_a_shelf(tmp_path: Path) -> None:
    seed = int(os.environ.get("DEFERD_FAULTS_SEED") or SEED)
    outcome = run(tmp_path, seed, len(OF_SHELF_AND_STORE), kinds=OF_SHELF_AND_STORE, has_shelf=True)

    print(report(outcome))
    assert is_clean(outcome), report(outcome)
    assert outcome.batches_to_shelf > 50
    assert outcome.jobs_checked > 20 * len(ALL_TOPICS)


@needs_history
@pytest.mark.slow(seconds=60)
def test_no_promise_is_broken_while_this_release_and_the_previous_one_serve_one_store(tmp_path: Path) -> None:
    """An upgrade of one service after the other, then a rollback of one; each fault comes while both releases serve."""
    previous = unpack(tmp_path / "previous")
    seed = int(os.environ.get("DEFERD_FAULTS_SEED") or SEED)
    outcome = run(tmp_path, seed, len(OF_SERVICES), kinds=OF_SERVICES, rollout=BOTH, previous=previous)

    print(report(outcome))
    assert is_clean(outcome), report(outcome)
    assert [(one.service, one.release) for one in outcome.replacements] == [
        (0, Release.PRESENT),
        (1, Release.PRESENT),
        (0, Release.PREVIOUS),
    ]
    assert outcome.jobs_checked > 20 * len(ALL_TOPICS)

"""When runs are due and which missed ones are made up for, without a store."""

from __future__ import annotations

from datetime import datetime
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.openings import Openings
from deferd.engine.record import to_ms
from deferd.engine.recurrence import run_id
from deferd.engine.schedule_planning import Plan, PlannedRun, RunTimes, RunWindow
from deferd.engine.schedule_store import (
    ScheduleState,
    body_of,
    definition_to_store,
    read_definition,
    rest_to_store,
)
from deferd.engine.script_arguments import NO_BOUNDS
from tests.generators import result_of

CREATED_MS = 1_800_000_000_000
MINUTE_MS = 60_000


def definition(**fields: Any) -> PutSchedule:
    timing = {} if {"cron", "at"} & fields.keys() else {"every": 60}
    return PutSchedule.model_validate({"topic": "t", "catch_up": "all", **timing, **fields})


def times(**fields: Any) -> RunTimes:
    schedule = definition(**fields)
    window = schedule.window
    openings = None
    if window is not None:
        assert not isinstance(window, str)
        openings = Openings.of(window if isinstance(window, list) else [window])
    return RunTimes("s", schedule, CREATED_MS, RunWindow(openings, spread_ms=to_ms(schedule.job.spread or 0)))


def plan_of(of: RunTimes, *args: Any, **options: Any) -> Plan:
    return result_of(of.plan(*args, **options))


def minutes(plan: Plan) -> list[float]:
    """When the runs are due, in minutes after the schedule was created."""
    return [(run.due_ms - CREATED_MS) / MINUTE_MS for run in plan.runs]


def test_the_next_run_is_planned_with_when_the_one_after_is_due() -> None:
    plan = plan_of(times(), CREATED_MS, CREATED_MS)
    first_ms = CREATED_MS + MINUTE_MS
    assert plan.runs == [PlannedRun(run_id("s", first_ms), first_ms, first_ms + MINUTE_MS, 0)]
    assert (plan.occurrence_ms, plan.missed, plan.next_run, plan.advance_at_ms) == (first_ms, 0, plan.runs[0], first_ms)


@pytest.mark.parametrize(
    ("catch_up", "late_ms", "due", "missed"),
    [
        ("none", 0, [10, 11], 9),
        ("none", 59_000, [10, 11], 9),
        ("last", 30_000, [10, 11], 9),
        ("all", 30_000, list(range(1, 12)), 0),
    ],
)
def test_missed_runs(catch_up: str, late_ms: int, due: list[int], missed: int) -> None:
    plan = plan_of(times(catch_up=catch_up), CREATED_MS + 10 * MINUTE_MS + late_ms, CREATED_MS)
    assert (minutes(plan), plan.missed) == (due, missed)
    assert plan.next_run == plan.runs[-1]


def test_without_catch_up_a_run_more_than_a_minute_late_is_missed() -> None:
    plan = plan_of(times(catch_up="none", every=3600), CREATED_MS + 2 * 3_600_000 + 60_001, CREATED_MS)
    assert (minutes(plan), plan.missed) == ([180], 2)


def test_older_runs_than_the_last_thousand_are_missed() -> None:
    plan = plan_of(times(), CREATED_MS + 5000 * MINUTE_MS, CREATED_MS)
    assert (len(plan.runs), plan.missed, plan.next_run) == (999, 4000, None)
    assert plan.advance_at_ms == CREATED_MS + 5000 * MINUTE_MS
    assert plan.occurrence_ms is not None
    rest = plan_of(times(), CREATED_MS + 5000 * MINUTE_MS, plan.occurrence_ms)
    assert (minutes(rest), rest.missed) == ([5000, 5001], 0)


@given(st.integers(1, 300), st.integers(1, 50))
def test_bounded_calls_put_each_occurrence_once(overdue: int, most: int) -> None:
    now_ms, after_ms, found = CREATED_MS + overdue * MINUTE_MS, CREATED_MS, []
    while True:
        plan = plan_of(times(), now_ms, after_ms, None, most)
        assert 0 < len(plan.runs) <= most
        found += minutes(plan)
        assert plan.occurrence_ms is not None
        after_ms = plan.occurrence_ms
        if plan.advance_at_ms != now_ms:
            break
    assert found == list(range(1, overdue + 2))


def test_remaining_runs_bound_what_is_made_up_for() -> None:
    plan = plan_of(times(), CREATED_MS + 10 * MINUTE_MS, CREATED_MS, remaining=3)
    assert (minutes(plan), plan.next_run) == ([1, 2, 3], None)
    assert plan.advance_at_ms is not None  # it has ended only when these have run


def test_a_schedule_without_further_runs_ends() -> None:
    ending = times(end_at="2027-01-15T08:02:30Z")
    assert datetime.fromisoformat("2027-01-15T08:00:00+00:00").timestamp() * 1000 == CREATED_MS
    plan = plan_of(ending, CREATED_MS + MINUTE_MS, CREATED_MS + MINUTE_MS)
    assert (minutes(plan), plan.runs[0].following_ms) == ([2], 0)
    assert plan_of(ending, CREATED_MS + 2 * MINUTE_MS, CREATED_MS + 2 * MINUTE_MS) == Plan(
        [], CREATED_MS + 2 * MINUTE_MS, 0, None, None
    )


@given(st.integers(1, 600), st.integers(0, 900), st.integers(0, 900))
def test_runs_are_due_in_their_order_and_never_early(every: int, of_job: int, spread: int) -> None:
    some = list(islice(times(every=every, job={"spread": of_job}, spread=spread).runs_after(CREATED_MS), 20))
    for run, following in pairwise(some):
        assert 0 <= run.due_ms - run.occurrence_ms <= (of_job + spread) * 1000
        assert run.due_ms <= following.due_ms
        assert run.occurrence_ms < following.occurrence_ms


def test_a_window_joins_what_it_moves_to_the_same_opening() -> None:
    """It is created at 8:00, and open from 10:00 to 12:00."""
    office = {"from": "10:00", "to": "12:00"}
    hourly = times(every=1800, window=office)
    due = [(run.due_ms - CREATED_MS) / 3_600_000 for run in islice(hourly.runs_after(CREATED_MS), 6)]
    assert due == [2, 2.5, 3, 3.5, 26, 26.5]
    first = next(hourly.runs_after(CREATED_MS))
    assert first.occurrence_ms == first.due_ms  # the last of those that moved there
    plan = plan_of(hourly, CREATED_MS + 27 * 3_600_000, CREATED_MS)
    assert [(run.due_ms - CREATED_MS) / 3_600_000 for run in plan.runs] == [2, 2.5, 3, 3.5, 26, 26.5, 27, 27.5]
    assert plan.missed == 0


NIGHT = {"from": "22:00", "to": "02:00"}
BRIEF = [{"from": "10:00", "to": "10:05"}, {"from": "10:30", "to": "12:00"}]


@given(
    st.sampled_from([None, {"from": "10:00", "to": "12:00"}, NIGHT, BRIEF]),
    st.one_of(
        st.builds(lambda seconds: {"every": seconds}, st.integers(60, 50_000)),
        st.just({"cron": "0 3,9,10,11 * * *"}),
        st.just({"at": ["01:30", "09:00", "10:02", "23:59"]}),
    ),
    st.sampled_from([0, 60, 1800, 20_000]),
    st.sampled_from([0, 60, 7200, 80_000]),
)
def test_what_is_planned_at_each_run_is_what_was_to_be_expected(
    window: Any, when: dict[str, Any], spread: int, of_job: int
) -> None:
    driven = times(**when, window=window, spread=spread, job={"spread": of_job})
    expected = list(islice(driven.runs_after(CREATED_MS), 12))
    for run, following in pairwise(expected):
        assert run.due_ms <= following.due_ms
    now_ms, after_ms = CREATED_MS, CREATED_MS
    found: list[PlannedRun] = []
    while len(found) < len(expected):
        plan = plan_of(driven, now_ms, after_ms)
        assert plan.missed == 0
        assert plan.occurrence_ms is not None
        assert plan.advance_at_ms is not None
        found += plan.runs
        now_ms, after_ms = plan.advance_at_ms, plan.occurrence_ms
    assert [run.id for run in found[:12]] == [run_id("s", run.occurrence_ms) for run in expected]
    assert [run.due_ms for run in found[:12]] == [run.due_ms for run in expected]


@pytest.mark.parametrize(("catch_up", "made_up_for"), [("none", 0), ("last", 1), ("all", 998)])
@pytest.mark.parametrize("spread", [0, 30_000])
def test_an_outage_that_ends_while_the_window_is_closed(catch_up: str, made_up_for: int, spread: int) -> None:
    """It is created at 8:00, and open from 10:00 to 12:00; everything is down from 11:00 to 20:00."""
    hour_ms = 60 * MINUTE_MS
    now_ms, after_ms = CREATED_MS + 12 * hour_ms, CREATED_MS + 3 * hour_ms
    each_second = {"every": 1, "window": {"from": "10:00", "to": "12:00"}, "job": {"spread": spread}}
    runs: list[PlannedRun] = []
    missed = plans = 0
    while True:
        plan = plan_of(times(**each_second, catch_up=catch_up), now_ms, after_ms)
        runs, missed, plans = runs + plan.runs, missed + plan.missed, plans + 1
        assert plan.occurrence_ms is not None
        after_ms = plan.occurrence_ms
        if plan.advance_at_ms != now_ms:
            break
    next_run = runs.pop()
    assert next_run.due_ms >= CREATED_MS + 26 * hour_ms  # at 10:00 on the next day
    assert plans <= 2
    assert len(runs) >= made_up_for
    moved_to_the_next_day = 1 if spread else 0  # the one just before the closing
    assert len(runs) + missed == 3599 - moved_to_the_next_day


def test_runs_that_a_spread_moves_past_the_closing_are_one() -> None:
    due = [
        (run.due_ms - CREATED_MS) / 3_600_000
        for run in islice(
            times(every=600, window={"from": "10:00", "to": "12:00"}, spread=7000).runs_after(CREATED_MS), 9
        )
    ]
    assert len(set(due)) == len(due)


def test_a_run_that_its_own_spread_delays_is_planned_once() -> None:
    """Also when the schedule is looked at between the occurrence and the time that it is due."""
    hourly = times(every=3600, job={"spread": 3000})
    first, second = islice(hourly.runs_after(CREATED_MS), 2)
    assert first.occurrence_ms < first.due_ms < second.occurrence_ms
    plan = plan_of(hourly, second.occurrence_ms, CREATED_MS)
    assert [run.due_ms for run in plan.runs] == [first.due_ms, second.due_ms]
    plan = plan_of(hourly, second.due_ms - 1, first.occurrence_ms)
    assert [run.id for run in plan.runs] == [run_id("s", second.occurrence_ms)]
    assert plan.advance_at_ms == second.due_ms


def test_a_definition_is_stored_as_it_was_given_without_the_body() -> None:
    given = definition(job={"body": {"a": [1.5, None]}, "ttl": None, "tags": ["x"]}, zone="Europe/Berlin")
    stored = definition_to_store(given)
    assert b"body" not in stored
    assert definition_to_store(read_definition(stored)) == stored
    assert read_definition(stored).job.model_fields_set == {"ttl", "tags"}
    assert body_of(rest_to_store(given, NO_BOUNDS)) == b'{"a":[1.5,null]}'
    assert body_of(rest_to_store(definition(), NO_BOUNDS)) == b"null"


@pytest.mark.parametrize(
    ("stored", "spread"),
    [
        ('{"every":60,"jitter":5,"topic":"t"}', 5),
        ('{"every":60,"jitter":5,"job":{"spread":7,"ttr":9},"topic":"t"}', 12),
        ('{"every":60,"jitter":null,"topic":"t"}', None),
        ('{"every":60,"job":{"backoff":{"jitter":0.5,"kind":"fixed","seconds":1}},"topic":"t"}', None),
    ],
)
def test_the_jitter_of_an_earlier_service_is_the_spread_of_the_job(stored: str, spread: float | None) -> None:
    definition = read_definition(stored.encode())
    assert definition.job.spread == spread
    assert read_definition(definition_to_store(definition)) == definition


def test_a_damaged_definition_is_a_value_error() -> None:
    for stored in (b'["jitter":1]', b'[{"jitter":1}]', b'{"jitter":1,"job":3,"topic":"t","every":60}'):
        with pytest.raises(ValueError):  # noqa: PT011 (what is wrong is for the log)
            read_definition(stored)


def test_a_state_is_read_as_it_was_stored() -> None:
    states = [ScheduleState(1, 2), ScheduleState(1, 2, 3, True, True, True, 4, 5), ScheduleState(1, 2, 0, max_jobs=0)]
    for state in states:
        assert ScheduleState.read(state.stored()) == state
    assert ScheduleState.read(b'{"c":1,"u":2}').is_active

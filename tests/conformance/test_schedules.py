"""Schedules: their next runs, pauses, ends, overlaps, opening hours and previews."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.door import Door, Job, on_topics, one_partition, refused

HOUR = 3600
DAY = 24 * HOUR
MORNING = {"from": "09:00", "to": "10:00"}
VERBS = ("", "pause", "resume", "run", "delete")


def counters(schedule: Job) -> tuple[int, int, bool]:
    return schedule["runs"], schedule["skips"], schedule["ended"]


def schedule_after_last_look(door: Door) -> Job:
    """The schedule once it must have ended: the timer may see its last run wait still, and looks again 5 s later."""
    door.pass_time(6)
    return door.schedule()


@on_topics
def test_the_next_run_waits_as_a_job_and_the_one_after_follows_it(door: Door) -> None:
    made = door.put_schedule(every=HOUR, job={"body": {"report": "daily"}, "tags": ["x"]})
    assert (counters(made), made["paused"], made["last_job"], made["topic"]) == ((0, 0, False), False, None, door.topic)
    assert door.schedule() == made
    job = door.get(made["next_job"])
    shown = (job["state"], job["due_at"], job["body"], job["tags"])
    assert shown == ("delayed", made["next_run_at"], {"report": "daily"}, ["x"])
    door.pass_time(HOUR + 1)
    assert door.pop_one()["id"] == made["next_job"]
    after = door.schedule()
    assert (after["runs"], after["last_job"], after["last_run_at"]) == (1, made["next_job"], made["next_run_at"])
    assert after["next_run_at"] == made["next_run_at"] + HOUR
    assert door.counts() == {"delayed": 1, "reserved": 1}


@on_topics
@one_partition
def test_the_jobs_of_a_schedule_have_its_group_and_priority(door: Door) -> None:
    made = door.put_schedule(every=HOUR, job={"group": "g", "priority": 2})
    job = door.get(made["next_job"])
    assert (job["group"], job["priority"]) == ("g", 2)
    now = door.schedule("run")
    assert (now["group"], now["priority"]) == ("g", 2)


@on_topics
def test_a_deleted_schedule_withdraws_its_next_run_and_no_other(door: Door) -> None:
    made = door.put_schedule(every=HOUR)
    door.pass_time(HOUR + 1)
    door.schedule("delete")
    assert [job["id"] for job in door.jobs()] == [made["next_job"]]
    for verb in VERBS:
        with refused("schedule_not_found", f"there is no schedule {door.topic!r}"):
            door.schedule(verb)
    with refused("schedule_not_found"):
        door.preview_runs(1)
    door.pass_time(2 * HOUR)
    assert door.counts() == {"ready": 1}


@on_topics
def test_a_schedule_that_is_put_again_keeps_its_next_run_but_for_a_new_timing(door: Door) -> None:
    first = door.put_schedule(only_new=True, every=HOUR, job={"body": 1})
    assert door.put_schedule(every=HOUR, job={"body": 1}) == first
    changed = door.put_schedule(every=HOUR, job={"body": 2})
    assert (changed["next_job"], changed["created_at"]) == (first["next_job"], first["created_at"])
    assert door.get(first["next_job"])["body"] == 2
    with refused("schedule_exists"):
        door.put_schedule(only_new=True, every=2 * HOUR)
    assert door.schedule() == changed
    moved = door.put_schedule(every=2 * HOUR)
    assert door.counts() == {"delayed": 1}
    assert moved["next_job"] != first["next_job"]
    assert door.get(moved["next_job"])["due_at"] == moved["next_run_at"]


@on_topics
def test_a_paused_schedule_makes_no_runs_until_it_is_resumed(door: Door) -> None:
    door.put_schedule(every=HOUR, catch_up="all")
    paused = door.schedule("pause")
    assert (paused["paused"], paused["next_run_at"], paused["next_job"]) == (True, None, None)
    assert door.schedule("pause") == paused
    door.pass_time(3 * HOUR)
    assert door.counts() == {}
    assert door.put_schedule(every=HOUR, overlap="skip")["paused"], "the definition does not say"
    resumed = door.schedule("resume")
    assert (resumed["paused"], resumed["missed"], counters(resumed)) == (False, 0, (0, 0, False))
    assert door.get(resumed["next_job"])["due_at"] == resumed["next_run_at"]
    assert door.schedule("resume") == resumed
    assert door.put_schedule(every=HOUR, paused=True)["paused"]
    assert not door.put_schedule(every=HOUR, paused=False)["paused"]


@on_topics
def test_a_run_now_is_a_job_of_its_own(door: Door) -> None:
    made = door.put_schedule(every=HOUR, overlap="skip", max_runs=1, job={"body": [1], "ttr": 5})
    extra = [door.schedule("run") for _ in range(2)]
    assert [(job["state"], job["body"], job["ttr"]) for job in extra] == [("ready", [1], 5)] * 2
    assert door.schedule() == made
    door.pass_time(HOUR + 1)
    assert {job["id"] for job in door.pop_all()} == {made["next_job"], *(job["id"] for job in extra)}
    assert counters(schedule_after_last_look(door)) == (1, 0, True)


@on_topics
def test_a_schedule_ends_after_max_runs_and_a_higher_bound_lets_it_go_on(door: Door) -> None:
    door.put_schedule(every=HOUR, max_runs=1)
    for runs in (1, 2):
        door.pass_time(HOUR + 1)
        ended = schedule_after_last_look(door)
        assert (counters(ended), ended["next_job"], ended["next_run_at"]) == ((runs, 0, True), None, None)
        assert door.counts() == {"ready": runs}
        door.put_schedule(every=HOUR, max_runs=runs + 1)


@pytest.mark.parametrize(
    ("overlap", "counted", "states"),
    [
        ("allow", (2, 0, False), {"reserved", "ready", "delayed"}),
        ("skip", (1, 1, False), {"reserved", "delayed"}),
        ("replace", (2, 0, False), {"ready", "delayed"}),
    ],
)
@on_topics
def test_what_becomes_of_a_run_while_the_last_one_is_held(
    door: Door, overlap: str, counted: tuple[int, int, bool], states: set[str]
) -> None:
    first = door.put_schedule(every=HOUR, overlap=overlap, job={"ttr": 4 * HOUR})
    door.pass_time(HOUR + 1)
    held = door.pop_one()
    door.pass_time(HOUR)
    assert (counters(door.schedule()), {*door.counts()}) == (counted, states)
    if overlap == "replace":
        with refused("job_cancelled"):
            door.finish(first["next_job"], held["receipt"])
    else:
        door.finish(first["next_job"], held["receipt"])
        door.pass_time(HOUR)
        assert door.schedule()["runs"] == counted[0] + 1


@on_topics
def test_a_cancelled_run_is_skipped(door: Door) -> None:
    made = door.put_schedule(every=HOUR)
    door.cancel(made["next_job"])
    shown = door.schedule()
    assert (shown["skips"], shown["next_job"], shown["next_run_at"]) == (1, None, made["next_run_at"] + HOUR)
    door.pass_time(HOUR + 1)
    assert door.counts() == {"delayed": 1}
    door.pass_time(HOUR)
    assert door.counts() == {"delayed": 1, "ready": 1}
    assert counters(door.schedule()) == (1, 1, False)


@on_topics
@one_partition  # each has a share of the bound
def test_a_full_topic_delays_a_run_and_refuses_one_now(door: Door) -> None:
    door.set_topic(max_jobs=1)
    door.put("blocks", delay=DAY)
    made = door.put_schedule(every=HOUR)
    assert (made["next_job"], made["next_run_at"] is not None) == (None, True)
    with refused("topic_full"):
        door.schedule("run")
    door.cancel("blocks")
    door.pass_time(5)
    assert door.state(door.schedule()["next_job"]) == "delayed"


@on_topics
def test_a_run_moves_to_the_next_opening(door: Door) -> None:
    door.put_calendar(MORNING)
    placed: tuple[dict[str, Any], ...] = (
        {"window": MORNING},
        {"window": door.topic},
        {"job": {"window": MORNING}},
        {"job": {"window": [MORNING]}},
    )
    for fields in placed:
        made = door.put_schedule(at=["03:00"], **fields)
        job = door.get(made["next_job"])
        assert made["next_job"].endswith("T030000Z")
        assert made["next_run_at"] % DAY == job["due_at"] % DAY == 9 * HOUR
        assert job["due_at"] - job["asked_for"] == 6 * HOUR


@on_topics
def test_runs_to_come_are_those_that_clocks_of_the_zone_show(door: Door) -> None:
    spring: dict[str, Any] = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "start_at": "2037-03-28T00:00:00Z"}
    expected = ["2037-03-28T02:30:00+01:00", "2037-03-29T03:00:00+02:00", "2037-03-30T02:30:00+02:00"]
    assert door.preview_runs(3, **spring) == expected
    with refused("schedule_not_found"):
        door.schedule()
    door.put_schedule(**spring)
    assert door.preview_runs(3) == expected
    door.schedule("pause")
    assert door.preview_runs(3) == expected
    assert len(door.preview_runs(9, every=1.5, max_runs=4)) == 4


@on_topics
def test_a_schedule_that_never_runs_is_refused_with_the_reason(door: Door) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"cron": "0 0 30 2 *"}, "never runs: no date is day of month '30' in month '2'"),
        ({"cron": "0 25 * * *"}, "its hour is '25'"),
        ({"cron": "@daily", "zone": "Mars/Base"}, "is not a time zone"),
        ({"cron": "@yearly", "end_at": "2020-01-01T00:00:00Z"}, "never runs"),
        ({"every": HOUR, "window": {"from": "09:00", "to": "09:00"}}, "never opens"),
        ({"every": HOUR, "window": door.topic}, "is not the name of a calendar"),
    )
    for fields, text in wrong:
        with refused("validation", text):
            door.put_schedule(**fields)
        with refused("validation", text):
            door.preview_runs(1, **fields)
    with refused("schedule_not_found"):
        door.schedule()
    assert door.counts() == {}

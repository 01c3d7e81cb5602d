"""The checker of limits in the fault runs: it must refuse what breaks a limit, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.faults.flow_control import LIMITED_TOPIC, LIMITS, RATED_TOPIC, STRICT_TOPIC, FlowControl, check_limits
from tests.faults.history import UNKNOWN, History, Kind, Operation
from tests.faults.linearizability import StoreClock

TTR_MS = 1000


def delivered(job: str, at_ms: int, *, attempt: int = 1, group: str = "g0") -> Operation:
    return replace(
        call("deliver", job, at_ms / 1000),
        receipt=f"{job}.{attempt}",
        attempt=attempt,
        tag=job,
        group=group,
        at_ms=at_ms,
        lease_end_ms=at_ms + TTR_MS,
    )


def call(kind: Kind, job: str, at_s: float, outcome: str = "done", *, receipt: str = "", group: str = "") -> Operation:
    end_s = None if outcome == UNKNOWN else at_s + 0.002
    return Operation(kind, "", job, at_s - 0.002, end_s, outcome, receipt=receipt, group=group)


def check(topic: str, *operations: Operation) -> FlowControl:
    of_job: dict[tuple[str, str], list[Operation]] = {}
    for one in operations:
        of_job.setdefault((topic, one.job), []).append(replace(one, topic=topic))
    return check_limits(History([], of_job, []), StoreClock(0, 0), LIMITS)


THREE = [delivered(f"job{number}", 1000, group=f"g{number}") for number in range(3)]
FOURTH = delivered("fourth", 1500, group="")


def test_a_lease_beyond_the_limit_of_a_topic_or_a_group_is_found() -> None:
    assert check(LIMITED_TOPIC, *THREE).over_in_flight == []
    assert len(check(LIMITED_TOPIC, *THREE, FOURTH).over_in_flight) == 1
    of_group = [delivered(f"job{number}", 1000 + number) for number in range(3)]
    assert len(check(LIMITED_TOPIC, *of_group).over_in_flight) == 1


@pytest.mark.parametrize(
    "more",
    [
        [call("finish", "job0", 1.499, receipt="job0.1")],
        [call("finish", "job0", 1.4, UNKNOWN)],
        [call("cancel", "job0", 1.4, "reserved")],
        [delivered("job0", 1400, attempt=2, group="g0"), call("bury", "job1", 1.2, receipt="job1.1")],
        [replace(call("release", "job0", 1.45, receipt="job0.1"), at_ms=1500)],
    ],
)
def test_a_lease_that_may_have_ended_is_not_counted(more: Sequence[Operation]) -> None:
    extended = call("touch", "job2", 1.1, receipt="job2.1")
    assert check(LIMITED_TOPIC, *THREE, *more, replace(extended, lease_end_ms=2100), FOURTH).over_in_flight == []


def test_of_two_deliveries_in_one_millisecond_the_one_that_may_have_ended_may_have_been_first() -> None:
    two = [delivered("job0", 1000), delivered("job1", 1000)]
    assert len(check(STRICT_TOPIC, *two).over_in_flight) == 1
    for ended in ("job0", "job1"):
        assert check(STRICT_TOPIC, *two, call("cancel", ended, 1.001, "reserved")).over_in_flight == []


def test_a_lease_that_was_extended_is_counted() -> None:
    extended = replace(call("touch", "job2", 1.9, receipt="job2.1"), lease_end_ms=2900)
    later = [delivered(f"later{number}", 2000, group="") for number in range(3)]
    assert check(LIMITED_TOPIC, *THREE, *later).over_in_flight == []
    assert len(check(LIMITED_TOPIC, *THREE, extended, *later).over_in_flight) == 1


def test_a_delivery_beyond_a_rate_is_found() -> None:
    assert check(RATED_TOPIC, delivered("one", 1000), delivered("two", 1200)).over_rate == []
    assert len(check(RATED_TOPIC, delivered("one", 1000), delivered("two", 1199)).over_rate) == 1
    assert check(RATED_TOPIC, *THREE, delivered("more", 1250, group="")).over_rate == []
    assert len(check(RATED_TOPIC, *THREE, delivered("more", 1249, group="")).over_rate) == 1


BETWEEN = [delivered("first", 1000), delivered("second", 2000), delivered("first", 3000, attempt=2)]


def test_a_job_between_two_deliveries_of_the_one_before_is_found() -> None:
    assert len(check(STRICT_TOPIC, *BETWEEN).out_of_order) == 1
    assert len(check(STRICT_TOPIC, *BETWEEN, call("change", "first", 1.5)).out_of_order) == 1
    assert check(STRICT_TOPIC, *BETWEEN[::2], delivered("second", 4000)).out_of_order == []


@pytest.mark.parametrize(
    "more",
    [
        call("redrive", "first", 2.5),
        call("redrive", "first", 1.5, UNKNOWN),
        call("change", "first", 1.5, group="g1"),
    ],
)
def test_a_job_that_may_have_died_or_moved_has_no_place(more: Operation) -> None:
    assert check(STRICT_TOPIC, *BETWEEN, more).out_of_order == []

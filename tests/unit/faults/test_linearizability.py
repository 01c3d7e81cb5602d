"""The checker of the fault runs: wrong histories of each kind are refused, right ones accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.drawn_input import counted
from tests.faults.history import NOT_SENT, UNKNOWN, History, Operation, Recorder, read_history
from tests.faults.linearizability import StoreClock, Verdict, check_job
from tests.faults.promises import broken_promises
from tests.unit.faults import collapsing_histories, job_histories, wrong_histories
from tests.unit.faults.job_histories import deliver, finish, gone, op, put
from tests.unit.faults.led_job import TTR_MS, simulate

CLOCK = StoreClock(offset_ms=0, uncertainty_ms=0)
RIGHT = job_histories.RIGHT | collapsing_histories.RIGHT
WRONG = wrong_histories.WRONG | collapsing_histories.WRONG


def check(*operations: Operation, pops_without_response_s: Sequence[float] = ()) -> Verdict:
    return check_job(operations, CLOCK, pops_without_response_s)


def test_wrong_histories_are_refused() -> None:
    verdicts = {name: check(*history) for name, history in WRONG.items()}
    assert [name for name, verdict in verdicts.items() if verdict.is_right or not verdict.is_decided] == []


def test_right_histories_are_accepted() -> None:
    for name, history in RIGHT.items():
        verdict = check(*history, pops_without_response_s=[0.5])
        assert verdict.is_right, f"{name}: {verdict.explain(history)}"


def test_a_pop_without_response_may_have_counted_an_attempt_but_only_one() -> None:
    history = [put(0, 1), deliver(2, 9, 8000, attempt=2), finish(9, 10, receipt="first.2"), gone()]
    assert check(*history, pops_without_response_s=[2]).is_right
    assert not check(*history, pops_without_response_s=[8.5]).is_right
    assert not check(*history).is_right
    assert not check(history[0], deliver(2, 9, 8000, attempt=3), pops_without_response_s=[2]).is_right


def test_a_pop_without_response_held_the_job_no_longer_than_its_time_limit() -> None:
    def history(at_ms: int) -> list[Operation]:
        again = replace(deliver(0.9, 1.2, at_ms, attempt=2), lease_end_ms=at_ms + 300)
        return [put(0, 0.6, at_ms=500, time_limit_ms=300), again, finish(1.25, 1.3, receipt="first.2"), gone()]

    assert check(*history(1000), pops_without_response_s=[0.5]).is_right
    assert not check(*history(700), pops_without_response_s=[0.5]).is_right


def test_the_uncertainty_of_the_clock_is_allowed_for() -> None:
    history = [put(0, 1), deliver(2, 3, 1985)]
    assert not check_job(history, CLOCK).is_right
    assert check_job(history, StoreClock(offset_ms=0, uncertainty_ms=20)).is_right


def test_a_search_that_is_too_long_is_no_verdict() -> None:
    puts = [put(0, None, UNKNOWN, tag=f"put {number}") for number in range(6)]
    cancels = [op("cancel", 0, None, UNKNOWN) for _ in range(6)]
    verdict = check_job([*puts, *cancels, finish(5, 6)], CLOCK, most_steps=100)
    assert not verdict.is_decided


def test_a_put_that_was_carried_out_after_it_was_given_up_is_counted() -> None:
    def late(given_up_s: float | None) -> list[str]:
        given_up = put(0, None, at_ms=1500, given_up_s=given_up_s)
        return broken_promises(History([], {("t", "job"): [given_up]}, []), CLOCK).late

    assert late(1) == ["t/job first"]
    assert late(1.5) == late(None) == []


# Histories of a simulated job


@settings(max_examples=counted(300), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 24))
@example(124, 12)  # appended to after a redrive, when nobody had seen the delivery that was the last attempt
def test_every_history_that_follows_the_rules_is_accepted(seed: int, steps: int) -> None:
    job = simulate(seed, steps, lost_responses=0.2)
    operations = job.history()
    verdict = check_job(operations, CLOCK, job.pops_without_response_s)
    assert verdict.is_right, verdict.explain(operations)
    in_order = sorted(operations, key=lambda one: one.call_s)
    assert not any(vars(broken_promises(History([], {("t", "job"): in_order}, []), CLOCK)).values())


@settings(max_examples=counted(300), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 20), st.sampled_from(["lost", "twice", "ghost", "early"]))
def test_a_history_with_one_wrong_thing_added_is_refused(seed: int, steps: int, wrong: str) -> None:
    job = simulate(seed, steps, lost_responses=0)  # since lost responses can explain a wrong operation
    at_ms = job.now_ms + 5000
    at_s = at_ms / 1000
    last = "last"
    if job.state != "gone":  # so that the end is the same in all examples
        was = {"held": "reserved", "waiting": "ready"}.get(job.state, job.state)
        job.operations.append(op("cancel", at_s - 3, at_s - 2.9, was))
    new = put(at_s - 1, at_s - 0.9, tag=last, at_ms=at_ms - 950, delay_ms=900 if wrong == "early" else 0)
    first = deliver(at_s, at_s + 0.1, at_ms + 20, tag=last)
    added = {
        "lost": [new, gone()],
        "twice": [new, first, deliver(at_s, at_s + 1, at_ms + 500, attempt=2, tag=last)],
        "ghost": [first],
        "early": [new, deliver(at_s - 0.8, at_s - 0.1, at_ms - 150, tag=last)],
    }[wrong]
    operations = [*job.operations, *added]
    job.chance.shuffle(operations)
    verdict = check_job(operations, CLOCK, job.pops_without_response_s)
    assert verdict.is_decided
    assert not verdict.is_right


# Recorded histories


def test_a_history_is_read_back_per_job_with_what_was_under_way_at_a_kill(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl")
    number = recorder.begin("put", "t", "job", tag="one", delay_ms=5, ttr_ms=TTR_MS)
    recorder.end(number, "created", at_ms=7)
    recorder.begin("cancel", "t", "job")
    recorder.end(recorder.begin("finish", "t", "job", receipt="r"), NOT_SENT)
    recorder.end(recorder.begin("finish", "t", "job", receipt="s"), UNKNOWN, given_up_after_s=1.5)
    recorder.end(recorder.begin("pop", "t", request="again"), UNKNOWN)
    job = {"job": "job", "tag": "two", "attempt": 1, "receipt": "r", "lease_end_ms": 9, "created_ms": 8, "at_ms": 8}
    recorder.end(recorder.begin("pop", "t", request="again"), "jobs", jobs=[job])
    recorder.close()
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"n":99,"kind":"pu')
    lost = Recorder(tmp_path / "b.jsonl")
    lost.begin("put", "t", "job", tag="two", delay_ms=0, ttr_ms=TTR_MS)
    lost.close()

    history = read_history([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])

    one, cancel, given_up, pop, two = history.of_job["t", "job"]
    assert ("put", "created", "one", 7) == (one.kind, one.outcome, one.tag, one.at_ms)
    assert ("cancel", UNKNOWN, None, None) == (cancel.kind, cancel.outcome, cancel.end_s, cancel.over_s)
    assert given_up.end_s is None
    assert 1.5 <= (given_up.over_s or 0) - given_up.call_s < 60
    assert ("deliver", "two", 8) == (pop.kind, pop.tag, pop.at_ms)
    assert ("put", "created", 8, None) == (two.kind, two.outcome, two.at_ms, two.end_s)
    [without_response] = history.pops_without_response
    assert without_response.call_s == pop.call_s, "the response may be that of the first attempt"


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        ("a put that was lost", "lost"),
        ("a lease that ran out, and with it the job", "lost"),
        ("a second delivery under a live lease", "overlapping_leases"),
        ("a delivery after an acknowledged cancel", "delivered_after_cancel"),
        ("a second delivery under a lease that was extended", "overlapping_leases"),
        ("a delivery after an acknowledged finish", "delivered_after_finish"),
        ("a delivery after a finish without a receipt", "delivered_after_finish"),
        ("a retained job that is delivered", "delivered_after_finish"),
        ("a finished job that was not kept", "forgotten"),
        ("a second delivery, made at an unknown time, under a live lease", "overlapping_leases"),
        ("a second delivery, made at an unknown time, under a lease that was extended", "overlapping_leases"),
        ("a retained job whose id is free", "forgotten"),
        ("an item in two collections", "split_items"),
        ("an item that was lost", "lost_items"),
        ("a follow-up that is delivered beside the job", "overlapping_leases"),
        ("a follow-up that was lost", "lost"),
        ("an append that was lost with its collection", "lost"),
        ("a second job while the id is taken", "put_while_taken"),
    ],
)
def test_broken_promises_are_counted_without_the_search_too(wrong: str, broken: str) -> None:
    counts = vars(broken_promises(History([], {("t", "job"): WRONG[wrong]}, []), CLOCK))
    assert {broken} == {name for name, found in counts.items() if found}


def test_receipts_that_are_issued_twice_are_counted() -> None:
    history = [
        put(0, 1),
        deliver(2, 3, 2500),
        finish(2.6, 2.7),
        put(3, 4, tag="second"),
        deliver(5, 6, 5500, tag="second", receipt="first.1"),
    ]
    counts = vars(broken_promises(History([], {("t", "job"): history}, []), CLOCK))
    assert {"reused_receipts"} == {name for name, found in counts.items() if found} - {"delivered_after_finish"}


def test_right_histories_break_no_promise() -> None:
    for name, history in RIGHT.items():
        counts = vars(broken_promises(History([], {("t", "job"): history}, []), CLOCK))
        assert not any(counts.values()), name


def test_a_job_that_is_delivered_again_after_the_put_of_its_finish_is_counted() -> None:
    chained = [put(3, 4, tag="next", chain="c1", at_ms=3500)]
    lost = [put(0, 1), deliver(2, 3, 2500), finish(3, None, UNKNOWN)]
    lost[-1] = replace(lost[-1], chain="c1")
    for again, is_counted in (([], False), ([deliver(4, 5, 4500, attempt=2)], True)):
        of_job = {("t", "job"): [*lost, *again], ("t", "next"): chained}
        broken = broken_promises(History([], of_job, []), CLOCK)
        assert bool(broken.split_chains) is is_counted

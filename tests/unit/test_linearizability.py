"""The checker of the fault runs: wrong histories of each kind are refused, right ones accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.history import NOT_SENT, UNKNOWN, History, Kind, Operation, Recorder, read_history
from tests.faults.linearizability import StoreClock, Verdict, check_job
from tests.faults.promises import broken_promises
from tests.unit.led_job import TTR_MS, lead

CLOCK = StoreClock(offset_ms=0, uncertainty_ms=0)


def op(kind: Kind, call_s: float, end_s: float | None, outcome: str = "done", **facts: object) -> Operation:
    """An operation on the one job of these tests."""
    operation = Operation(kind, "t", "job", call_s, end_s, outcome)
    return replace(operation, **facts)  # type: ignore[arg-type] # each test gives what the kind has


def put(call_s: float, end_s: float | None, outcome: str = "created", tag: str = "first", **facts: object) -> Operation:
    return op("put", call_s, end_s, outcome, tag=tag, **{"ttr_ms": TTR_MS, **facts})


def deliver(
    call_s: float,
    end_s: float,
    at_ms: int,
    *,
    attempt: int = 1,
    tag: str = "first",
    receipt: str = "",
    created_ms: int = 0,
) -> Operation:
    return op(
        "deliver",
        call_s,
        end_s,
        tag=tag,
        attempt=attempt,
        receipt=receipt or f"{tag}.{attempt}",
        at_ms=at_ms,
        lease_end_ms=at_ms + TTR_MS,
        created_ms=created_ms,
    )


def finish(call_s: float, end_s: float | None, outcome: str = "done", receipt: str = "first.1") -> Operation:
    return op("finish", call_s, end_s, outcome, receipt=receipt)


def gone(at_s: float = 1000) -> Operation:
    return op("look", at_s, at_s + 1, "not found")


def check(*operations: Operation, unanswered_pops_s: Sequence[float] = ()) -> Verdict:
    return check_job(operations, CLOCK, unanswered_pops_s)


WRONG = {
    "a second delivery under a live lease": [
        put(0, 1),
        deliver(2, 3, 2500),
        deliver(2, 4, 3000, attempt=2),
    ],
    "a second delivery under a lease that was extended": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("touch", 3, 4, receipt="first.1", at_ms=3400, lease_end_ms=4400),
        deliver(2, 5, 4000, attempt=2),
    ],
    "the same attempt delivered twice": [
        put(0, 1),
        deliver(2, 3, 2500),
        deliver(4, 5, 4500, receipt="other.1"),
    ],
    "an attempt that was counted without a delivery": [put(0, 1), deliver(2, 3, 2500, attempt=2)],
    "an attempt too many for the time there was": [put(0, 1, at_ms=900), deliver(0, 2, 1500, attempt=2)],
    "a delivery after an acknowledged cancel": [put(0, 1), op("cancel", 2, 3, "delayed"), deliver(4, 5, 4500)],
    "a delivery after an acknowledged finish": [
        put(0, 1),
        deliver(2, 3, 2500),
        finish(3, 3.2),
        deliver(4, 5, 4500, attempt=2),
    ],
    "a delivery of a job that was never put": [deliver(2, 3, 2500)],
    "a delivery before the put": [deliver(0, 1, 500), put(2, 3)],
    "a delivery before it was due": [put(0, 1, delay_ms=5000), deliver(2, 4, 3000)],
    "a delivery before a release's delay was over": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("release", 3, 4, receipt="first.1", at_ms=3200, delay_ms=2000),
        deliver(4, 6, 5100, attempt=2),
    ],
    "a delivery of the job that had the id before": [
        put(0, 1),
        op("cancel", 1, 2, "delayed"),
        put(3, 4, tag="second"),
        deliver(5, 6, 5500),
    ],
    "a delivery that the store says it made at another time": [put(0, 1), deliver(2, 3, 1900)],
    "a put that was lost": [put(0, 1), gone()],
    "a put that was lost after a release": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("release", 3, 4, receipt="first.1", at_ms=3200),
        gone(),
    ],
    "a lease that ran out, and with it the job": [put(0, 1), deliver(2, 3, 2500), gone()],
    "a finished job that is there yet": [put(0, 1), deliver(2, 3, 2500), finish(3, 4), op("look", 9, 10, "there")],
    "two jobs of one id": [put(0, 1), put(2, 3, tag="second")],
    "a taken id that is free": [put(0, 1, "exists")],
    "a finish accepted for a stale receipt": [
        put(0, 1),
        deliver(2, 3, 2500),
        deliver(3, 4, 3600, attempt=2),
        finish(4, 5),
    ],
    "a finish accepted for a job that was put after it": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("cancel", 3, 4, "reserved"),
        put(5, 6, tag="second"),
        finish(7, 8),
    ],
    "a finish accepted twice": [put(0, 1), deliver(2, 3, 2500), finish(3, 4), finish(5, 6)],
    "a finish refused under a live lease": [put(0, 1), deliver(2, 3, 2500), finish(2.6, 2.7, "stale")],
    "a finish told of a cancel that was not": [put(0, 1), deliver(2, 3, 2500), finish(2.6, 2.7, "cancelled")],
    "a finish not told of a cancel that was": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("cancel", 2.6, 2.7, "reserved"),
        finish(2.8, 2.9, "not found"),
    ],
    "a held job not found": [put(0, 1), deliver(2, 3, 2500), finish(2.6, 2.7, "not found")],
    "a cancel that did not find the job": [put(0, 1), op("cancel", 2, 3, "not found")],
    "a cancel of a job that is gone": [put(0, 1), op("cancel", 2, 3, "delayed"), op("cancel", 4, 5, "delayed")],
    "a cancel from the hands of nobody": [put(0, 1), op("cancel", 2, 3, "reserved")],
    "a cancel of a ready job before it is due": [put(0, 1, delay_ms=5000), op("cancel", 2, 3, "ready")],
    "a cancel of a delayed job in somebody's hands": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("cancel", 3.1, 3.2, "delayed"),
    ],
    "a job due at another instant than its answer says": [put(0, 1, at_ms=500, delay_ms=100, due_ms=700)],
    "a delivery before the instant at which it was to run": [put(0, 1, at_ms=500, run_at_ms=4000), deliver(2, 4, 3000)],
    "a delivery of a job that was put at another time": [put(0, 1, at_ms=500), deliver(2, 3, 2500, created_ms=400)],
    "a delivery before the delay of a change was over": [
        put(0, 1),
        op("change", 1, 2, at_ms=1500, delay_ms=3000),
        deliver(2, 4, 3000),
    ],
    "a change of a held job": [put(0, 1), deliver(2, 3, 2500), op("change", 2.6, 2.7, at_ms=2650, delay_ms=0)],
    "a change refused for a holder that is none": [put(0, 1), op("change", 2, 3, "held", delay_ms=0)],
    "a change that did not find the job": [put(0, 1), op("change", 2, 3, "not found", delay_ms=0)],
    "a delivery after an acknowledged bury": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("bury", 2.6, 2.7, receipt="first.1"),
        deliver(4, 5, 4500, attempt=2),
    ],
    "a buried job that is gone at once": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("bury", 2.6, 2.7, receipt="first.1"),
        gone(3),
    ],
    "a delivery too many": [
        put(0, 1, max_attempts=1),
        deliver(2, 3, 2500),
        deliver(4, 5, 4500, attempt=2),
    ],
    "a release of the last attempt that comes again": [
        put(0, 1, max_attempts=1),
        deliver(2, 3, 2500),
        op("release", 3, 4, receipt="first.1", at_ms=3200),
    ],
    "a release that ends in dead, with attempts left": [
        put(0, 1, max_attempts=2),
        deliver(2, 3, 2500),
        op("release", 3, 4, "dead", receipt="first.1"),
    ],
    "a first delivery when the ttl was over": [put(0, 1, at_ms=500, ttl_ms=100), deliver(2, 3, 2500)],
    "a job that died without a reason": [put(0, 1), op("cancel", 9, 10, "dead")],
    "a job that expired before its ttl was over": [
        put(0, 1, at_ms=500, ttl_ms=5000),
        op("cancel", 3, 4, "dead"),
    ],
    "a redrive of a job that is not dead": [put(0, 1), deliver(2, 3, 2500), op("redrive", 2.6, 2.7)],
    "a redrive that passes a dead job by": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("bury", 2.6, 2.7, receipt="first.1"),
        op("redrive", 2.8, 2.9, "none"),
    ],
    "a redriven job that is gone": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("bury", 2.6, 2.7, receipt="first.1"),
        op("redrive", 2.8, 2.9),
        gone(),
    ],
    "a job in the place of a held one": [
        put(0, 1),
        deliver(2, 3, 2500),
        put(2.6, 2.7, "stored", tag="second", replaces=True),
    ],
    "a delivery of a job whose place another took": [
        put(0, 1),
        put(2, 3, "stored", tag="second", replaces=True),
        deliver(4, 5, 4500),
    ],
    "a put refused for a holder that is none": [put(0, 1), put(2, 3, "held", tag="second", replaces=True)],
    "a look that does not find the job": [put(0, 1), gone(2)],
    "a look that finds nobody's job": [op("look", 2, 3, "there")],
}


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_history_is_refused(history: list[Operation]) -> None:
    verdict = check(*history)
    assert verdict.is_decided
    assert not verdict.is_right


RIGHT = {
    "nothing": [],
    "put, delivered, finished": [put(0, 1, at_ms=500), deliver(1, 3, 2500), finish(3, 4), gone()],
    "a delivery that is answered before its put": [put(0, 9), deliver(1, 3, 2500), finish(4, 5), gone()],
    "a put of which nobody knows": [put(0, None, UNKNOWN), gone()],
    "a put that took effect late": [put(0, None, UNKNOWN), gone(2), deliver(5, 6, 5500), finish(7, 8), gone()],
    "a lost answer to a cancel": [put(0, 1), op("cancel", 2, None, UNKNOWN), gone()],
    "a lost answer to a finish": [put(0, 1), deliver(2, 3, 2500), finish(3, None, UNKNOWN), gone()],
    "a lost answer to a release": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("release", 2.6, None, UNKNOWN, receipt="first.1", delay_ms=100),
        deliver(2.7, 3, 2900, attempt=2),
        finish(3, 4, receipt="first.2"),
        gone(),
    ],
    "a lease that ran out": [
        put(0, 1),
        deliver(2, 3, 2500),
        deliver(3, 4, 3500, attempt=2),
        finish(5, 6, "stale"),
        finish(6, 7, receipt="first.2"),
        gone(),
    ],
    "a finish after the lease, that nobody got in between": [put(0, 1), deliver(2, 3, 2500), finish(8, 9), gone()],
    "a finish refused when the lease was over": [
        put(0, 1),
        deliver(2, 3, 2500),
        finish(3.4, 3.6, "stale"),
        deliver(4, 5, 4500, attempt=2),
        finish(5, 6, receipt="first.2"),
        gone(),
    ],
    "a cancel and a delivery at the same time": [
        put(0, 1),
        op("cancel", 2, 3, "reserved"),
        deliver(2, 3, 2500),
        finish(3, 4, "cancelled"),
        gone(),
    ],
    "a holder that asks long after the cancel": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("cancel", 3, 4, "reserved"),
        finish(80, 81, "not found"),
        gone(),
    ],
    "a lost cancel of a job whose lease was over": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("cancel", 5, None, UNKNOWN),
        finish(6, 7, "not found"),
        gone(),
    ],
    "a change that makes it due": [
        put(0, 1, delay_ms=60_000),
        op("change", 1, 2, at_ms=1500, delay_ms=0),
        deliver(2, 3, 2500),
        op("change", 2.6, 2.7, "held", delay_ms=0),
        finish(3, 4),
        op("change", 4, 5, "not found", delay_ms=0),
        gone(),
    ],
    "a lost answer to a change that put it off beyond its ttl": [
        put(0, 1, at_ms=500, ttl_ms=1000),
        op("change", 1, None, UNKNOWN, delay_ms=4000),
        deliver(5, 6, 5500),
        finish(6, 7),
        gone(),
    ],
    "buried, redriven, and finished at its new first attempt": [
        put(0, 1, max_attempts=1),
        deliver(2, 3, 2500),
        op("bury", 2.6, 2.7, receipt="first.1"),
        finish(2.7, 2.8, "stale"),
        op("look", 2.8, 2.9, "there"),
        op("redrive", 3, 4),
        deliver(4, 5, 4500, receipt="again.1"),
        finish(5, 6, receipt="again.1"),
        gone(),
    ],
    "a dead job whose retention ended": [
        put(0, 1, max_attempts=1),
        deliver(2, 3, 2500),
        op("redrive", 3.4, 4, "done"),
        deliver(4, 5, 4500, receipt="again.1"),
        op("release", 5, 5.2, "dead", receipt="again.1"),
        put(6, 7, "exists", tag="second"),
        gone(),
    ],
    "an expired job": [
        put(0, 1, at_ms=500, ttl_ms=100),
        op("redrive", 1, 2),
        op("cancel", 2, 3, "dead"),
        gone(),
    ],
    "a change after a delivery to nobody": [
        put(0, 1, at_ms=500),
        op("change", 3, 4, at_ms=3500, delay_ms=500),
        deliver(4, 5, 4500, attempt=2),
        finish(5, 6, receipt="first.2"),
        gone(),
    ],
    "a job that died in hands that nobody knows of": [put(0, 1, at_ms=500, max_attempts=1), gone()],
    "a job in the place of another": [
        put(0, 1, delay_ms=9000),
        put(2, 3, "stored", tag="second", replaces=True),
        deliver(4, 5, 4500, tag="second"),
        put(4.6, 4.7, "held", tag="third", replaces=True),
        finish(5, 6, receipt="second.1"),
        gone(),
    ],
    "an id put again": [
        put(0, 1),
        op("cancel", 1, 2, "delayed"),
        put(3, 4, tag="second"),
        put(4, 5, "exists", tag="third"),
        deliver(5, 6, 5500, tag="second"),
        finish(6, 7, receipt="second.1"),
        gone(),
    ],
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT.keys())
def test_a_right_history_is_accepted(history: list[Operation]) -> None:
    verdict = check(*history, unanswered_pops_s=[0.5])
    assert verdict.is_right, verdict.explain(history)


def test_an_unanswered_pop_may_have_counted_an_attempt_but_only_one() -> None:
    history = [put(0, 1), deliver(2, 9, 8000, attempt=2), finish(9, 10, receipt="first.2"), gone()]
    assert check(*history, unanswered_pops_s=[2]).is_right
    assert not check(*history, unanswered_pops_s=[8.5]).is_right
    assert not check(*history).is_right
    assert not check(history[0], deliver(2, 9, 8000, attempt=3), unanswered_pops_s=[2]).is_right


def test_the_uncertainty_of_the_clock_is_allowed_for() -> None:
    history = [put(0, 1), deliver(2, 3, 1985)]
    assert not check_job(history, CLOCK).is_right
    assert check_job(history, StoreClock(offset_ms=0, uncertainty_ms=20)).is_right


def test_a_search_that_is_too_long_is_no_verdict() -> None:
    puts = [put(0, None, UNKNOWN, tag=f"put {number}") for number in range(6)]
    cancels = [op("cancel", 0, None, UNKNOWN) for _ in range(6)]
    verdict = check_job([*puts, *cancels, finish(5, 6)], CLOCK, most_steps=100)
    assert not verdict.is_decided


# Histories made by a job that is really led through its life


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_every_history_of_a_job_that_was_led_by_the_rules_is_accepted(seed: int, steps: int) -> None:
    job = lead(seed, steps, lost_answers=0.2)
    operations = job.end()
    verdict = check_job(operations, CLOCK, job.unanswered_pops_s)
    assert verdict.is_right, verdict.explain(operations)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 20), st.sampled_from(["lost", "twice", "ghost", "early"]))
def test_a_history_with_one_wrong_thing_added_is_refused(seed: int, steps: int, wrong: str) -> None:
    job = lead(seed, steps, lost_answers=0)  # for what was lost may explain much
    at_ms = job.now_ms + 5000
    at_s = at_ms / 1000
    last = "last"
    if job.state != "gone":  # so that the end is the same whatever was before
        was = {"held": "reserved", "dead": "dead", "waiting": "ready"}[job.state]
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
    verdict = check_job(operations, CLOCK, job.unanswered_pops_s)
    assert verdict.is_decided
    assert not verdict.is_right


# What is written down


def test_a_history_is_read_back_per_job_with_what_was_under_way_at_a_kill(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl")
    answered = recorder.begin("put", "t", "job", tag="one", delay_ms=5, ttr_ms=TTR_MS)
    recorder.end(answered, "created", at_ms=7)
    recorder.begin("cancel", "t", "job")
    recorder.end(recorder.begin("finish", "t", "job", receipt="r"), NOT_SENT)
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

    one, cancel, pop, two = history.of_job["t", "job"]
    assert ("put", "created", "one", 7) == (one.kind, one.outcome, one.tag, one.at_ms)
    assert ("cancel", UNKNOWN, None) == (cancel.kind, cancel.outcome, cancel.end_s)
    assert ("deliver", "two", 8) == (pop.kind, pop.tag, pop.at_ms)
    assert ("put", "created", 8, None) == (two.kind, two.outcome, two.at_ms, two.end_s)
    [unanswered] = history.unanswered_pops
    assert unanswered.call_s == pop.call_s, "the answer may be that of the first try"


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        ("a put that was lost", "lost"),
        ("a lease that ran out, and with it the job", "lost"),
        ("a second delivery under a live lease", "held_twice"),
        ("a delivery after an acknowledged cancel", "delivered_after_cancel"),
        ("a second delivery under a lease that was extended", "held_twice"),
        ("a delivery after an acknowledged finish", "delivered_after_finish"),
    ],
)
def test_broken_promises_are_counted_without_the_search_too(wrong: str, broken: str) -> None:
    counts = vars(broken_promises(History([], {("t", "job"): WRONG[wrong]}, []), CLOCK))
    assert {broken} == {name for name, found in counts.items() if found}


def test_receipts_that_are_given_again_are_counted() -> None:
    history = [
        put(0, 1),
        deliver(2, 3, 2500),
        finish(2.6, 2.7),
        put(3, 4, tag="second"),
        deliver(5, 6, 5500, tag="second", receipt="first.1"),
    ]
    counts = vars(broken_promises(History([], {("t", "job"): history}, []), CLOCK))
    assert {"receipts_twice"} == {name for name, found in counts.items() if found} - {"delivered_after_finish"}


def test_right_histories_break_no_promise() -> None:
    for name, history in RIGHT.items():
        counts = vars(broken_promises(History([], {("t", "job"): history}, []), CLOCK))
        assert not any(counts.values()), name

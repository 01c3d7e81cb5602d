"""How `deferd bench` evaluates its measurements: clock offset, ledger of jobs, percentiles and histograms."""

from __future__ import annotations

from array import array

import pytest

from deferd.bench.figures import (
    BatchFigures,
    Bucket,
    CallFigures,
    Figures,
    LatenessFigures,
    Percentiles,
    SingleFigures,
    Throughput,
    histogram_of,
    notes,
    percentile,
    show,
)
from deferd.bench.steps import BenchFailed, ClockOffset, Ledger, StepResult, epoch_ms
from deferd.client import Delivery, PutResult
from deferd.contract.timestamps import parse_instant
from tests.deliveries import delivery_of

DUE_AT = "2026-11-21T10:00:00.250Z"
DUE_MS = epoch_ms(parse_instant(DUE_AT))
DUE_S = DUE_MS / 1000


def make_ledger(offset_ms: float = 0.0) -> Ledger:
    return Ledger("t", ClockOffset(offset_ms, 0.5))


def make_delivery(job_id: str = "a", *, topic: str = "t", due_at: str = DUE_AT, attempt: int = 1) -> Delivery:
    return delivery_of(topic=topic, id=job_id, due_at=due_at, attempt=attempt)


def make_result(jobs: int, began_s: float, ended_s: float, cpu_s: float, values_ms: list[float]) -> StepResult:
    return StepResult(began_s, cpu_s, ended_s, jobs, calls=jobs, values_ms=array("d", values_ms))


def test_clocks_agree_when_no_sample_contradicts_it() -> None:
    assert ClockOffset.from_samples([(1000.0, 1001.0, 1003.0), (2000.0, 2000.0, 2001.0)]) == ClockOffset(0.0, 1.0)


@pytest.mark.parametrize("ahead_ms", [5000.0, -5000.0])
def test_clocks_that_differ_are_bounded_by_the_closest_samples(ahead_ms: float) -> None:
    clock = ClockOffset.from_samples([(1000.0, 1001.0 + ahead_ms, 1003.0), (2000.0, 2000.0 + ahead_ms, 2001.0)])

    assert clock == ClockOffset(ahead_ms, 1.0)
    assert clock.store_ms(3.0) == 3000 + ahead_ms


def test_lateness_is_measured_with_the_clock_of_the_store() -> None:
    ledger = make_ledger(offset_ms=5000)
    ledger.put("a", DUE_MS)

    assert ledger.delivered(make_delivery(), DUE_S - 5 + 0.004) == pytest.approx(4, abs=0.01)
    assert ledger.missing == 0
    ledger.check_complete()


@pytest.mark.parametrize(
    ("delivery", "at_s", "wrong"),
    [
        (make_delivery(), DUE_S - 0.002, "was delivered 2.0 ms before it was due"),
        (make_delivery(attempt=2), DUE_S, "as attempt 2"),
        (make_delivery(topic="other"), DUE_S, "a pop of topic t returned"),
        (make_delivery(due_at="2026-11-21T10:00:00.251Z"), DUE_S + 1, "delivered as due at 2026-11-21T10:00:00.251Z"),
    ],
)
def test_a_wrong_delivery_is_found(delivery: Delivery, at_s: float, wrong: str) -> None:
    ledger = make_ledger()
    ledger.put("a", DUE_MS)

    with pytest.raises(BenchFailed, match=wrong):
        ledger.delivered(delivery, at_s)


def test_a_job_that_is_delivered_twice_is_found() -> None:
    ledger = make_ledger()
    ledger.put("a")
    ledger.delivered(make_delivery(), DUE_S)

    with pytest.raises(BenchFailed, match="delivered twice"):
        ledger.delivered(make_delivery(), DUE_S)


def test_jobs_that_are_lost_or_unknown_are_found() -> None:
    ledger = make_ledger()
    ledger.put("a")
    ledger.delivered(make_delivery("b"), DUE_S)

    with pytest.raises(BenchFailed, match="1 were not delivered; 1 others were"):
        ledger.check_complete()


def put_result(topic: str, status: int = 201, code: str | None = None) -> PutResult:
    return PutResult(topic=topic, id="a", status=status, code=code)


@pytest.mark.parametrize("result", [put_result("t", status=409, code="job_exists"), put_result("other")])
def test_a_put_that_does_not_get_201_is_found(result: PutResult) -> None:
    with pytest.raises(BenchFailed, match="not 201"):
        make_ledger().put_result(result, None)


def test_an_id_given_to_two_jobs_is_found() -> None:
    ledger = make_ledger()
    ledger.put("a")

    with pytest.raises(BenchFailed, match="same id a"):
        ledger.put("a")


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(1, 101)]

    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1)] == [50, 90, 99, 100]
    assert percentile([7.0], 0.5) == 7
    assert Percentiles.of([1.0, 2.0]) == Percentiles(1, 2, 2, 2)


def test_a_histogram_has_round_edges_and_counts_every_job() -> None:
    buckets = histogram_of(sorted([*(number / 10 for number in range(1, 200)), 500.0, -0.2]))

    assert [bucket.to_ms for bucket in buckets] == [*range(1, 21), None]
    assert buckets[0] == Bucket(0, 1, 10)
    assert buckets[-1] == Bucket(20, None, 1)
    assert sum(bucket.jobs for bucket in buckets) == 201


@pytest.mark.parametrize("value_ms", [0.0, 0.4, 1.0, 12_345.0])
def test_a_histogram_of_one_value_holds_it(value_ms: float) -> None:
    assert [1] == [bucket.jobs for bucket in histogram_of([value_ms]) if bucket.jobs]


def test_the_results_of_concurrent_processes_are_added_up() -> None:
    one, other = make_result(100, 10.0, 12.0, 0.2, [1.0] * 100), make_result(300, 10.5, 14.0, 1.0, [3.0] * 300)

    assert CallFigures.of([one, other]) == CallFigures(
        Throughput(400, 4.0, 100.0, 0.25), 400, 100.0, Percentiles(3, 3, 3, 3)
    )


def test_a_full_cycle_takes_as_long_as_its_halves() -> None:
    cycle = BatchFigures.of(10, Throughput(100, 1.0, 100.0, 0.5), Throughput(100, 3.0, 33.3, 0.1)).cycle

    assert cycle == Throughput(100, 4.0, 25.0, 0.2)


def test_notes_say_where_the_load_generator_may_have_been_the_limit() -> None:
    fast, slow = Throughput(100, 1.0, 100.0, 0.97), Throughput(100, 1.0, 100.0, 0.3)
    found = Figures("http://deferd.example", 2, 0.0, 0.5, batch=BatchFigures.of(10, fast, slow))

    [busy] = [note for note in notes(found) if "may have been the limit" in note]
    assert busy.startswith("In batches put it was so high")
    assert "--processes 4" in busy
    assert not any("this machine" in note for note in notes(found))


def test_notes_say_that_the_clocks_differ() -> None:
    [note] = [note for note in notes(Figures("http://deferd.example", 1, -5000.0, 0.7)) if "clock" in note]
    assert note.startswith("The clock of the service's store is 5,000.0 ms behind this machine's (within 0.7 ms)")


def test_each_load_has_a_table_that_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    results = [make_result(6000, 10.0, 12.0, 0.5, [0.5, 1.25, 1234.5])]
    calls, pace = CallFigures.of(results), Throughput.of(results, 2.0)
    figures = Figures(
        *("http://localhost:8000", 1, 0.0, 0.1),
        single=SingleFigures(4, calls, calls),
        batch=BatchFigures.of(100, pace, pace),
        lateness=LatenessFigures.of(results, 200, 2.0, 8),
    )
    show(figures, histogram=True)
    lines = capsys.readouterr().out.splitlines()
    rows = [" ".join(line.split()) for line in lines]
    for row in (
        "Single calls, 4 connections",
        "put, pop, finish 3,000 3,000 1.2 1234.5 1234.5 1234.5 25 %",
        "Batches of 100, 6,000 jobs",
        "full cycle 1,500 4.00 25 %",
        "Lateness, 200 jobs/s due at random instants, 8 waiting consumers",
        "due to delivered 3 1.2 1234.5 1234.5 1234.5 0.0 25 %",
        "ms late jobs",
    ):
        assert row in rows
    assert max(map(len, lines)) <= 80

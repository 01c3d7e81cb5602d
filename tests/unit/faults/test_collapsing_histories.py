"""The checker of the fault runs on jobs whose puts collapse: wrong histories are refused, right ones accepted."""

from __future__ import annotations

import pytest

from tests.faults.history import History
from tests.faults.linearizability import StoreClock, check_job
from tests.faults.promises import broken_promises
from tests.unit.faults.collapsing_histories import RIGHT, WRONG

CLOCK = StoreClock(offset_ms=0, uncertainty_ms=0)


def test_wrong_histories_are_refused() -> None:
    verdicts = {name: check_job(history, CLOCK) for name, history in WRONG.items()}
    assert [name for name, verdict in verdicts.items() if verdict.is_right or not verdict.is_decided] == []


def test_right_histories_are_accepted() -> None:
    for name, history in RIGHT.items():
        verdict = check_job(history, CLOCK, [0.5])
        assert verdict.is_right, f"{name}: {verdict.explain(history)}"
        counts = vars(broken_promises(History([], {("t", "job"): history}, []), CLOCK))
        assert not any(counts.values()), name


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
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

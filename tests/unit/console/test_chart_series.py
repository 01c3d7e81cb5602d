"""The data of charts."""

from __future__ import annotations

import pytest

from deferd.console.chart_series import flow_series, run_time_series


def test_what_is_released_for_another_attempt_has_a_line_of_its_own() -> None:
    names = ("put", "popped", "finished", "released", "dead", "cancelled", "ready", "reserved")
    buckets = {name: [0, 0] for name in names} | {"at": [0, 10], "released": [5, 1]}
    flow = flow_series({"bucket": 10, "buckets": buckets})
    assert flow["released"] == [30, 6], "a minute"
    assert flow["sums"]["released"] == 6


@pytest.mark.parametrize("known", [(0.8, 4.5), (None, None)])
def test_run_times_are_drawn_by_bucket_and_known_over_all(known: tuple[float | None, float | None]) -> None:
    p50, p99 = known
    buckets = {"at": [3000, 3300, 3600], "run_time_p50": [None, 1.0, p50], "run_time_p99": [None, 2.0, p99]}
    series = run_time_series({"bucket": 300, "buckets": buckets, "whole": {"run_time_p50": 0.9, "run_time_p99": 3.0}})
    assert (series["p50"], series["p99"]) == (buckets["run_time_p50"], buckets["run_time_p99"])
    assert series["whole"] == {"p50": 0.9, "p99": 3.0}
    assert [(row["p50"], row["p99"]) for row in series["hours"]] == [(1.0, 2.0), known]

"""The data of charts."""

from __future__ import annotations

from deferd.console.chart_series import flow_series


def test_what_is_released_for_another_attempt_has_a_line_of_its_own() -> None:
    names = ("put", "popped", "finished", "released", "dead", "cancelled", "ready", "reserved")
    buckets = {name: [0, 0] for name in names} | {"at": [0, 10], "released": [5, 1]}
    flow = flow_series({"bucket": 10, "buckets": buckets})
    assert flow["released"] == [30, 6], "a minute"
    assert flow["sums"]["released"] == 6

"""The data of charts as columns, and by the hour for people who read it as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

FORECAST_BUCKET_S = 300
Series = dict[str, Any]
_HOUR_S = 3600
_LINE_ABOVE_BARS = 4


def lateness_series(history: dict[str, Any]) -> Series:
    """Lateness of first deliveries per `bucket`: `at`, `p50`, `p99` in seconds; `hours` with the highest of each, and
    over the `whole` period.
    """
    return _quantile_series(history, "lateness")


def run_time_series(history: dict[str, Any]) -> Series:
    """The same of how long consumers held the jobs that they finished."""
    return _quantile_series(history, "run_time")


def _quantile_series(history: dict[str, Any], of: str) -> Series:
    buckets, whole = history["buckets"], history["whole"]
    columns = {"at": buckets["at"], "p50": buckets[f"{of}_p50"], "p99": buckets[f"{of}_p99"]}
    return {
        **columns,
        "bucket": history["bucket"],
        "whole": {"p50": whole[f"{of}_p50"], "p99": whole[f"{of}_p99"]},
        "hours": _grouped(columns, _highest),
    }


def due_series(forecast: dict[str, Any]) -> Series:
    """Jobs due per bucket: `at`, `due`, and `handled` per bucket or None; `before` are due already.

    `rate_limit` is the most that the limits of the topic allow per bucket: None without, for several topics, and where
    a line so far above the bars would make them too small to see.
    """
    begin_s = round(datetime.fromisoformat(forecast["from"]).timestamp())
    bucket_s = round(forecast["bucket"])
    columns = {
        "at": [begin_s + bucket_s * place for place in range(len(forecast["counts"]))],
        "due": forecast["counts"],
    }
    handled = forecast["handled"]
    topics = forecast["topics"]
    rate_limit = topics[0].get("rate_limit") if len(topics) == 1 and not forecast["left_out"] else None
    is_near = rate_limit is not None and rate_limit <= _LINE_ABOVE_BARS * max(forecast["counts"])
    return {
        **columns,
        "bucket": bucket_s,
        "handled": handled,
        "handled_an_hour": None if handled is None else round(handled * _HOUR_S / bucket_s),
        "rate_limit": rate_limit if is_near else None,
        "rate_limit_an_hour": None if rate_limit is None else round(rate_limit * _HOUR_S / bucket_s),
        "before": forecast["before"],
        "after": forecast["after"],
        "hours": _grouped(columns, sum),
    }


def flow_series(history: dict[str, Any]) -> Series:
    """What happened in a topic: jobs a minute put, handed out, finished, released and dead; how many wait, are held."""
    buckets, a_minute = history["buckets"], 60 / history["bucket"]
    columns: Series = {
        name: [round(value * a_minute, 2) for value in buckets[name]]
        for name in ("put", "popped", "finished", "released", "dead")
    }
    sums = {name: buckets[name] for name in ("put", "popped", "finished", "released", "dead", "cancelled")}
    return {
        "at": buckets["at"],
        "bucket": history["bucket"],
        **columns,
        "ready": buckets["ready"],
        "reserved": buckets["reserved"],
        "sums": {name: sum(values) for name, values in sums.items()},
        "table": _grouped(
            {"at": buckets["at"], **sums}, sum, 600 if history["bucket"] < FORECAST_BUCKET_S else _HOUR_S
        ),
    }


def _grouped(columns: Series, merge: Any, period_s: int = _HOUR_S) -> list[dict[str, Any]]:
    """The rows of a table: columns merged by periods of the clock."""
    names = [name for name in columns if name != "at"]
    rows = []
    places = range(len(columns["at"]))
    for begin_s, group in groupby(places, key=lambda place: columns["at"][place] // period_s * period_s):
        in_group = list(group)
        values = {name: merge([columns[name][place] for place in in_group]) for name in names}
        rows.append({"from": _instant(begin_s), "to": _instant(begin_s + period_s), **values})
    return rows


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _instant(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")

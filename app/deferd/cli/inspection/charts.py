"""The commands `forecast` and `history`: what comes due and what happened, drawn in the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import client_command, topic_argument, topics_argument
from deferd.cli.framework.output import Column

if TYPE_CHECKING:
    from deferd.client import Client, Forecast

_HEIGHT = 8
"""Lines of the largest bar."""
_SPARKS_MIN, _SPARKS_MAX = 10, 60
_BUCKETS_MAX = 240
_HISTORY_SPARKS_MIN, _HISTORY_SPARKS_MAX = 10, 120
_COUNTS = {name: name for name in ("put", "popped", "finished", "released", "dead", "cancelled")}
_DURATIONS = {
    "late p50": "lateness_p50",
    "late p99": "lateness_p99",
    "ran p50": "run_time_p50",
    "ran p99": "run_time_p99",
}
_JOBS = {"delayed": "delayed", "ready": "ready", "reserved": "reserved", "dead jobs": "dead_jobs"}
_BEFORE_SPARKS = 40
_MOST_S = 2 * 86_400
_PIPE_WIDTH = 100
_BLOCKS = " ▁▂▃▄▅▆▇█"


@client_command(
    "deferd forecast",
    "deferd forecast 'mail.*' --span 24h",
    "deferd forecast --json | jq .counts",
    json="print JSON",
)
@topics_argument
@click.option("--from", "begin", type=values.instant, metavar="INSTANT", help="when it begins; default: now")
@click.option("--to", "end", type=values.instant, metavar="INSTANT", help="when it ends")
@click.option("--span", type=values.duration, metavar="DURATION", help="how much time in place of --to; default 6h")
@click.option(
    "--buckets", type=values.count_from_1, metavar="N", help="how many bars, up to 240; default: as many as fit"
)
@click.option("--limit", type=values.whole, metavar="N", help="most topics, up to 1000; default 20")
def forecast(
    *,
    topics: tuple[str, ...],
    begin: datetime | None,
    end: datetime | None,
    span: float | None,
    buckets: int | None,
    limit: int | None,
    client: Client,
    as_json: bool,
) -> None:
    """Draw how many delayed jobs and planned runs of schedules come due when: all topics together, and those that have
    the most. Times are in the zone of this host.
    """
    if end is not None and span is not None:
        raise UsageError("give one of --to and --span")
    if span is not None:
        end = (begin or datetime.now().astimezone()) + timedelta(seconds=span)
    width = _terminal_width()
    if buckets is None and not as_json:
        buckets = max(min(width - 12, _BUCKETS_MAX, 120), 1)
    made = client.forecast(topics=topics or None, begin=begin, end=end, buckets=buckets, limit=limit)
    if as_json:
        output.json_line(made.fields)
        return
    for line in _bars(made):
        output.line(line)
    _show_topics(made, width)
    if not made.complete:
        output.complain("not all topics, schedules or jobs could be read: some are missing")


def _bars(made: Forecast) -> Iterator[str]:
    """The bars, with the count of the largest on the left, the times below, and a summary."""
    counts = [due + planned for due, planned in zip(made.counts, made.scheduled, strict=True)]
    most = max(counts)
    label = output.short_number(most)
    for level in range(_HEIGHT, 0, -1) if most else ():
        bars = "".join(_BLOCKS[min(max(round(count / most * _HEIGHT * 8) - 8 * (level - 1), 0), 8)] for count in counts)
        yield f"{label if level == _HEIGHT else '':>6} {bars}".rstrip()
    first, last = _period(made.begins_at, made.ends_at)
    yield f"{'':>6} {first}{last:>{max(len(counts) - len(first), len(last) + 1)}}"
    due, planned = sum(made.counts), sum(made.scheduled)
    parts = [f"{output.count(due, 'job')} due, {output.span(made.bucket)} a bar"]
    if planned:
        parts.append(output.count(planned, "planned run"))
    if made.before:
        parts.append(f"{made.before:,} before")
    if made.after:
        parts.append(f"{made.after:,} after")
    if made.handled:
        parts.append(f"consumers finished {made.handled:,.4g} in such a time in the last hour")
    if (limit := made.topics[0].rate_limit if len(made.topics) == 1 and not made.left_out else None) is not None:
        parts.append(f"the rate of its limits allows {limit:,.4g}")
    yield "; ".join(parts)


def _show_topics(made: Forecast, width: int) -> None:
    topics = [topic for topic in made.topics if topic.delayed]
    if not topics:
        return
    name_width = max(len(topic.topic) for topic in topics)
    spark_width = min(max(width - name_width - 30, _SPARKS_MIN), _SPARKS_MAX)
    columns = [Column("TOPIC"), Column("DUE", right=True), Column("DELAYED", right=True), Column("WHEN")]
    rows = [
        [topic.topic, f"{sum(topic.counts):,}", f"{topic.delayed:,}", _sparks(topic.counts, spark_width)]
        for topic in topics
    ]
    if any(topic.rate_limit is not None for topic in topics):
        columns.insert(3, Column("RATE/BAR", right=True))
        for topic, row in zip(topics, rows, strict=True):
            row.insert(3, "-" if topic.rate_limit is None else f"{topic.rate_limit:,.4g}")
    output.line("")
    output.show_table(columns, rows)
    if left_out := made.fields.get("left_out"):
        output.line(f"and {left_out:,} more; --limit shows them")


if TYPE_CHECKING:
    from deferd.client import Client, History


@client_command(
    "deferd history orders.close",
    "deferd history --span 24h",
    "deferd history mail --json | jq .buckets.dead",
    json="print JSON",
)
@topic_argument("default: all together", metavar="[TOPIC]", required=False)
@click.option(
    "--span", type=values.duration, metavar="DURATION", help="how far back, up to 48h; default 1h, in steps of 10 s"
)
def history(topic: str | None, span: float | None, client: Client, as_json: bool) -> None:
    """Draw what happened in a topic, or in all of them together: jobs put, handed out and finished, how late jobs were,
    for how long they were held until they were finished, and how many were in each state. Up to an hour in steps of 10
    seconds, beyond that of 5 minutes.
    """
    if span is not None and not 60 <= span <= _MOST_S:
        raise UsageError("--span must be 1m to 48h")
    minutes = None if span is None else -(-int(span) // 60)
    found = client.history_of_all(minutes=minutes) if topic is None else client.history(topic, minutes=minutes)
    if as_json:
        output.json_line(found.fields)
        return
    spark_width = min(max(_terminal_width() - _BEFORE_SPARKS, _HISTORY_SPARKS_MIN), _HISTORY_SPARKS_MAX)
    columns = [Column(name, right=bool(name)) for name in ("", "LAST", "MOST", "SUM")] + [Column("")]
    chart = _Chart(found, spark_width)
    rows = [chart.row(name, column, output.number, is_count=True) for name, column in _COUNTS.items()]
    rows += [chart.row(name, column, output.span) for name, column in _DURATIONS.items()]
    rows += [
        chart.row(name, column, output.number)
        for name, column in _JOBS.items()
        if any(value is not None for value in found.column(column))
    ]
    first, last = _period(found.begins_at, found.ends_at)
    output.line(f"{topic or 'all topics'}, {first} to {last}, {output.span(found.bucket)} each")
    output.show_table(columns, rows)


class _Chart(NamedTuple):
    found: History
    width: int

    def row(self, name: str, column: str, show: Callable[[float | None], str], *, is_count: bool = False) -> list[str]:
        """The last and the largest value of a column, its sum if that means something, and all values as blocks."""
        numbers: list[float | None] = [*self.found.column(column)]
        known = [number for number in numbers if number is not None]
        drawn = _sparks([number or 0 for number in numbers], self.width, sum if is_count else max)
        return [name, show(numbers[-1]), show(max(known, default=None)), show(sum(known)) if is_count else "", drawn]


def _sparks(values: Sequence[float], width: int, join: Callable[[Sequence[float]], float] = sum) -> str:
    """The values as one line of blocks, of `width` characters at most; `join` makes one value of several."""
    width = min(width, len(values))
    edges = [at * len(values) // width for at in range(width + 1)]
    joined = [join(values[first:end]) for first, end in pairwise(edges)]
    most = max(joined) or 1
    return "".join(_BLOCKS[min(int(-(-value * 8 // most)), 8)] for value in joined).rstrip()


def _terminal_width() -> int:
    """The width of the terminal, or how wide a chart may be without one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def _period(begin: datetime, end: datetime) -> tuple[str, str]:
    """The times at both ends of a chart in the zone of this host, with dates when it covers more than a day."""
    form = "%Y-%m-%d %H:%M %Z" if end - begin > timedelta(days=1) else "%H:%M:%S %Z"
    return begin.astimezone().strftime(form), end.astimezone().strftime(form)

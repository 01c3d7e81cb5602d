"""The command `forecast`: what comes due, drawn in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import client_command, topics_argument
from deferd.cli.framework.output import Column
from deferd.cli.inspection import sparks

if TYPE_CHECKING:
    from deferd.client import Client, Forecast

_HEIGHT = 8
"""Lines of the largest bar."""
_SPARKS_MIN, _SPARKS_MAX = 10, 60
_BUCKETS_MAX = 240


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
    width = sparks.width()
    if buckets is None and not as_json:
        buckets = max(min(width - 12, _BUCKETS_MAX, 120), 1)
    made = client.forecast(topics=topics or None, begin=begin, end=end, buckets=buckets, limit=limit)
    if as_json:
        output.json_line(made.fields)
        return
    for line in _chart(made):
        output.line(line)
    _show_topics(made, width)


def _chart(made: Forecast) -> Iterator[str]:
    """The bars, with the count of the largest on the left, the times below, and a summary."""
    counts = [due + planned for due, planned in zip(made.counts, made.scheduled, strict=True)]
    most = max(counts)
    label = output.short_number(most)
    for level in range(_HEIGHT, 0, -1) if most else ():
        bars = "".join(
            sparks.BLOCKS[min(max(round(count / most * _HEIGHT * 8) - 8 * (level - 1), 0), 8)] for count in counts
        )
        yield f"{label if level == _HEIGHT else '':>6} {bars}".rstrip()
    first, last = sparks.period(made.begins_at, made.ends_at)
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
    yield "; ".join(parts)


def _show_topics(made: Forecast, width: int) -> None:
    topics = [topic for topic in made.topics if topic.delayed]
    if not topics:
        return
    name_width = max(len(topic.topic) for topic in topics)
    spark_width = min(max(width - name_width - 30, _SPARKS_MIN), _SPARKS_MAX)
    columns = [Column("TOPIC"), Column("DUE", right=True), Column("DELAYED", right=True), Column("WHEN")]
    rows = [
        [topic.topic, f"{sum(topic.counts):,}", f"{topic.delayed:,}", sparks.sparks(topic.counts, spark_width)]
        for topic in topics
    ]
    output.line("")
    output.show_table(columns, rows)
    if left_out := made.fields.get("left_out"):
        output.line(f"and {left_out:,} more; --limit shows them")

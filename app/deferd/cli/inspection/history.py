"""The command `history`: what happened in a topic, drawn in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from deferd.cli.framework import output, values
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import client_command, topic_argument
from deferd.cli.framework.output import Column
from deferd.cli.inspection import sparks

if TYPE_CHECKING:
    from deferd.client import Client, History

_COUNTS = {name: name for name in ("put", "popped", "finished", "released", "dead", "cancelled")}
_LATENESS = {"late p50": "lateness_p50", "late p99": "lateness_p99"}
_JOBS = {"delayed": "delayed", "ready": "ready", "reserved": "reserved", "dead jobs": "dead_jobs"}
_SPARKS_MIN, _SPARKS_MAX = 10, 120
_BEFORE_SPARKS = 40
_MOST_S = 2 * 86_400


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
    and how many were in each state. Up to an hour in steps of 10 seconds, beyond that of 5 minutes.
    """
    if span is not None and not 60 <= span <= _MOST_S:
        raise UsageError("--span must be 1m to 48h")
    minutes = None if span is None else -(-int(span) // 60)
    found = client.history_of_all(minutes=minutes) if topic is None else client.history(topic, minutes=minutes)
    if as_json:
        output.json_line(found.fields)
        return
    spark_width = min(max(sparks.width() - _BEFORE_SPARKS, _SPARKS_MIN), _SPARKS_MAX)
    columns = [Column(name, right=bool(name)) for name in ("", "LAST", "MOST", "SUM")] + [Column("")]
    chart = _Chart(found, spark_width)
    rows = [chart.row(name, column, output.number, is_count=True) for name, column in _COUNTS.items()]
    rows += [chart.row(name, column, output.span) for name, column in _LATENESS.items()]
    rows += [
        chart.row(name, column, output.number)
        for name, column in _JOBS.items()
        if any(value is not None for value in found.column(column))
    ]
    first, last = sparks.period(found.begins_at, found.ends_at)
    output.line(f"{topic or 'all topics'}, {first} to {last}, {output.span(found.bucket)} each")
    output.show_table(columns, rows)


class _Chart(NamedTuple):
    found: History
    width: int

    def row(self, name: str, column: str, show: Callable[[float | None], str], *, is_count: bool = False) -> list[str]:
        """The last and the largest value of a column, its sum if that means something, and all values as blocks."""
        numbers: list[float | None] = [*self.found.column(column)]
        known = [number for number in numbers if number is not None]
        drawn = sparks.sparks([number or 0 for number in numbers], self.width, sum if is_count else max)
        return [name, show(numbers[-1]), show(max(known, default=None)), show(sum(known)) if is_count else "", drawn]

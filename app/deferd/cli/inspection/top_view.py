"""A snapshot of the topics as text that fits the terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deferd.cli.framework import output
from deferd.cli.framework.output import Column, make_table
from deferd.cli.inspection import alert_lines
from deferd.cli.inspection.top_snapshot import Snapshot, TopicSnapshot, in_order
from deferd.cli.topics.topics import due_in_s
from deferd.contract.model import JobState

_WIDE = 110
_STATES = [state.value for state in JobState]
_TOPIC_WIDTH_MIN = 8
_LINES_AROUND = 4
"""Two above the table, its header, and the keys below."""
_SHARE_OF_ALERTS = 4
"""Alerts take at most this part of the lines, but two."""


def draw(
    snapshot: Snapshot | None,
    *,
    where: str,
    sort: str,
    width: int,
    height: int,
    error: str | None = None,
    keys: str = "",
) -> RenderableType:
    """The screen. `error` says why there is no newer snapshot; `keys` lists the keys."""
    parts: list[RenderableType] = [_headline(snapshot, where, width)]
    if error is not None:
        parts.append(_line(f"no response: {error}", "bold red"))
    elif snapshot is not None and snapshot.silent:
        parts.append(_line(f"rates lack {', '.join(snapshot.silent)}", "yellow"))
    if snapshot is not None:
        parts += [_line(sentence, "bold red") for sentence in snapshot.unavailable.sentences()]
        if error is None:
            parts += _attention(snapshot, max(height // _SHARE_OF_ALERTS, 2))
        rows = max(height - _LINES_AROUND - len(parts) + 1, 1)
        topics = in_order(snapshot.topics, sort)
        more = len(topics) - rows
        shown = topics if more <= 0 else topics[: max(rows - 1, 1)]
        table = topic_table(shown, wide=width >= _WIDE, width=width)
        if error is not None:
            table.style = "dim"
        parts.append(table)
        if len(shown) < len(topics):
            parts.append(Text(f"and {len(topics) - len(shown):,} more", style="dim"))
        if not topics:
            parts.append(Text("there is no topic yet", style="dim"))
    if keys:
        parts.append(Text(f"\n{keys}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def topic_table(topics: list[TopicSnapshot], *, wide: bool, width: int | None = None) -> Table:
    """A row for each topic; if not `wide`: rounded numbers, durations in one unit, no finished jobs.

    Only names of topics are truncated to fit `width`: a truncated number reads as another number.
    """
    states = _STATES if wide else [state for state in _STATES if state != JobState.FINISHED]
    heads = [*(state.upper() for state in states), "PUT/S", "FINISH/S"]
    heads += ["OLDEST READY", "NEXT DUE"] if wide else ["OLDEST", "DUE"]
    rows = [_figures(snapshot, states, wide=wide) for snapshot in topics]
    table = make_table([Column("TOPIC", cut=True), *(Column(head, right=True) for head in heads)])
    gap = 2 if wide else 1
    table.padding = (0, gap, 0, 0)
    if width is not None:
        taken = sum(max(map(len, column)) + gap for column in zip(heads, *rows, strict=True))
        table.columns[0].max_width = max(width - taken - gap, _TOPIC_WIDTH_MIN)
    for snapshot, row in zip(topics, rows, strict=True):
        dead = states.index(JobState.DEAD)
        figures = [
            Text(figure, style="red" if at == dead and figure != "0" else "", no_wrap=True)
            for at, figure in enumerate(row)
        ]
        table.add_row(_name(snapshot, table.columns[0].max_width), *figures)
    return table


def _name(snapshot: TopicSnapshot, width: int | None) -> Text:
    """The name of the topic, truncated so that "(paused)" is visible."""
    name = Text(snapshot.view.topic, no_wrap=True)
    if snapshot.view.paused:
        paused = " (paused)"
        if width is not None:
            name.truncate(max(width - len(paused), 1), overflow="ellipsis")
        name.append(paused)
    return name


def _figures(snapshot: TopicSnapshot, states: list[str], *, wide: bool) -> list[str]:
    count = output.number if wide else output.short_number
    return [
        *(count(snapshot.view.counts[state]) for state in states),
        _rate(snapshot.rates.put),
        _rate(snapshot.rates.finish),
        _span(snapshot.view.oldest_ready_age, wide=wide),
        _span(due_in_s(snapshot.view), wide=wide),
    ]


def _headline(snapshot: Snapshot | None, where: str, width: int) -> Text:
    at = datetime.now(UTC).strftime("%H:%M:%SZ")
    parts = [f"deferd top {at}", where]
    if snapshot is not None:
        parts.append(output.count(len(snapshot.topics), "topic"))
        parts += [f"{output.short_number(snapshot.total(state))} {state}" for state in _STATES[:4]]
    text = "  ".join(parts)
    if len(text) > width:
        text = "  ".join([parts[0], *parts[2:]])
    return _line(text, "bold")


def _attention(snapshot: Snapshot, most: int) -> list[Text]:
    """What needs a person in at most so many lines, 2 or more, or that all is quiet; nothing when that is not known."""
    now = snapshot.now
    if now is None:
        return []
    alerts = now.alerts
    if not alerts:
        return [_line(alert_lines.quiet_line(now), "dim")]
    in_all = len(alerts) + int(now.fields.get("left_out", 0))
    shown = alerts if in_all <= most else alerts[: most - 1]
    lines = [_line(one.text, "bold red" if one.severity == alert_lines.CRITICAL else "yellow") for one in shown]
    if len(shown) < in_all:
        rest = (
            f"and {in_all - len(shown):,} more: deferd now" if shown else f"{alert_lines.headline(in_all)} deferd now"
        )
        lines.append(_line(rest, "yellow"))
    return lines


def _line(text: str, style: str) -> Text:
    """A text on one line, truncated to the width of the screen."""
    return Text(output.printable(text), style=style, no_wrap=True, overflow="ellipsis")


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f}" if 0 < rate < 10 else output.short_number(rate)


def _span(seconds: float | None, *, wide: bool) -> str:
    return output.span(float(int(seconds))) if wide and seconds is not None else output.short_span(seconds)

"""A look at the topics as text: as wide and as high as the terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deferd.cli import output
from deferd.cli.output import Column, make_table
from deferd.cli.top_snapshot import Look, TopicLook, in_order
from deferd.contract.model import JobState

_WIDE = 110
_STATES = [state.value for state in JobState]
_TOPIC_WIDTH_MIN = 8
_LINES_AROUND = 4
"""Two above the table, its head, and the keys below."""


def draw(  # what is on the screen is a matter of all of these
    look: Look | None, *, where: str, sort: str, width: int, height: int, away: str | None = None, keys: str = ""
) -> RenderableType:
    """The screen. `away` says why there is nothing newer, `keys` what can be pressed."""
    parts: list[RenderableType] = [_headline(look, where, width)]
    if away is not None:
        parts.append(Text(f"no answer: {output.printable(away)}", style="bold red", no_wrap=True, overflow="ellipsis"))
    elif look is not None and look.silent:
        parts.append(Text(f"rates lack {', '.join(look.silent)}", style="yellow", no_wrap=True, overflow="ellipsis"))
    if look is not None:
        parts.extend(
            Text(output.printable(sentence), style="bold red", no_wrap=True, overflow="ellipsis")
            for sentence in look.left_out.sentences()
        )
        rows = max(height - _LINES_AROUND - len(parts) + 1, 1)
        topics = in_order(look.topics, sort)
        more = len(topics) - rows
        shown = topics if more <= 0 else topics[: max(rows - 1, 1)]
        table = topic_table(shown, wide=width >= _WIDE, width=width)
        if away is not None:
            table.style = "dim"
        parts.append(table)
        if len(shown) < len(topics):
            parts.append(Text(f"and {len(topics) - len(shown):,} more", style="dim"))
        if not topics:
            parts.append(Text("there is no topic yet", style="dim"))
    if keys:
        parts.append(Text(f"\n{keys}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def topic_table(topics: list[TopicLook], *, wide: bool, width: int | None = None) -> Table:
    """A row for each topic; narrow: numbers rounded, durations in one unit, no finished ones.

    What does not fit into `width` is cut from the topics' names: a number without its end is another number.
    """
    states = _STATES if wide else [state for state in _STATES if state != JobState.FINISHED]
    heads = [*(state.upper() for state in states), "PUT/S", "FINISH/S"]
    heads += ["OLDEST READY", "NEXT DUE"] if wide else ["OLDEST", "DUE"]
    rows = [_figures(look, states, wide=wide) for look in topics]
    table = make_table([Column("TOPIC", cut=True), *(Column(head, right=True) for head in heads)])
    gap = 2 if wide else 1
    table.padding = (0, gap, 0, 0)
    if width is not None:
        taken = sum(max(map(len, column)) + gap for column in zip(heads, *rows, strict=True))
        table.columns[0].max_width = max(width - taken - gap, _TOPIC_WIDTH_MIN)
    for look, row in zip(topics, rows, strict=True):
        dead = states.index(JobState.DEAD)
        figures = [
            Text(figure, style="red" if at == dead and figure != "0" else "", no_wrap=True)
            for at, figure in enumerate(row)
        ]
        table.add_row(_name(look, table.columns[0].max_width), *figures)
    return table


def _name(look: TopicLook, width: int | None) -> Text:
    """The topic's name; that it is paused is seen also when the name is too long."""
    name = Text(look.view.topic, no_wrap=True)
    if look.view.paused:
        paused = " (paused)"
        if width is not None:
            name.truncate(max(width - len(paused), 1), overflow="ellipsis")
        name.append(paused)
    return name


def _figures(look: TopicLook, states: list[str], *, wide: bool) -> list[str]:
    count = output.number if wide else output.short_number
    return [
        *(count(look.counts[state]) for state in states),
        _rate(look.rates.put),
        _rate(look.rates.finish),
        _span(look.view.oldest_ready_age, wide=wide),
        _span(look.due_in_s, wide=wide),
    ]


def _headline(look: Look | None, where: str, width: int) -> Text:
    at = datetime.now(UTC).strftime("%H:%M:%SZ")
    parts = [f"deferd top {at}", where]
    if look is not None:
        parts.append(f"{len(look.topics):,} {'topic' if len(look.topics) == 1 else 'topics'}")
        parts += [f"{output.short_number(look.total(state))} {state}" for state in _STATES[:4]]
    text = "  ".join(parts)
    if len(text) > width:
        text = "  ".join([parts[0], *parts[2:]])
    return Text(text, style="bold", no_wrap=True, overflow="ellipsis")


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f}" if 0 < rate < 10 else output.short_number(rate)


def _span(seconds: float | None, *, wide: bool) -> str:
    return output.span(float(int(seconds))) if wide and seconds is not None else output.short_span(seconds)

"""The output of the commands: lines and tables for people, JSON for programs.

Standard output has the requested data and nothing else; messages go to standard error. JSON output has one object a
line (NDJSON).
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from deferd.cli.framework.standard_streams import discard
from deferd.contract.counted import counted
from deferd.contract.fields import Field, Kind
from deferd.contract.timestamps import format_instant

if TYPE_CHECKING:
    from deferd.client import Job
    from deferd.contract.operations.response import Response

_UNLIMITED_WIDTH = 100_000
_CELL_CHARACTERS = 120
_UNICODE = frozenset({"utf-8", "utf8"})


class Column(NamedTuple):
    """A column of a table. Text that does not fit is truncated with `cut`, else wrapped."""

    name: str
    right: bool = False
    cut: bool = False


Row = TypeVar("Row", bound="Response")
Cells = Mapping[Column, Callable[[Row], str]]
"""The columns of a table, each with a function that gives its text for a row."""


def line(text: str) -> None:
    """Print a line on standard output."""
    print(text)  # noqa: T201 (the command's output)


def json_line(value: Any) -> None:
    """Print a JSON value as one line on standard output, in ASCII where that can't have all characters."""
    sys.stdout.write(json_text(value, ascii_only=sys.stdout.encoding.lower() not in _UNICODE) + "\n")


def json_or_line(fields: Any, text: str, *, as_json: bool) -> None:
    """Print what a command did: its JSON, or a line for people."""
    if as_json:
        json_line(fields)
    else:
        line(text)


def json_or_facts(fields: Any, facts: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Print the JSON of something, or its facts."""
    if as_json:
        json_line(fields)
    else:
        show_facts(facts)


def json_or_table(found: Iterable[Row], cells: Cells[Row], empty: str, *, as_json: bool, headed: bool = True) -> None:
    """Print the JSON of each item, or a table of all; without items people read `empty`."""
    if as_json:
        for one in found:
            json_line(one.fields)
    elif rows := [[text(one) for text in cells.values()] for one in found]:
        show_table([*cells], rows, headed=headed)
    else:
        say_empty(empty)


def json_text(value: Any, *, ascii_only: bool = False) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))


def complain(sentence: str) -> None:
    """Print an error as one line on standard error, behind what was logged before it.

    If that cannot be written, the exit code alone says it.
    """
    for handler in logging.getLogger().handlers:
        handler.flush()  # a thread may write the log
    try:
        print(f"deferd: {printable(sentence)}", file=sys.stderr, flush=True)  # noqa: T201 (the command's own words)
    except OSError:
        discard(sys.stderr)


def hint(sentence: str) -> None:
    """Print a hint for people on standard error, on a terminal only."""
    if sys.stderr.isatty():
        print(sentence, file=sys.stderr)  # noqa: T201 (the command's own words)


def say_empty(sentence: str) -> None:
    """Say that a list is empty, on a terminal only: in a pipe it would be read as an entry."""
    if sys.stdout.isatty():
        line(sentence)


def printable(text: str) -> str:
    """The text on one line, with control characters escaped: a job's error must not control the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, headed: bool = True) -> None:
    """Print a table of these cells, without lines; as wide as the terminal, else as wide as its cells.

    Without the package rich, which is an extra, it is as wide as its cells in any case.
    """
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        _show_plain_table(columns, rows, headed=headed)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=headed, header_style="bold")
    for column, *cells in zip(columns, *rows, strict=True):
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=column.cut,
            overflow="ellipsis" if column.cut else "fold",
            # A number that is wrapped or truncated reads as another number.
            min_width=max(map(len, [column.name, *cells])) if column.right else None,
        )
    for row in rows:
        table.add_row(*(printable(cell) for cell in row))
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _UNLIMITED_WIDTH)
    with console.capture() as shown:
        console.print(table)
    # Cells are padded to the width of the column, in the last column as well.
    sys.stdout.writelines(text.rstrip() + "\n" for text in shown.get().splitlines())


def _show_plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, headed: bool) -> None:
    shown = [[column.name for column in columns]] if headed else []
    shown += [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    for row in shown:
        cells = zip(row, widths, columns, strict=True)
        padded = (cell.rjust(width) if column.right else cell.ljust(width) for cell, width, column in cells)
        line("  ".join(padded).rstrip())


def fits(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the table fits the terminal without truncating or wrapping."""
    if not sys.stdout.isatty():
        return True
    names = [column.name for column in columns]
    needed = sum(max(map(len, cells)) + 2 for cells in zip(names, *rows, strict=True))
    return needed - 2 <= shutil.get_terminal_size().columns


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; further lines of a value are below its first."""
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        first, *more = value.split("\n")
        line(f"{name:<{width}}{printable(first)}")
        for text in more:
            line(" " * width + printable(text))


def span(seconds: float | None) -> str:
    """A duration in its two largest units, such as ``1h 30m``; below a minute in seconds; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.3g}s" if seconds < 10 else f"{int(seconds)}s"
    left = int(seconds)
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        parts.append((count, unit))
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def from_now(instant: datetime | None) -> str:
    """``in 30m`` or ``5s ago``, by the clock of this host; a dash for none."""
    if instant is None:
        return "-"
    seconds = (instant - datetime.now(UTC)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    length = span(float(round(abs(seconds))))
    return f"in {length}" if seconds > 0 else f"{length} ago"


def when(instant: datetime) -> str:
    """``2030-01-31T09:30:00.000Z (in 30m)``."""
    return f"{format_instant(instant)} ({from_now(instant)})"


def cell(value: Any) -> str:
    """A JSON value as one line of at most 120 characters."""
    text = json_text(value)
    return text if len(text) <= _CELL_CHARACTERS else text[: _CELL_CHARACTERS - 1] + "…"


def short_number(number: float) -> str:
    """In at most five characters: 999, 12.3k, 1.23M."""
    if number < 1000:
        return f"{number:.0f}"
    for unit in "kMG":
        number /= 1000
        if number < 999.5:
            return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}{unit}"
    return f"{number:.0f}G"


def short_span(seconds: float | None) -> str:
    """A duration in its largest unit; a dash for none."""
    return "-" if seconds is None else span(float(int(seconds))).partition(" ")[0]


count = counted


def number(value: float | None) -> str:
    """With thousands separated; a dash for none."""
    return "-" if value is None else f"{value:,}"


def window(value: Any) -> str:
    """Opening hours as JSON, or the name of their calendar."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def backoff(value: Mapping[str, Any] | None) -> str:
    """A backoff in the short form of the option --backoff; a dash for none."""
    if value is None:
        return "-"
    jitter = f":{_plain(value['jitter'])}" if value.get("jitter") else ""
    match value["kind"]:
        case "exponential":
            return f"exponential:{_plain(value['base'])}:{_plain(value['cap'])}{jitter}"
        case "fixed":
            return f"fixed:{_plain(value['seconds'])}{jitter}"
        case "schedule":
            then = ":repeat_last" if value.get("then") == "repeat_last" else ""
            return f"schedule:{','.join(map(_plain, value['seconds']))}{then}{jitter}"
    return json_text(value)


def on_end(value: Mapping[str, Any]) -> str:
    """What the end of a job puts, as the option --on-end takes it: a topic, or JSON."""
    return str(value["topic"]) if value.keys() == {"topic"} else json_text(value)


def flow_limits(value: Mapping[str, Any]) -> str:
    """The limits of a topic: `at most 50 in flight, 100/s; each group: at most 1 in flight`."""
    parts = [_limits_text(value)]
    if value.get("per_group"):
        parts.append(f"each group: {_limits_text(value['per_group'])}")
    for name, of_group in value.get("groups", {}).items():
        weight = f", weight {of_group['weight']}" if "weight" in of_group else ""
        parts.append(f"{name}: {_limits_text(of_group)}{weight}".replace(": , ", ": "))
    return "; ".join(filter(None, parts))


def _limits_text(value: Mapping[str, Any]) -> str:
    parts = []
    if "max_in_flight" in value:
        parts.append(f"at most {number(value['max_in_flight'])} in flight")
    if "rate" in value:
        rate = value["rate"]
        burst = f", {number(rate['burst'])} at once" if "burst" in rate else ""
        parts.append(f"{number(rate['count'])} per {span(rate['per'])}{burst}")
    return ", ".join(parts)


_OF_KIND: dict[Kind, Callable[[Any], str]] = {
    Kind.SECONDS: span,
    Kind.COUNT: number,
    Kind.BACKOFF: backoff,
    Kind.WINDOW: window,
    Kind.ON_END: on_end,
    Kind.LIMITS: flow_limits,
}


def field_text(field: Field, value: Any) -> str:
    """The value of a field of the policy or of a topic."""
    write = _OF_KIND.get(field.kind)
    return str(value) if write is None else write(value)


def _plain(value: float) -> str:
    """A number without an exponent, which the option does not accept."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def progress(value: Any) -> str:
    """A progress: as a percentage, if it is a number from 0 to 1, else as JSON."""
    is_part = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return f"{value:.0%}" if is_part else json_text(value)


def where_it_stands(job: Job) -> str:
    """The status of a job in a few words, by its state."""
    match job.state:
        case "reserved" if job.reserved_until is not None:
            holder = f", held by {job.reserved_by}" if job.reserved_by else ""
            since = "" if job.reserved_since is None else f", handed out {from_now(job.reserved_since)}"
            return f"lease ends {from_now(job.reserved_until)}{holder}{since}"
        case "dead":
            reason = "dead" if job.reason is None else job.reason.value
            return f"{reason}: {job.last_error}" if job.last_error else reason
        case "finished" if job.finished_at is not None:
            return f"finished {from_now(job.finished_at)}"
    return f"due {from_now(job.due_at)}"

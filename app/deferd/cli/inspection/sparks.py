"""Small charts on one line, with a block for each number, and their width and times."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

_PIPE_WIDTH = 100
BLOCKS = " ▁▂▃▄▅▆▇█"


def sparks(values: Sequence[float], width: int, join: Callable[[Sequence[float]], float] = sum) -> str:
    """The values as one line of blocks, of `width` characters at most; `join` makes one value of several."""
    width = min(width, len(values))
    edges = [at * len(values) // width for at in range(width + 1)]
    joined = [join(values[first:end]) for first, end in pairwise(edges)]
    most = max(joined) or 1
    return "".join(BLOCKS[min(int(-(-value * 8 // most)), 8)] for value in joined).rstrip()


def width() -> int:
    """The width of the terminal, or how wide a chart may be without one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH


def period(begin: datetime, end: datetime) -> tuple[str, str]:
    """The times at both ends of a chart in the zone of this host, with dates when it covers more than a day."""
    form = "%Y-%m-%d %H:%M %Z" if end - begin > timedelta(days=1) else "%H:%M:%S %Z"
    return begin.astimezone().strftime(form), end.astimezone().strftime(form)

"""Small charts: a number is drawn as a block, and many of them on one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"


def sparks(values: Sequence[float], width: int, join: Callable[[Sequence[float]], float] = sum) -> str:
    """The values as one line of blocks, of `width` characters at most; `join` makes one value of several."""
    width = min(width, len(values))
    edges = [at * len(values) // width for at in range(width + 1)]
    joined = [join(values[first:end]) for first, end in pairwise(edges)]
    most = max(joined) or 1
    return "".join(BLOCKS[min(int(-(-value * 8 // most)), 8)] for value in joined).rstrip()

"""Makes the results of a batch: named tuples, without a call of Python for each."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

Row = TypeVar("Row", bound=tuple[Any, ...])


def rows(kind: type[Row], *columns: Iterable[Any]) -> list[Row]:
    """A `kind` for each position of the columns, up to the end of the shortest. There is one column for each field."""
    return list(map(partial(tuple.__new__, kind), zip(*columns, strict=False)))

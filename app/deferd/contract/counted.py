"""Numbers with what they count, for texts that people read."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 job` or `1,200 jobs`; with `many` also `1 job is` or `1,200 jobs are`."""
    return f"{number:,} {one if number == 1 else f'{one}s' if many is None else many}"

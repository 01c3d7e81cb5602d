"""What a generator returns."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def result_of(steps: Generator[Any, None, Result]) -> Result:
    """Carry out all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result

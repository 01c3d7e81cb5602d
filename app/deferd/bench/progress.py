"""Progress bars on standard error, shown only on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class ProgressBars:
    """One bar for each part of the run; a context manager that erases the bars at its end."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    @contextlib.contextmanager
    def part(
        self, title: str, unit: str = "", *, total: int = 0, seconds: float | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Show a bar while the block runs; yields a function that takes the amount done so far.

        The bar is full at `total`, or after `seconds` if given, and stays. With neither it is indeterminate and
        disappears with the block.
        """
        began_s = time.monotonic()
        task = self._progress.add_task(title, total=seconds or total or None, shown="")

        def show_done(done: int) -> None:
            completed = done if seconds is None else min(time.monotonic() - began_s, seconds)
            self._progress.update(task, completed=completed, shown=f"{done:,} {unit}")

        yield show_done
        if total or seconds is not None:
            self._progress.stop_task(task)
        else:
            self._progress.remove_task(task)

"""The progress bar of a long put, on standard error and on a terminal only."""

from __future__ import annotations

import os
import stat
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress


class PutProgress:
    """A context manager for a bar that fills as the input is put, or only moves if the size of the input is unknown."""

    def __init__(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        total = about.st_size if stat.S_ISREG(about.st_mode) else None
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            from rich import progress  # an extra, needed on a terminal only
            from rich.console import Console

            self._progress = progress.Progress(
                progress.TextColumn("putting"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[jobs]:,} jobs"),
                progress.TextColumn("{task.fields[rate]:,.0f}/s"),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                redirect_stdout=False,  # results go there
                transient=True,
            )
            self._task = self._progress.add_task("", total=total, jobs=0, rate=0.0)

    def show(self, *, jobs: int, end_byte: int, seconds: float) -> None:
        """Update: `jobs` jobs, the input up to `end_byte`, were put in `seconds`."""
        if self._progress is not None:
            rate = jobs / seconds if seconds else 0.0
            self._progress.update(self._task, completed=end_byte, jobs=jobs, rate=rate)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

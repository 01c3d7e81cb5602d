"""Progress of the load: counts calls in histories that are still being written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.faults.history import NOT_SENT, UNKNOWN


class Progress:
    """Calls from now on: those that succeeded, by kind, and how many failed. `files` returns the current files."""

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._positions: dict[Path, int] = {}
        self._kinds: dict[tuple[Path, int], str] = {}
        for _ in self._new_lines():
            pass  # earlier lines do not count
        self.succeeded: Counter[str] = Counter()
        self.failed_calls = 0

    def update(self) -> Counter[str]:
        """Read the lines that were written since the last call."""
        for file, line in self._new_lines():
            entry = json.loads(line)
            if "kind" in entry:
                self._kinds[file, entry["n"]] = entry["kind"]
            elif entry["outcome"] in {UNKNOWN, NOT_SENT}:
                self.failed_calls += "worker" not in file.name  # the worker does not record how its calls ended
            else:
                self.succeeded[self._kinds.get((file, entry["n"]), "begun earlier")] += 1
        return self.succeeded

    def _new_lines(self) -> Iterable[tuple[Path, bytes]]:
        for file in self._files():
            if not file.exists():  # its process has just started
                continue
            at = self._positions.get(file, 0)
            with file.open("rb") as opened:
                opened.seek(at)
                new = opened.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._positions[file] = at + len(whole)
            for line in whole.splitlines():
                yield file, line

"""How the load goes on: counts what is in histories that are still being written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.faults.history import NOT_SENT, UNKNOWN


class Progress:
    """Calls from now on: those answered, by kind, and how many were not. `files` tells which files there are by now."""

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._read: dict[Path, int] = {}
        self._kinds: dict[tuple[Path, int], str] = {}
        for _ in self._new_lines():
            pass  # what was before does not count
        self.answered: Counter[str] = Counter()
        self.troubled = 0

    def look(self) -> Counter[str]:
        """Read what was written since the last look."""
        for file, line in self._new_lines():
            said = json.loads(line)
            if "kind" in said:
                self._kinds[file, said["n"]] = said["kind"]
            elif said["outcome"] in {UNKNOWN, NOT_SENT}:
                self.troubled += "worker" not in file.name  # which never says how its calls ended
            else:
                self.answered[self._kinds.get((file, said["n"]), "begun before")] += 1
        return self.answered

    def _new_lines(self) -> Iterable[tuple[Path, bytes]]:
        for file in self._files():
            if not file.exists():  # its process has just been started
                continue
            at = self._read.get(file, 0)
            with file.open("rb") as opened:
                opened.seek(at)
                new = opened.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[file] = at + len(whole)
            for line in whole.splitlines():
                yield file, line

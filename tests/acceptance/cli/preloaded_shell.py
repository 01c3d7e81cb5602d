"""A shell whose commands start without a second of imports."""

from __future__ import annotations

import subprocess

from tests.acceptance.cli.command_line import Shell, environment
from tests.preloaded import run_preloaded


class PreloadedShell(Shell):
    """Runs each command in a process that was forked from one with all imports."""

    def run(self, *words: str, stdin: str | None = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `deferd` with these words to its end."""
        return run_preloaded(*words, environment=environment(self.url, **variables), stdin=stdin or "")

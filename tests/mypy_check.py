"""Type-checks programs as their authors do: mypy --strict, without this project's settings and plugins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CHECK_S = 280
CACHE = Path(__file__).resolve().parents[1] / ".mypy_cache" / "programs"
"""Kept, for most of the time goes into the packages that the programs import."""


def mypy_errors(programs: Mapping[str, str], folder: Path) -> list[str]:
    """The errors that mypy reports in programs, given by name and source: ``name.py:3: error: ...``; empty for none."""
    for name, source in programs.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-color-output", "--no-error-summary"]
    checked = subprocess.run(
        [*command, "--cache-dir", str(CACHE), *(f"{name}.py" for name in programs)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=CHECK_S,
        check=False,
    )
    assert checked.returncode in {0, 1}, checked.stdout + checked.stderr
    return [line for line in checked.stdout.splitlines() if ": error: " in line]

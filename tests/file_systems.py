"""Small or unusual file systems, which only root can mount."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, kind: str, *, size: str | None = None) -> Iterator[Path]:
    """Make the folder, a file system of this kind until the block ends. The test of a user who may not is skipped."""
    folder.mkdir()
    options = "mode=700" if size is None else f"size={size},mode=700"
    if subprocess.run(["mount", "-t", kind, "-o", options, kind, folder], check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Write to its file system until it is full; returns the file that fills it."""
    filler = folder / "temp-filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    return filler

"""The previous release: what services of this one share a store with during an upgrade, and what clients were made for.

It is a commit of this repository, so tests that need it are skipped in a copy without its history: an archive or a
shallow clone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

COMMIT = "9ec9ba15cd4963fe3d9f6762c888e30037f2ef88"
"""Before the first tag: a commit of the main branch. From the first tag on: the commit of the last tag."""
_ROOT = Path(__file__).parents[1]
_IS_SHALLOW = subprocess.run(
    ["git", "-C", str(_ROOT), "rev-parse", "--is-shallow-repository"], capture_output=True, text=True, check=False
)
needs_history = pytest.mark.skipif(
    _IS_SHALLOW.stdout.strip() != "false", reason="this copy of the repository lacks its history"
)
_UNPACKED = ("app", "tests")
_DOCUMENT = "openapi/openapi.yaml"


class ReleaseMissing(Exception):
    """The release cannot be taken from this clone, or is not what Python imports; the message says why."""


def unpack(folder: Path, commit: str = COMMIT) -> Path:
    """Put `app` and `tests`, as they were in a commit, into `folder`, and return that.

    With PYTHONPATH=folder/app it runs on the dependencies of this environment. Raises ReleaseMissing.
    """
    archive = _git("archive", "--format=tar", commit, *_UNPACKED)
    folder.mkdir(parents=True, exist_ok=True)
    # Not by tarfile: to name a filter, or none, is an error or a warning in one Python or another.
    subprocess.run(["tar", "-xf", "-", "-C", str(folder)], input=archive, timeout=60, check=True)
    require_import_from(folder / "app")
    return folder


def openapi_document_of(commit: str = COMMIT) -> dict[str, Any]:
    """What openapi/openapi.yaml said in a commit. Raises ReleaseMissing."""
    document: dict[str, Any] = yaml.load(_git("show", f"{commit}:{_DOCUMENT}"), yaml.CSafeLoader)
    return document


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise ReleaseMissing(
            "the previous release, which `tests/previous_release.py` names, is not in this clone: fetch its whole "
            f"history (`git fetch --unshallow`). git {' '.join(arguments)}: {done.stderr.decode().strip()}"
        )
    return done.stdout


def require_import_from(python_path: Path) -> None:
    """Raise ReleaseMissing if Python imports another package than the one there, such as the one that is installed."""
    found = subprocess.run(
        [sys.executable, "-P", "-c", "import deferd; print(deferd.__file__)"],
        env={**os.environ, "PYTHONPATH": str(python_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if not found.stdout.startswith(f"{python_path}/"):
        raise ReleaseMissing(f"with PYTHONPATH={python_path} Python imports {found.stdout or found.stderr}")

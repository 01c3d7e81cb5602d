"""The programs that tests need beside this environment: a test is skipped without them, and in CI it fails."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def require_program(*names: str) -> str:
    """The path of the first of these programs that is installed; without one of them the test ends here."""
    return next(filter(None, map(shutil.which, names)), None) or without(" or ".join(names))


def require_browser() -> str:
    """The path of a browser. The one without windows comes first: it opens a page in a third of the CPU time."""
    return require_program("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def without(what: str) -> NoReturn:
    """End the test because `what` is not installed: in CI (`CI=true`) nothing may be left out unseen."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is not installed, and in CI no test is skipped for that", pytrace=False)
    pytest.skip(f"{what} is not installed")

"""The query parameter that lists have in common."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from deferd.contract import limits


def page_limit(of: str, *, default: int = limits.PAGE_DEFAULT, which: str = "") -> Any:
    """The field `limit`: how many a response lists at most, 1 to 1000. `of` are what, `which` says which ones."""
    about = f"Maximum number of {of}, 1 to {limits.PAGE_MAX}{which and f': {which}'}."
    return Field(default, strict=True, ge=1, le=limits.PAGE_MAX, description=about)

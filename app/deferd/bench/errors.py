"""How a benchmark can fail."""

from __future__ import annotations

import textwrap

from deferd.client import NoAnswer, UnexpectedAnswer
from deferd.contract.errors import DeferdError

_SAID_MAX = 150
"""Characters that are shown of an answer."""


class BenchFailed(Exception):
    """The deployment cannot be measured, or answered wrongly. The text is one sentence for people."""


def explained(failure: DeferdError, url: str) -> BenchFailed:
    """A failed call as one sentence for people."""
    if isinstance(failure, NoAnswer):
        return BenchFailed(f"no answer from {url}: {failure}")
    if isinstance(failure, UnexpectedAnswer):
        said = textwrap.shorten(str(failure), _SAID_MAX, placeholder=" ...")
        return BenchFailed(f"{url} answers, but not as a deferd service does: {said}")
    return BenchFailed(f"{url} refused a call: {failure}")

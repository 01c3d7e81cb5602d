"""The error of a benchmark."""

from __future__ import annotations

import textwrap

from deferd.client import NoAnswer, UnexpectedAnswer
from deferd.contract.errors import DeferdError

_SHOWN_CHARACTERS = 150
"""How much of an unexpected response is shown."""


class BenchFailed(Exception):
    """The deployment cannot be measured, or responded wrongly. The text is one sentence for users."""


def bench_error(failure: DeferdError, url: str) -> BenchFailed:
    """A failed call as one sentence for users."""
    if isinstance(failure, NoAnswer):
        return BenchFailed(f"no response from {url}: {failure}")
    if isinstance(failure, UnexpectedAnswer):
        text = textwrap.shorten(str(failure), _SHOWN_CHARACTERS, placeholder=" ...")
        return BenchFailed(f"{url} responds, but not as a deferd service does: {text}")
    return BenchFailed(f"{url} refused a call: {failure}")

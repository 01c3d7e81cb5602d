"""JSON from arguments and standard input, parsed as strictly as the service parses it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import from_json

_MAYBE_INFINITE: Final = re.compile(rb"[eE]\+?\d{3}|\d{200}")
"""Only a number with such an exponent, or with so many digits, can be beyond a float's range."""


def read_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: it is not JSON (as NaN), or has a number beyond 1.8e308, which cannot be written as JSON again.
    """
    raw = text.encode() if isinstance(text, str) else text
    value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    if _MAYBE_INFINITE.search(raw):
        json.dumps(value, allow_nan=False, check_circular=False)
    return value

"""Parses JSON from arguments and standard input as strictly as the service does."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

from deferd.contract.json_numbers import may_be_infinite


def read_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: it is not JSON (as NaN), or has a number beyond 1.8e308, which cannot be written as JSON again.
    """
    # An argument that this locale can't decode has its bytes as surrogates; JSON is UTF-8 in any locale.
    raw = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    if may_be_infinite(raw):
        json.dumps(value, allow_nan=False, check_circular=False)
    return value

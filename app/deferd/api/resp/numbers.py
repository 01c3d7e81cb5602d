"""Reads numbers in commands."""

from __future__ import annotations

from deferd.api.resp.command_error import invalid
from deferd.contract.flag_fields import quoted

_DIGITS_MAX = 18
"""Of a number of 64 bits."""


def whole_number(name: str, value: bytes, low: int, high: int, unit: str = "") -> int:
    """A whole number in decimal digits, `low` to `high`. Raises CommandError for anything else."""
    number = int(value) if value.isdigit() and len(value) <= _DIGITS_MAX else low - 1
    if not low <= number <= high:
        text = f"must be a whole number{unit}, {low} to {high}, and is {quoted(value.decode('utf-8', 'replace'))}"
        raise invalid(name, text)
    return number


def milliseconds(name: str, value: bytes, most_s: int) -> int:
    """A time of 0 to `most_s` seconds in whole milliseconds. Raises CommandError for anything else."""
    return whole_number(name, value, 0, most_s * 1000, " of milliseconds")

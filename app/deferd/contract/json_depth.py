"""How deeply JSON values are nested."""

from __future__ import annotations

from typing import Any


def is_deeper(value: Any, levels: int) -> bool:
    """Whether the lists and dicts of a parsed JSON value are nested deeper than `levels`; 0 allows none at all.

    Each value is visited once, at any depth.
    """
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        containers = [
            inner
            for outer in containers
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not containers:
            return False
    return bool(containers)

"""Foreign text in messages: its beginning, on one line."""

from __future__ import annotations


def excerpt(text: bytes, most: int) -> str:
    """The first `most` bytes as one line without control characters."""
    shown = text[:most].decode(errors="replace")
    return " ".join("".join(one if one.isprintable() else " " for one in shown).split())

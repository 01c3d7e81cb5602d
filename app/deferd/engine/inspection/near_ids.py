"""Ids that are like one that does not exist: for a typing error, a wrong number, or another prefix."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 5


def nearest(wanted: str, ids: Iterable[str]) -> list[str]:
    """Up to 5 of `ids`, the most alike first. Takes time linear in their lengths.

    Two ids are alike when the characters that they have in common at the beginning and at the end are at least half of
    the longer one. Upper and lower case count as the same.
    """
    folded = wanted.lower()
    alike = [(one, _in_common(folded, one.lower()) / max(len(wanted), len(one))) for one in ids]
    best = sorted((pair for pair in alike if pair[1] >= 0.5), key=lambda pair: (-pair[1], pair[0]))
    return [one for one, _ in best[:_MOST]]


def _in_common(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    begin = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    rest = shorter - begin
    return begin + next((at for at in range(rest) if one[-1 - at] != other[-1 - at]), rest)

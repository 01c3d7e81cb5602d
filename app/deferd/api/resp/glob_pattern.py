"""The patterns of KEYS and SCAN, as Redis matches them."""

from __future__ import annotations

from deferd.api.resp.command_error import invalid

PATTERN_MAX_BYTES = 512
_STAR, _ANY = "*", "?"
_Step = str | frozenset[int]
"""`*`, `?`, or the characters that match at a place."""
Pattern = tuple[_Step, ...]


def read_pattern(pattern: bytes) -> Pattern:
    """The steps of a pattern. Raises CommandError for one of more than 512 bytes."""
    if len(pattern) > PATTERN_MAX_BYTES:
        raise invalid("pattern", f"must have at most {PATTERN_MAX_BYTES} bytes")
    return _steps(pattern)


def matches(steps: Pattern, name: bytes) -> bool:
    r"""Whether a name matches: `*` any characters, `?` one, `[a-c]` and `[^x]` one of a set; `\` quotes the next one.

    It takes at most the product of both lengths.
    """
    at = step = 0
    star, star_at = -1, 0
    while at < len(name):
        if step < len(steps) and steps[step] == _STAR:
            star, star_at = step, at
            step += 1
        elif step < len(steps) and (steps[step] == _ANY or name[at] in steps[step]):
            at += 1
            step += 1
        elif star >= 0:
            star_at += 1
            at, step = star_at, star + 1
        else:
            return False
    return all(left == _STAR for left in steps[step:])


def _steps(pattern: bytes) -> Pattern:
    steps: list[_Step] = []
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"[":
            characters, at = _set_at(pattern, at + 1)
            steps.append(characters)
            continue
        if byte == b"\\" and at + 1 < len(pattern):
            at += 1
            steps.append(frozenset(pattern[at : at + 1]))
        elif byte == b"*":
            steps.append(_STAR)
        else:
            steps.append(_ANY if byte == b"?" else frozenset(byte))
        at += 1
    return tuple(steps)


def _set_at(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """The characters of a set that begins here, and what follows it; one without an end goes to the end."""
    is_negated = pattern[at : at + 1] == b"^"
    at += is_negated
    characters: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
            characters.add(pattern[at])
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((pattern[at], pattern[at + 2]))
            characters.update(range(low, high + 1))
            at += 2
        else:
            characters.add(pattern[at])
        at += 1
    every = frozenset(range(256))
    return every - characters if is_negated else frozenset(characters), at + 1

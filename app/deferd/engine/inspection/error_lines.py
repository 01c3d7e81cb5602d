"""Makes error texts that differ only in their values equal, so that they can be counted together."""

from __future__ import annotations

import re
from functools import lru_cache

_READ_CHARACTERS = 500
_LINE_CHARACTERS = 200
_QUOTED = re.compile(r"\"[^\"]*\"|`[^`]*`|(?<!\w)'[^']*'(?!\w)")
_VALUE = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:[\d:.]++Z?"
    r"|0[xX][0-9a-fA-F]++"
    r"|(?<![A-Za-z0-9])[0-9a-fA-F]++(?![A-Za-z])"
    r"|\d++",
    re.ASCII,
)
"""A UUID, an instant, or a number; among the hexadecimal ones there are words too, such as ``bad``."""
_JOINED = re.compile(r"\*(?:[.:-]\*)++")
_STATUS = re.compile(r"[1-5]\d\d", re.ASCII)
_STATUS_WORDS = re.compile(
    r"\b(?:https?|smtp|ftp|status|code|error|errno|response|with|returned|got)[ :=]+\Z", re.IGNORECASE
)
_STATUS_WORD_CHARACTERS = 20


def normalized(error: str) -> str:
    """The first line of an error text with `*` in place of what varies; '' for an empty one.

    Replaced are quoted texts (only between the quotes), and in other words the numbers and hexadecimal digits, so that
    the names around them stay: ``order-1042`` becomes ``order-*``. Numbers of three digits, 100 to 599, stay at the
    beginning of the line and after words such as `status`, `code`, `HTTP` and `with`, because they say what went wrong.
    At most 200 characters of the first 500 are kept. Takes time linear in the text.
    """
    return _normalized_line(error.lstrip().partition("\n")[0].rstrip()[:_READ_CHARACTERS])


@lru_cache(maxsize=4096)
def _normalized_line(line: str) -> str:
    line = _QUOTED.sub(lambda found: f"{found[0][0]}*{found[0][-1]}", line)
    line = " ".join(_JOINED.sub("*", _VALUE.sub(_without_value, line)).split())
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"


def _without_value(found: re.Match[str]) -> str:
    value, at = found[0], found.start()
    if not any(character.isdigit() for character in value):
        return value
    if _STATUS.fullmatch(value) and (
        not at or _STATUS_WORDS.search(found.string[max(at - _STATUS_WORD_CHARACTERS, 0) : at])
    ):
        return value
    return "*"

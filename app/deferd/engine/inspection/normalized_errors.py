"""What errors that differ only in their values have in common."""

from __future__ import annotations

import re
from functools import lru_cache

_READ_CHARACTERS = 500
_LINE_CHARACTERS = 200
_QUOTED = re.compile(r"\"[^\"]*\"|`[^`]*`|(?<!\w)'[^']*'(?!\w)")
_QUOTES = "\"`'"
_TELLING = re.compile(r"[A-Za-z_][A-Za-z_.:-]{0,59}|[1-5]\d\d [A-Za-z][A-Za-z '-]{0,59}", re.ASCII)
"""Quoted texts that say what went wrong: the name of a key, column or module, and a status with its words."""
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
_NOT_IN_EACH = re.compile(r"[*…\s]")
_STATUS = re.compile(r"[1-5]\d\d", re.ASCII)
_STATUS_WORDS = re.compile(
    r"\b(?:https?|smtp|ftp|status|code|\w*error|\w*exception|errno|response|responded|with|returned|got)[ :=(\[]+\Z",
    re.IGNORECASE,
)
_CODE = re.compile(r"\d{1,5}", re.ASCII)
_CODE_WORDS = re.compile(r"\b(?:errno|winerror|exit code|exit status|signal|sqlstate|ORA)[ :=-]+\Z", re.IGNORECASE)
_WORD_CHARACTERS = 20
_TYPE = re.compile(r"(?:[A-Za-z_]\w{0,59}\.){0,9}[A-Z]\w{0,59}[:(] ?", re.ASCII)
"""The name of a type, as in ``requests.HTTPError: 502``: at the beginning of a line a status may follow it."""


def normalized(error: str) -> str:
    """The first line of an error text with `*` in place of what varies; '' for an empty one.

    Replaced are quoted texts (only between the quotes), and in other words the numbers and hexadecimal digits, so that
    the names around them stay: ``order-1042`` becomes ``order-*``. What says what went wrong stays: quoted names
    without digits, such as the key of a ``KeyError: 'email'``; numbers of three digits, 100 to 599, at the beginning of
    the line, after the name of a type at its beginning, and after words such as `status`, `code`, `HTTP` and `with`;
    codes after words such as `errno`, `exit code` and `signal`. At most 200 characters of the first 500 are kept. Takes
    time linear in the text.
    """
    return normalized_line(first_line(error))


def part_of_each(error: str) -> str:
    """The longest part of a normalized error that each error with it has as it is; '' when there is none."""
    return max(_NOT_IN_EACH.split(error), key=len)


def first_line(error: str) -> str:
    """As much of the first line of an error as is read."""
    return error.lstrip().partition("\n")[0].rstrip()[:_READ_CHARACTERS]


def cut_off(line: str) -> str:
    """The line, with `…` at its end if it is longer than 200 characters."""
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"


@lru_cache(maxsize=4096)
def normalized_line(line: str) -> str:
    """As `normalized`, of what `first_line` returned."""
    line = _QUOTED.sub(_without_quoted, line)
    kind = _TYPE.match(line)
    first = 0 if kind is None else kind.end()
    line = _VALUE.sub(lambda found: found[0] if _is_telling(found, first) else "*", line)
    return cut_off(" ".join(_JOINED.sub("*", line).split()))


def _without_quoted(found: re.Match[str]) -> str:
    text = found[0]
    return text if _TELLING.fullmatch(text, 1, len(text) - 1) else f"{text[0]}*{text[-1]}"


def _is_telling(found: re.Match[str], first: int) -> bool:
    """Whether it is a word, a status or a code. `first` is where a status may be at the beginning of the line."""
    value, at = found[0], found.start()
    if not any(character.isdigit() for character in value):
        return True
    before = found.string[max(at - _WORD_CHARACTERS, 0) : at]
    if _STATUS.fullmatch(value) and (at in {0, first} or before[-1] in _QUOTES or _STATUS_WORDS.search(before)):
        return True
    return _CODE.fullmatch(value) is not None and _CODE_WORDS.search(before) is not None

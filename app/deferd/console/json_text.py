"""JSON as it was written: numbers keep their digits, and members their order and repetitions.

A float or a 64-bit integer of Python and of the browser can't hold every number that a producer may send.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from deferd.contract.encrypted_values import key_of

INDENT = "  "
_SPACE = frozenset(" \t\r\n")
_SKIP = json.JSONDecoder(parse_int=str, parse_float=str)
_WORDS = {None: "null", True: "true", False: "false"}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of an object."""

    __slots__ = ()

    def get(self, name: str, default: Any = None) -> Any:
        """The value of the last member of this name, which is the one that most parsers choose."""
        return next((value for found, value in reversed(self) if found == name), default)


def parse(content: bytes | str) -> Any:
    """The value: objects as Members, numbers as Number, and str, list, bool and None. Raises ValueError."""
    try:
        return json.loads(content, parse_int=Number, parse_float=Number, object_pairs_hook=Members)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def member_text(content: bytes, name: str) -> str | None:
    """The text of a member of an object, the last one if there are several; None if there is none. For JSON of the API.

    Nothing is made of the value, so this is much faster than `parse`. Raises ValueError.
    """
    text, found = content.decode(), None
    at = _after_space(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not an object")
    at = _after_space(text, at + 1)
    while text[at] != "}":
        member, at = _SKIP.raw_decode(text, at)
        begin = _after_space(text, _after_space(text, at) + 1)
        _, at = _SKIP.raw_decode(text, begin)
        if member == name:
            found = text[begin:at]
        at = _after_space(text, at)
        at = _after_space(text, at + 1) if text[at] == "," else at
    return found


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1] in _SPACE and at < len(text):
        at += 1
    return at


def compact(value: Any) -> str:
    """One line without spaces, as the API writes JSON."""
    return "".join(_pieces(value, "", ",", ":", is_pretty=False))


def pretty(value: Any, most: int | None = None) -> tuple[str, bool]:
    """Indented text of about `most` characters at the most, and whether it is all of it. Nothing beyond is written."""
    pieces: list[str] = []
    size = 0
    for piece in _pieces(value, "\n", ",", ": ", is_pretty=True):
        if most is not None and size + len(piece) > most:
            pieces.append(piece[: most - size])
            return "".join(pieces), False
        pieces.append(piece)
        size += len(piece)
    return "".join(pieces), True


def key_of_value(value: Any) -> str | None:
    """The id of the key with which the value is encrypted, so that only the application can read it; or None."""
    return key_of(dict(value) if isinstance(value, Members) else value)


def plain(value: Any) -> Any:
    """The same with dictionaries, and with numbers of Python, which may be rounded: for values that are compared."""
    if isinstance(value, Members):
        return {name: plain(inner) for name, inner in value}
    if isinstance(value, Number):
        return float(value) if any(sign in value for sign in ".eE") else int(value)
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def _pieces(value: Any, newline: str, comma: str, colon: str, *, is_pretty: bool) -> Iterator[str]:
    """Without recursion: a generator below another costs a step in each of them for every piece."""
    open_lists: list[tuple[Iterator[Any], bool, str]] = []
    """The rest of each list around the value, whether it is an object, and its line break."""
    while True:
        if isinstance(value, list) and value:
            is_object = isinstance(value, Members)
            yield "{" if is_object else "["
            open_lists.append((iter(value), is_object, newline))
            newline += INDENT if is_pretty else ""
            before = newline
        else:
            yield _scalar(value)
            before = comma + newline
        while open_lists:
            rest, is_object, outer_line = open_lists[-1]
            try:
                value = next(rest)
            except StopIteration:
                open_lists.pop()
                newline = outer_line
                yield newline + ("}" if is_object else "]")
                before = comma + newline
                continue
            if is_object:
                name, value = value
                yield f"{before}{_string(name)}{colon}"
            elif before:
                yield before
            break
        else:
            return


def _scalar(value: Any) -> str:
    """A value without others in it."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return "{}" if isinstance(value, Members) else "[]"
    return _WORDS[value]


def _string(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


Result = TypeVar("Result")
_AT_ONCE_BYTES = 64 * 1024
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="deferd-console-json")
"""One: several would share a processor, and take it from the event loop."""


async def off_loop(size: int, act: Callable[[], Result]) -> Result:
    """Returns or raises what `act` does: at once for input of up to 64 kB (`size`, in bytes), otherwise in a thread.

    Work with large JSON values is slow in Python, and would hold up all other requests.
    """
    if size <= _AT_ONCE_BYTES:
        return act()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, act)

"""Reads the options of the DEFERD commands: words in any case, each followed by its values.

An option fills a field of the HTTP request. Times are whole milliseconds in commands and seconds in HTTP; all
bounds are the bounds of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import orjson

from deferd.api import request_body
from deferd.api.resp.replies import invalid
from deferd.contract import limits
from deferd.contract.errors import InvalidInput
from deferd.contract.flag_fields import quoted

_MOST = 10**15
"""More than any bound of HTTP, which decides."""
_NOT_VALID = "is not valid JSON"
"""What follows says where, in text around the value that the client did not send."""
_one_value = msgspec.json.Decoder(msgspec.Raw)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text(name: str, value: bytes) -> str:
    """UTF-8. Raises CommandError for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise invalid(name, f"must be UTF-8, and byte {error.start} is not") from None


def json_value(name: str, value: bytes) -> orjson.Fragment:
    """A JSON value of any kind, for a request of HTTP, which checks it as any. Raises CommandError for other text.

    A large value is parsed there only, in another thread, because it would block the event loop.
    """
    try:
        _one_value.decode(value)  # else it could end the object around it
        if len(value) <= request_body.PARSED_IN_THE_LOOP_BYTES:
            request_body.parse_object(b'{"value":' + value + b"}")
    except msgspec.MsgspecError:
        raise invalid(name, "must be JSON") from None
    except RecursionError:
        raise invalid(name, f"is nested deeper than {limits.JSON_DEPTH_MAX} levels") from None
    except InvalidInput as error:
        message = error.field_errors[0].message
        raise invalid(name, "must be JSON" if message.startswith(_NOT_VALID) else message) from None
    return orjson.Fragment(value)


def _seconds(name: str, value: bytes) -> float:
    return whole_number(name, value, 0, _MOST, " of milliseconds") / 1000


def _count(name: str, value: bytes) -> int:
    return whole_number(name, value, 0, _MOST)


def _instant(name: str, value: bytes) -> str:
    try:
        at = _EPOCH + timedelta(milliseconds=whole_number(name, value, 0, _MOST, " of milliseconds since 1970"))
    except OverflowError:
        raise invalid(name, "is too far in the future") from None
    return at.isoformat(timespec="milliseconds")


class Option(NamedTuple):
    """`field` of the HTTP request takes what `read` makes of each of `words` words.

    `collects`: the option may be repeated, and the field is a list. Without words the field becomes `constant`.
    """

    field: str
    read: Callable[[str, bytes], Any] = text
    words: int = 1
    collects: bool = False
    constant: Any = None


def duration(field: str) -> Option:
    """A time in milliseconds."""
    return Option(field, _seconds)


def instant(field: str) -> Option:
    """Milliseconds since 1970, UTC."""
    return Option(field, _instant)


def count(field: str) -> Option:
    """A whole number."""
    return Option(field, _count)


def json(field: str) -> Option:
    """Any JSON value."""
    return Option(field, json_value)


def flag(field: str, value: Any) -> Option:
    """An option without a value."""
    return Option(field, words=0, constant=value)


Options = Mapping[bytes, Option]


def read_options(words: Sequence[bytes], options: Options) -> dict[str, Any]:
    """The fields that the options of a command fill.

    Raises:
        CommandError: an option is unknown, repeated, or lacks its value; or a value cannot be read.
    """
    fields: dict[str, Any] = {}
    at = 0
    while at < len(words):
        word = words[at].upper()
        option = options.get(word)
        if option is None:
            known = " ".join(sorted(name.decode() for name in options))
            raise invalid(_shown(words[at]), f"is not an option of this command; these are: {known}")
        values = words[at + 1 : at + 1 + option.words]
        if len(values) < option.words:
            raise invalid(word.decode(), "lacks its value")
        if option.field in fields and not option.collects:
            raise invalid(word.decode(), "is given twice, or together with an option that excludes it")
        read = [option.read(word.decode(), value) for value in values]
        if not option.words:
            fields[option.field] = option.constant
        elif option.words == 2:  # names with values
            fields.setdefault(option.field, {})[read[0]] = read[1]
        elif option.collects:
            fields.setdefault(option.field, []).append(read[0])
        else:
            fields[option.field] = read[0]
        at += 1 + option.words
    return fields


def _shown(word: bytes) -> str:
    return repr(word[:50].decode("utf-8", "replace"))


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

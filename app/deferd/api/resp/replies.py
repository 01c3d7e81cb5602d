"""Writes replies as bytes, in version 2 or 3 of the Redis protocol (RESP).

What both versions write alike are functions; `Replies` has what differs: version 2 knows no maps, booleans, fractions
and one null, so a map is a flat list of names and values, a boolean is 1 or 0, and a fraction is text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import orjson
from hiredis import pack_command
from msgspec import Raw

Version = Literal[2, 3]
OK = b"+OK\r\n"
PONG = b"+PONG\r\n"
_ERROR_TEXT_MAX = 1000
_BODIES = frozenset(("body", "result"))
"""Fields of a job that hold any JSON value of a client."""
_QUOTE = b'"'
_object = msgspec.json.Decoder(dict[str, Raw])
_array = msgspec.json.Decoder(list[Raw])
_scalar = msgspec.json.Decoder(Any)


def bulk(text: bytes) -> bytes:
    """A string of any bytes."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def integer(number: int) -> bytes:
    """A whole number of at most 64 bits."""
    return b":%d\r\n" % number


def array(replies: Sequence[bytes]) -> bytes:
    """A list of replies."""
    return b"*%d\r\n%b" % (len(replies), b"".join(replies))


def bulks(texts: Iterable[bytes]) -> bytes:
    """A list of strings."""
    words: tuple[Any, ...] = tuple(texts)
    packed: bytes = pack_command(words)
    return packed


def error(code: str, text: str) -> bytes:
    """An error. `code` is one word. The line is cut to 1000 characters; spaces replace what would end it."""
    line = f"{code} {text}"[:_ERROR_TEXT_MAX]
    return b"-%b\r\n" % line.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace")


def text_of(body: bytes) -> bytes:
    """The body of a job as a string: of a JSON string its characters, of any other value its JSON."""
    if body[:1] != _QUOTE:
        return body
    return body[1:-1] if b"\\" not in body else orjson.loads(body).encode()


class Replies:
    """What the version of the protocol decides."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.null = b"_\r\n" if version == 3 else b"$-1\r\n"

    def boolean(self, value: bool) -> bytes:
        """True or false."""
        return (b"#t\r\n" if value else b"#f\r\n") if self.version == 3 else integer(value)

    def fraction(self, number: float) -> bytes:
        """A number with a fraction."""
        text = repr(number).encode()
        return b",%b\r\n" % text if self.version == 3 else bulk(text)

    def mapping(self, pairs: Mapping[str, bytes]) -> bytes:
        """A map of names to replies."""
        head = b"%%%d\r\n" % len(pairs) if self.version == 3 else b"*%d\r\n" % (2 * len(pairs))
        return head + b"".join([bulk(name.encode()) + reply for name, reply in pairs.items()])

    def of_json(self, raw: bytes, *, bodies_as_json: bool = False) -> bytes:
        """A reply with what the JSON of an HTTP response says, with the same names, order and units.

        The bodies and results of jobs are strings, see `text_of`; with `bodies_as_json` they are the JSON as it is.
        """
        first = raw[:1]
        if first == b"{":
            pairs = {
                name: bulk(bytes(value) if bodies_as_json else text_of(bytes(value)))
                if name in _BODIES
                else self.of_json(bytes(value), bodies_as_json=bodies_as_json)
                for name, value in _object.decode(raw).items()
            }
            return self.mapping(pairs)
        if first == b"[":
            return array([self.of_json(bytes(one), bodies_as_json=bodies_as_json) for one in _array.decode(raw)])
        return self._scalar(_scalar.decode(raw))

    def _scalar(self, value: Any) -> bytes:
        if isinstance(value, str):
            return bulk(value.encode())
        if value is None:
            return self.null
        if isinstance(value, bool):
            return self.boolean(value)
        return integer(value) if isinstance(value, int) else self.fraction(value)


REPLIES: dict[int, Replies] = {2: Replies(2), 3: Replies(3)}

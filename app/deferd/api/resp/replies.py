"""Writes replies as bytes, in version 2 or 3 of the Redis protocol (RESP).

What both versions write alike are functions; `Replies` has what differs: version 2 knows no maps, booleans, fractions
and one null, so a map is a flat list of names and values, a boolean is 1 or 0, and a fraction is text.

Errors of the API are replied by their codes in capitals, those of the protocol as Redis has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
import orjson
from hiredis import pack_command
from msgspec import Raw

from deferd.api.dispatch import error_response

Version = Literal[2, 3]
OK = b"+OK\r\n"
PONG = b"+PONG\r\n"
_ERROR_TEXT_MAX = 1000
_BODIES = ("body", "result")
"""Fields of a job that hold any JSON value of a client."""
_WITH_OTHER_NAMES = frozenset(("headers", "on_end"))
"""Fields whose objects have names that do not mean what they mean in a job."""
_QUOTE = b'"'
_BOOLEANS = {b"true": True, b"false": False}
_object = msgspec.json.Decoder(dict[str, Raw])
_array = msgspec.json.Decoder(list[Raw])


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


def items_of(raw: bytes) -> list[bytes]:
    """The items of a JSON list, each as JSON."""
    return [bytes(one) for one in _array.decode(raw)]


@lru_cache(maxsize=500)
def _name(name: str) -> bytes:
    return bulk(name.encode())


_NONE: dict[str, Callable[[bytes], bytes]] = {}
_WITH_BODIES = dict.fromkeys(_BODIES, text_of)
_WITH_BODIES_AS_JSON: dict[str, Callable[[bytes], bytes]] = dict.fromkeys(_BODIES, bytes)


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
        return head + b"".join([_name(name) + reply for name, reply in pairs.items()])

    def of_json(self, raw: bytes, *, bodies_as_json: bool = False) -> bytes:
        """A reply with what the JSON of an HTTP response says, with the same names, order and units.

        The bodies and results of jobs are strings, see `text_of`; with `bodies_as_json` they are the JSON as it is.
        """
        return self._of_json(raw, _WITH_BODIES_AS_JSON if bodies_as_json else _WITH_BODIES)

    def _of_json(self, raw: bytes, exceptions: Mapping[str, Callable[[bytes], bytes]]) -> bytes:
        first = raw[:1]
        if first == _QUOTE:
            return bulk(text_of(raw))
        if first == b"{":
            pairs = {}
            for name, value in _object.decode(raw).items():
                write = exceptions.get(name)
                if write is not None:
                    pairs[name] = bulk(write(bytes(value)))
                else:
                    pairs[name] = self._of_json(bytes(value), _NONE if name in _WITH_OTHER_NAMES else exceptions)
            return self.mapping(pairs)
        if first == b"[":
            return array([self._of_json(one, exceptions) for one in items_of(raw)])
        return b":%b\r\n" % raw if raw.isdigit() else self._number_or_constant(raw)

    def _number_or_constant(self, raw: bytes) -> bytes:
        if raw == b"null":
            return self.null
        if raw in _BOOLEANS:
            return self.boolean(_BOOLEANS[raw])
        value = orjson.loads(raw)
        return integer(value) if isinstance(value, int) else self.fraction(value)


REPLIES: dict[int, Replies] = {2: Replies(2), 3: Replies(3)}


_PLACE = re.compile(r"^(?:body|query|path)\.(?:jobs\.\d+\.)?")
"""Replaces the path of a field in errors: a command has only arguments, and all jobs of a SADD have the same
options."""


class CommandError(Exception):
    """A command is refused, or has failed. `code` is the first word of the reply."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code} {text}")

    def reply(self) -> bytes:
        """The error as a reply."""
        return error(self.code, self.text)


class Disconnected(Exception):
    """The client has gone, so there is nobody to reply to."""


def invalid(name: str, text: str) -> CommandError:
    """The error for an argument that HTTP does not have, as the API words it."""
    return CommandError("VALIDATION", f"{name}: {text}")


def wrong_arity(command: str) -> CommandError:
    """The error for too few or too many arguments."""
    return CommandError("ERR", f"wrong number of arguments for '{command.lower()}' command")


def of_problem(document: bytes) -> CommandError:
    """The error of a problem document, RFC 9457."""
    problem = orjson.loads(document)
    text = problem["detail"]
    if "errors" in problem:
        text = "; ".join(_field_text(one) for one in problem["errors"])
    return CommandError(problem["code"].upper(), text)


def of_exception(error: Exception) -> CommandError:
    """The error for what an operation raised; a bug is logged."""
    return of_problem(bytes(error_response(error).body))


def _field_text(error: dict[str, Any]) -> str:
    return f"{_PLACE.sub('', error['field'])}: {error['message']}"

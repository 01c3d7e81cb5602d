"""What the processes of a service tell the one that owns the shelf, and how: frames over a Unix socket.

A frame is its length (four bytes, little-endian) and msgpack. A call is [number, verb, arguments]; its reply, in any
order, [number, true, value] or [number, false, why not]. The verbs are the methods of ShelfCalls, with their types, and
a few more:

- `still` is replied to when the jobs of a topic stay where they are; they do until `release`, which has the number of
  that call, until the connection ends, or for STILL_S.
- `checkpoint` makes a copy of the files for a backup and returns its folder. No job begins to move, and the copy is
  there, until `release`, which has the number of that call, until the connection ends, or for CHECKPOINT_S.
- `status` is replied to while nothing else can be, too.
- `end` ends the process, and returns its id.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_type_hints

from msgspec import Raw, Struct, msgpack

from deferd.engine.shelf import ShelfCalls

FRAME_BYTES_MAX = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")
STILL, CHECKPOINT, RELEASE, STATUS, END = "still", "checkpoint", "release", "status", "end"


class ShelfConfiguration(Struct, frozen=True):
    """What the process must know. `after_ms`: see Shelving. `linger_s`: how long it serves after its service's end."""

    folder: str
    socket: str
    store_url: str
    shards: int
    movable_clock: bool
    store_timeout_s: float
    after_ms: int | None
    linger_s: float
    log_format: Literal["console", "json"]
    log_level: str


class Verb(NamedTuple):
    """How the arguments of a verb, a list, and what it returns are read. The last arguments are given by `keywords`."""

    read_arguments: Callable[[Raw], Sequence[Any]]
    read_value: Callable[[Raw], Any]
    keywords: tuple[str, ...] = ()

    def call(self, method: Callable[..., Any], raw: Raw) -> Any:
        """Call a method with the arguments that were received. Raises ValueError if they cannot be read."""
        arguments = self.read_arguments(raw)
        positional = len(arguments) - len(self.keywords)
        return method(*arguments[:positional], **dict(zip(self.keywords, arguments[positional:], strict=True)))


class BadFrame(Exception):
    """What came is not of this protocol; nothing that follows can be read."""


def frame(*parts: object) -> bytes:
    """The frame of a call or a reply. Raises BadFrame if it would be too large."""
    content = msgpack.encode(parts)
    if len(content) > FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {len(content)} bytes is too large")
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Takes frames out of what was received."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Any, Raw]]:
        """The three parts of each frame that `data` completes. Raises BadFrame."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > FRAME_BYTES_MAX:
                raise BadFrame(f"a frame of {size} bytes is too large")
            end = _LENGTH.size + size
            if len(self._received) < end:
                return
            content = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            try:
                parts = _PARTS.decode(content)
            except ValueError as exc:
                raise BadFrame(f"a frame cannot be read: {exc}") from exc
            yield parts


_PARTS = msgpack.Decoder(tuple[int, str | bool, Raw])


def _verb(arguments: tuple[Any, ...], value: Any, keywords: tuple[str, ...] = ()) -> Verb:
    read_arguments = msgpack.Decoder(tuple[arguments])  # type: ignore[valid-type]  # a type made from values
    return Verb(read_arguments.decode, msgpack.Decoder(value).decode, keywords)


def _verbs() -> Iterator[tuple[str, Verb]]:
    for name, method in inspect.getmembers(ShelfCalls, inspect.isfunction):
        if not name.startswith("_"):
            types = get_type_hints(method)
            parameters = [one for one in inspect.signature(method).parameters.values() if one.name in types]
            keywords = tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
            value = None if name == STILL else types["return"]
            yield name, _verb(tuple(types[one.name] for one in parameters), value, keywords)


VERBS = {
    **dict(_verbs()),
    CHECKPOINT: _verb((), str),
    RELEASE: _verb((int,), None),
    END: _verb((), int),
}
"""Arguments are in the order in which ShelfCalls declares them, all of them."""

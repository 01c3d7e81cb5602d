"""Splits what a client sends into commands, and refuses what is none before any memory is reserved for it.

A command is an array of strings: ``*2\\r\\n$4\\r\\nPING\\r\\n$2\\r\\nhi\\r\\n``. hiredis parses it, and would reserve
room for as many items, and wait for as many bytes, as are announced. So it gets complete commands only, whose announced
sizes were checked here as they came. A parser of hiredis that has met an error parses nothing more, so each gets one
piece of one connection.
"""

from __future__ import annotations

import hiredis

_ARRAY, _STRING, _ZERO = b"*$0"
_SIZE_DIGITS_MAX = 10
_SIZE_LINE_MAX_BYTES = 1 + _SIZE_DIGITS_MAX + 2


class ProtocolViolation(Exception):
    """The client does not speak the protocol, so nothing that follows can be read."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Protocol error: {text}")


class CommandReader:
    """The received bytes of one connection that are not carried out yet.

    A command may have `most_words` words of `most_bytes` together.
    """

    __slots__ = ("_at", "_buffer", "_bytes", "_words", "_words_left", "most_bytes", "most_words")

    def __init__(self, most_words: int, most_bytes: int) -> None:
        self._buffer = bytearray()
        self.most_words = most_words
        self.most_bytes = most_bytes
        self._at = 0  # how far the buffer was checked
        self._words_left = 0  # of the command that begins at the start of the buffer and was checked in part
        self._words = 0  # of that command
        self._bytes = 0  # of its words

    def __len__(self) -> int:
        """How many bytes are buffered."""
        return len(self._buffer)

    def add(self, data: bytes) -> None:
        """More was received."""
        self._buffer += data

    def clear(self) -> None:
        """Drop everything."""
        self._buffer = bytearray()
        self._at = self._words_left = self._bytes = 0

    def take(self, most: int, most_words: int, most_bytes: int) -> list[list[bytes]]:
        """The next complete commands: at most `most`, and no further one once they have `most_words` or `most_bytes`.

        Raises:
            ProtocolViolation: what follows the commands before is no command, or exceeds a limit. Those are returned
                first; the next call raises.
        """
        complete = count = words = 0
        try:
            while count < most and words < most_words and complete < most_bytes and self._check_command():
                complete = self._at
                count += 1
                words += self._words
        except ProtocolViolation:
            if not count:
                raise
            self._at = complete
            self._words_left = self._bytes = 0
        if not count:
            return []
        parser = hiredis.Reader()
        parser.feed(bytes(self._buffer[:complete]))
        del self._buffer[:complete]
        self._at -= complete
        return [parser.gets() for _ in range(count)]

    def _check_command(self) -> bool:
        """Check the command at the current position as far as it was received; whether it is complete."""
        buffer = self._buffer
        if not self._words_left:
            size = self._size_at(_ARRAY)
            if size is None:
                return False
            if not 1 <= size <= self.most_words:
                raise ProtocolViolation(f"a command has 1 to {self.most_words} words, not {size}")
            self._words = self._words_left = size
            self._bytes = 0
        while self._words_left:
            start = self._at
            size = self._size_at(_STRING)
            if size is None:
                return False
            if self._bytes + size > self.most_bytes:
                self._at = start
                raise ProtocolViolation(f"the words of a command have at most {self.most_bytes} bytes together")
            end = self._at + size
            if len(buffer) < end + 2:
                self._at = start  # the size is read again when more has come
                return False
            if buffer[end] != 13 or buffer[end + 1] != 10:
                raise ProtocolViolation("a string does not end where its length says")
            self._bytes += size
            self._at = end + 2
            self._words_left -= 1
        return True

    def _size_at(self, kind: int) -> int | None:
        """Read the line with a size at the current position, and go behind it; None while it is incomplete."""
        buffer, at = self._buffer, self._at
        if at == len(buffer):
            return None
        if buffer[at] != kind:
            shown = repr(chr(buffer[at]))
            if kind == _ARRAY:
                raise ProtocolViolation(f"expected '*', got {shown}: send commands as arrays, not as lines of text")
            raise ProtocolViolation(f"expected '$', got {shown}: the words of a command are strings")
        end = buffer.find(b"\r\n", at, at + _SIZE_LINE_MAX_BYTES)
        if end < 0:
            if len(buffer) - at >= _SIZE_LINE_MAX_BYTES:
                raise ProtocolViolation("invalid length")
            digits = buffer[at + 1 :].removesuffix(b"\r")
            if digits and not digits.isdigit():
                raise ProtocolViolation("invalid length")
            return None
        digits = buffer[at + 1 : end]
        if not digits.isdigit() or (digits[0] == _ZERO and len(digits) > 1):  # hiredis refuses a zero in front
            raise ProtocolViolation("invalid length")
        self._at = end + 2
        return int(digits)

"""One connection that speaks the Redis protocol, within the limits of `Connections`, which it shares with HTTP.

What is received is buffered and carried out by one task, command after command. While the client does not read its
replies no further command is begun, and while enough of its commands wait no more is read from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import cast

import hiredis

from deferd.api.resp import replies
from deferd.api.resp.execution import execute
from deferd.api.resp.replies import Disconnected
from deferd.api.resp.session import RespApi, Session
from deferd.contract.limits import BATCH_MAX
from deferd.engine.time_slice import TimeSlice
from deferd.server.http.connections import KEEP_ALIVE_S, LINGER_S, REJECTED_MAX, Connections, OpenConnection
from deferd.server.http.paced_transport import PacedTransport
from deferd.server.http.protocol import UNSENT_BYTES

WORDS_MAX = 2 + 2 * 2 * BATCH_MAX
"""Words of a command: more than any command takes, so that it can say what it takes."""
WORDS_MAX_WITHOUT_KEY = 10
BYTES_MAX_WITHOUT_KEY = 16 * 1024
"""Limits of a client that has not given its key yet."""
READ_AHEAD_BYTES = 64 * 1024
"""How much of further commands is read while one is carried out."""
_COMMANDS_AT_ONCE = 1000
_WORDS_AT_ONCE = 4000
_AT_ONCE_BYTES = 1024 * 1024

_log = logging.getLogger("deferd.connections")


class RespConnection(asyncio.Protocol):
    """The server's side of a connection."""

    _transport: PacedTransport
    _session: Session

    def __init__(self, api: RespApi, limits: Connections) -> None:
        self._api = api
        self._limits = limits
        self._reader = CommandReader(WORDS_MAX_WITHOUT_KEY, BYTES_MAX_WITHOUT_KEY)
        self.address: tuple[str, int] | None = None
        self.is_leaving = False
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Event | None = None  # the client does not read while there is one
        self._is_reading = True
        self._is_stopping = False  # no further command is carried out
        self._is_shutting_down = False  # the server stops, and checks no deadlines any more
        self._has_ended = False
        self._awaits_first = True
        self._awaits_rest = False
        self._is_rejected = False
        self._is_closed = False
        self._handshake: OpenConnection | None = None
        self._wire: asyncio.Transport | None = None  # below TLS

    def begin_after(self, handshake: OpenConnection, wire: asyncio.Transport) -> None:
        """Called before `connection_made` on a TLS connection over `wire` that was counted as `handshake`."""
        self._handshake, self._wire = handshake, wire
        wire.set_write_buffer_limits(high=UNSENT_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected: reject it at the connection limit."""
        transport = cast("asyncio.Transport", transport)
        self._transport = PacedTransport(transport, on_pause=self._pause, on_resume=self._resume)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self.address = self._transport.peer_address()
        self._session = Session(self._api, self)
        self._set_limits()
        if self._handshake is not None:
            self._limits.replace(self._handshake, self)
            self._handshake = None
        elif not self._limits.add(self):
            self._reject()
            return
        self._limits.connected.add(self)
        self._limits.set_deadline(self, KEEP_ALIVE_S)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the reason makes no difference)
        """The connection is closed, by either side."""
        self._is_closed = True
        self._transport.connection_lost()
        self._limits.clear_deadline(self)
        self._limits.remove(self)
        if self._is_rejected:
            self._limits.rejected -= 1
        self._limits.connected.discard(self)
        self._api.context.unsent.forget(self)
        self._reader.clear()
        self._session.disconnect()
        if self._room is not None:
            self._room.set()
        if self._task is None:
            del self._session  # it refers to this connection: both are freed at once

    def eof_received(self) -> bool:
        """The client sends no more. It may still read: the commands that it sent are carried out, but no pops."""
        self.is_leaving = True
        self._session.disconnect()
        if self._wire is not None:  # TLS closes in any case
            self._transport.flush()
            return False
        return self._task is not None or self._transport.is_writing()

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Receive commands or parts of them."""
        if self._is_stopping or self._is_rejected:
            return
        self._reader.add(data)
        if self._task is None and self._room is None:
            self._begin()
        elif len(self._reader) > READ_AHEAD_BYTES and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _begin(self) -> None:
        """Carry out what has come; wait for the rest of a command."""
        commands = self._take()
        if not commands:
            if not self._is_stopping:
                self._await_rest()
            return
        if self._awaits_first:
            self._awaits_first = False
            self._limits.head_received(self)
        self._awaits_rest = False
        self._limits.clear_deadline(self)
        self._task = asyncio.get_running_loop().create_task(self._carry_out(commands), name="resp")
        self._limits.tasks.add(self._task)
        self._task.add_done_callback(self._limits.tasks.discard)

    def _take(self) -> list[list[bytes]]:
        try:
            return self._reader.take(_COMMANDS_AT_ONCE, _WORDS_AT_ONCE, _AT_ONCE_BYTES)
        except ProtocolViolation as violation:
            _log.debug("invalid Redis protocol from %s: %s", self.address, violation)
            self._transport.write(replies.error("ERR", str(violation)))
            self._end()
            return []

    def _await_rest(self) -> None:
        """The client has to send the rest of a command in time, or its next one before the keep-alive time ends."""
        self._read_on()
        if self.is_leaving:
            self._end()
        elif self._room is not None:
            return  # the client has to read first; then this is called again
        elif not len(self._reader):
            self._limits.set_deadline(self, KEEP_ALIVE_S)
        elif not self._awaits_rest:
            self._awaits_rest = True
            self._limits.set_deadline(self, self._limits.body_timeout_s)

    async def _carry_out(self, commands: list[list[bytes]]) -> None:
        """Carry out commands until there are no further complete ones."""
        slice_ = TimeSlice()
        try:
            while commands and not self._is_stopping:
                async with contextlib.aclosing(execute(self._session, commands)) as written:
                    async for reply in written:
                        if not await self._send(reply):
                            return
                        await slice_.end_if_over()
                if self._session.has_quit:
                    self._end()
                    return
                await slice_.end()
                self._set_limits()
                commands = self._take()
                self._read_on()
        except Disconnected:
            self._end()
        except Exception:
            self._transport.abort()
            raise
        finally:
            self._task = None
            if self._is_closed:
                del self._session
            elif self._is_stopping:
                self._end()
            else:
                self._await_rest()

    def _set_limits(self) -> None:
        """What a command may have before and after the client has given its key."""
        if self._session.is_authenticated:
            self._reader.most_words, self._reader.most_bytes = WORDS_MAX, self._api.context.settings.max_body_bytes
        else:
            self._reader.most_words, self._reader.most_bytes = WORDS_MAX_WITHOUT_KEY, BYTES_MAX_WITHOUT_KEY

    def _read_on(self) -> None:
        """Read again what may be read: the rest of a command in any case, whose size the reader limits."""
        may_read = self._task is None or len(self._reader) <= READ_AHEAD_BYTES
        if may_read and not (self._is_reading or self._is_closed):
            self._is_reading = True
            self._transport.resume_reading()

    # Sending

    async def _send(self, reply: bytes) -> bool:
        """Send a reply and wait until the client reads; False when no further command is to be carried out."""
        if not self._is_closed:
            self._transport.write(reply)
            if self._room is not None:
                await self._room.wait()
        return self._goes_on()

    def _goes_on(self) -> bool:
        return not (self._is_closed or self._is_stopping)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._transport.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self._transport.resume()

    def _pause(self) -> None:
        """The client does not read its replies as fast as they are sent. It may be called again before `_resume`."""
        if self._room is None:
            self._room = asyncio.Event()
        self._awaits_rest = False
        self._limits.set_deadline(self, self._limits.response_timeout_s)
        self._api.context.unsent.note(self, self._session.key_name)

    def _resume(self) -> None:
        room, self._room = self._room, None
        self._api.context.unsent.forget(self)
        if self._is_closed:
            return
        self._limits.clear_deadline(self)
        if room is not None:
            room.set()
        if self._has_ended:
            self._limits.set_deadline(self, LINGER_S)
        elif self._task is None:
            self._begin()

    def unsent_bytes(self) -> int:
        """See SlowClient."""
        unsent = self._transport.get_write_buffer_size()
        return unsent if self._wire is None else unsent + self._wire.get_write_buffer_size()

    # The end

    def _reject(self) -> None:
        """Send a client above the limit an error; when many have got one already, close at once."""
        self._is_rejected = True
        self._limits.rejected += 1
        if self._limits.rejected <= REJECTED_MAX:
            self._transport.write(replies.error("ERR", "max number of clients reached"))
            self._end()
        else:
            self._transport.abort()

    def _end(self) -> None:
        """Close when the client has what was written, and ignore what it sends until then.

        Closing at once, with bytes of the client unread, could destroy the last reply in transit.
        """
        self._is_stopping = True
        self._reader.clear()
        if self._is_closed or self._has_ended:
            return
        self._has_ended = True
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        if self._transport.can_write_eof() and not (self.is_leaving or self._is_shutting_down):
            self._transport.write_eof()
        else:
            self._transport.close()
        self._limits.set_deadline(self, LINGER_S)

    def shutdown(self) -> None:
        """The server stops: the command under way is ended, the rest is dropped."""
        self._is_stopping = self._is_shutting_down = True
        if self._has_ended:
            self._transport.close()
        elif self._task is None:
            self._end()

    def deadline_passed(self) -> None:
        """The client did not act in time."""
        if self._is_stopping or self._room is not None or self._transport.get_write_buffer_size():
            self._transport.abort()
        elif self._task is None:
            if self._awaits_rest:
                self._transport.write(replies.error("ERR", "Protocol error: a command did not arrive in time"))
            self._end()

    def is_idle(self) -> bool:
        """See `OpenConnection`."""
        return self._task is None and not len(self._reader) and self._room is None and not self._is_stopping

    def cut_off(self) -> None:
        """See `OpenConnection` and `SlowClient`."""
        self._transport.abort()


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

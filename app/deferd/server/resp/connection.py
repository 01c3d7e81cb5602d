"""One connection that speaks the Redis protocol, within the limits of `Connections`, which it shares with HTTP.

What is received is buffered and carried out by one task, command after command. While the client does not read its
replies no further command is begun, and while enough of its commands wait no more is read from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import cast

from deferd.api.resp import replies
from deferd.api.resp.command_error import Disconnected
from deferd.api.resp.execution import execute
from deferd.api.resp.session import RespApi, Session
from deferd.contract.limits import BATCH_MAX
from deferd.engine.time_slice import TimeSlice
from deferd.server.http.connections import KEEP_ALIVE_S, LINGER_S, REJECTED_MAX, Connections, OpenConnection
from deferd.server.http.paced_transport import PacedTransport
from deferd.server.http.protocol import UNSENT_BYTES
from deferd.server.resp.command_reader import CommandReader, ProtocolViolation

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
        """Close when the client has what was written, and ignore what it sends meanwhile.

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

"""Carries out the commands of a client, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

# A module declares its commands when it is imported; COMMAND lists them in this order, which isort would change.
from deferd.api.resp import set_commands, topic_commands, connection_commands, job_commands  # isort: skip # noqa: F401
from deferd.api.resp.connection_commands import audit_without_key, no_key
from deferd.api.resp.replies import CommandError, Disconnected, of_exception, wrong_arity
from deferd.api.resp.session import COMMANDS, Command, Session
from deferd.contract.flag_fields import quoted

__all__ = ["COMMANDS", "execute"]
"""`COMMANDS` is complete here."""


async def execute(session: Session, commands: Sequence[list[bytes]]) -> AsyncGenerator[bytes, None]:
    """The replies to the commands of a pipeline, in their order. One item may hold several replies.

    No further command begins until the caller asks for the next item, which it does when the client has room for it. It
    ends early after QUIT.

    Raises:
        Disconnected: the client has gone; the rest of the commands is not carried out.
    """
    at = 0
    while at < len(commands) and not session.has_quit:
        name = commands[at][0].upper()
        command = COMMANDS.get(name)
        end = at + 1
        if command is not None and command.run_many is not None and session.is_authenticated:
            while end < len(commands) and commands[end][0].upper() == name:
                end += 1
            async with contextlib.aclosing(command.run_many(session, commands[at:end])) as written:
                async for replies in written:
                    yield replies
        else:
            yield await _reply_to(session, command, commands[at])
        at = end


async def _reply_to(session: Session, command: Command | None, words: list[bytes]) -> bytes:
    name = words[0].decode("utf-8", "replace")
    if not session.is_authenticated and (command is None or not command.is_open):
        audit_without_key(session, "RESP" if command is None else f"RESP {name.upper()}")
        return no_key().reply()
    if command is None or command.run is None:
        return CommandError("ERR", f"unknown command {quoted(name)}").reply()
    if not command.accepts(len(words)):
        return wrong_arity(name).reply()
    try:
        return await command.run(session, words)
    except CommandError as error:
        return error.reply()
    except Disconnected:
        raise
    except Exception as error:  # noqa: BLE001 (every error gets a response)
        return of_exception(error).reply()

"""All commands, by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cache
from typing import NamedTuple

from deferd.api.resp import connection_commands as connection
from deferd.api.resp import job_commands as jobs
from deferd.api.resp import replies, set_commands, topic_commands
from deferd.api.resp.command_error import CommandError
from deferd.api.resp.session import Session
from deferd.contract.operations import deliveries
from deferd.contract.operations import jobs as operations
from deferd.contract.operations.pop import POP_JOBS

Run = Callable[[Session, list[bytes]], Awaitable[bytes]]
RunMany = Callable[[Session, Sequence[list[bytes]]], AsyncGenerator[bytes, None]]


class Command(NamedTuple):
    """A command: `arity` is the number of its words with its name, negative for at least so many, as Redis counts them.

    `run_many` replaces `run` for commands of which a run in a pipeline is carried out together; it checks the number of
    words itself, and goes on when the client has room for the replies so far. `is_open`: also for a client that has
    given no key.
    """

    arity: int
    run: Run | None
    has_topic: bool = True
    is_open: bool = False
    run_many: RunMany | None = None

    def accepts(self, words: int) -> bool:
        """Whether a command may have so many words."""
        return words == self.arity if self.arity >= 0 else words >= -self.arity


async def _describe(session: Session, command: list[bytes]) -> bytes:
    """``COMMAND [COUNT|DOCS|INFO [name ...]|LIST]``: the commands, as Redis describes its own."""
    subcommand = command[1].upper() if len(command) > 1 else b"INFO"
    if subcommand == b"COUNT":
        return replies.integer(len(COMMANDS))
    if subcommand == b"DOCS":
        return session.replies.mapping({})
    if subcommand == b"LIST":
        return replies.bulks([name.lower() for name in COMMANDS])
    if subcommand != b"INFO":
        raise CommandError("ERR", "unknown subcommand of COMMAND: COUNT, DOCS, INFO and LIST are known")
    names = [name.upper() for name in command[2:]] or list(COMMANDS)
    return replies.array([_description(name) if name in COMMANDS else session.replies.null for name in names])


@cache
def _description(name: bytes) -> bytes:
    command = COMMANDS[name]
    first = 1 if command.has_topic else 0
    last = -1 if name == b"DEL" else first
    numbers = [replies.integer(number) for number in (first, last, 1 if first else 0)]
    flags = replies.array([b"+fast\r\n"])
    none = replies.array(())  # ACL categories, tips, specifications of keys, subcommands
    return replies.array([replies.bulk(name.lower()), replies.integer(command.arity), flags, *numbers, *(none,) * 4])


COMMANDS: dict[bytes, Command] = {
    set_commands.SADD: Command(-4, None, run_many=set_commands.sadd),
    set_commands.SPOP: Command(-2, None, run_many=set_commands.spop),
    b"SCARD": Command(2, topic_commands.scard),
    b"KEYS": Command(-1, topic_commands.keys, has_topic=False),
    b"SCAN": Command(-2, topic_commands.scan, has_topic=False),
    b"DEL": Command(-2, topic_commands.delete),
    b"PING": Command(-1, connection.ping, has_topic=False),
    b"ECHO": Command(2, connection.echo, has_topic=False),
    b"HELLO": Command(-1, connection.hello, has_topic=False, is_open=True),
    b"AUTH": Command(-2, connection.auth, has_topic=False, is_open=True),
    b"SELECT": Command(2, connection.select, has_topic=False),
    b"CLIENT": Command(-2, connection.client, has_topic=False),
    b"COMMAND": Command(-1, _describe, has_topic=False),
    b"INFO": Command(-1, connection.info, has_topic=False),
    b"RESET": Command(1, connection.reset, has_topic=False, is_open=True),
    b"QUIT": Command(-1, connection.quit_session, has_topic=False, is_open=True),
    **{
        operation.command.encode(): command
        for operation, command in (
            (operations.PUT_JOB, Command(-4, jobs.put)),
            (POP_JOBS, Command(-2, jobs.pop)),
            (operations.GET_JOB, Command(-3, jobs.get)),
            (operations.CHANGE_JOB, Command(-3, jobs.change)),
            (operations.CANCEL_JOB, Command(-3, jobs.cancel)),
            (deliveries.FINISH_JOB, Command(-4, jobs.finish)),
            (deliveries.RELEASE_JOB, Command(-4, jobs.release)),
            (deliveries.TOUCH_JOB, Command(-4, jobs.touch)),
            (deliveries.BURY_JOB, Command(-4, jobs.bury)),
        )
    },
}

"""What a command is. Each is declared where its function is, in the modules that `command_table` imports."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from deferd.api.resp.session import Session
from deferd.contract.operations.operation import Operation

Run = Callable[[Session, list[bytes]], Awaitable[bytes]]
RunMany = Callable[[Session, Sequence[list[bytes]]], AsyncGenerator[bytes, None]]


class Command(NamedTuple):
    """A command. `arity` is the number of its words with its name, or negative for a minimum, as Redis counts them.

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
        """Whether a command may have this number of words."""
        return words == self.arity if self.arity >= 0 else words >= -self.arity


COMMANDS: dict[bytes, Command] = {}
"""The declared commands, by name. Read it from `command_table`, where it is complete."""


def command(
    of: Operation[Any] | str, *, arity: int, has_topic: bool = True, is_open: bool = False
) -> Callable[[Run], Run]:
    """Declare that a function carries out the command of an operation, or the one of this name: see Command."""
    name = of if isinstance(of, str) else of.command

    def declare(run: Run) -> Run:
        COMMANDS[name.encode()] = Command(arity, run, has_topic, is_open)
        return run

    return declare


def command_in_runs(name: str, *, arity: int) -> Callable[[RunMany], RunMany]:
    """Declare that a function carries out a run of commands of this name: see `Command.run_many`."""

    def declare(run_many: RunMany) -> RunMany:
        COMMANDS[name.encode()] = Command(arity, None, run_many=run_many)
        return run_many

    return declare

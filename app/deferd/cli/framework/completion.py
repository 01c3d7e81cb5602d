"""`deferd completion`, and the names that a shell completes by asking the service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from deferd.cli.framework import output
from deferd.cli.framework.command import COMPLETE_VARIABLE, command
from deferd.cli.framework.connection import SETTINGS, Connection

if TYPE_CHECKING:
    from deferd.client import Client

_SHELLS: Final = ("bash", "zsh", "fish")
_TIME_LIMIT_S: Final = 1.0
_SCHEDULES_MAX: Final = 1000


@command(
    "source <(deferd completion bash)",
    "deferd completion zsh > ~/.zfunc/_deferd",
    "deferd completion fish > ~/.config/fish/completions/deferd.fish",
)
@click.argument("shell", metavar="SHELL", type=click.Choice(_SHELLS), help="bash, zsh or fish")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for your shell. It completes commands, options, their choices, and the names of topics
    by asking the service.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 (for mypy: it is a choice)
    output.line(kind(ctx.find_root().command, {}, "deferd", COMPLETE_VARIABLE).source())


def complete_topic(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics that start with the last of these comma-separated names; none if the service cannot be reached."""
    before, comma, start = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in _names(ctx, lambda client: _topics(client, start))]


def complete_schedule(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The schedules whose names start with this text; none if the service cannot be reached."""

    def schedules(client: Client) -> list[str]:
        return [one.name for one in islice(client.schedules(prefix=incomplete, jobs=False), _SCHEDULES_MAX)]

    return [CompletionItem(name) for name in _names(ctx, schedules)]


def _names(ctx: click.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    """The result of `read` with a client that has the command's options; nothing if the service cannot be reached."""
    with contextlib.suppress(Exception):  # a shell shows no errors of a completion
        settings: dict[str, Any] = {name: ctx.params.get(name) for name in SETTINGS}
        settings |= {"timeout": _TIME_LIMIT_S, "retry_for": 0.0}
        with Connection(**settings).open() as client:
            return ask(client)
    return []


def _topics(client: Client, start: str) -> list[str]:
    names: list[str] = []
    deadline_s = time.monotonic() + _TIME_LIMIT_S
    for page in client.topic_pages():
        names += [view.topic for view in page.topics if view.topic.startswith(start)]
        if time.monotonic() > deadline_s:
            break
    return names

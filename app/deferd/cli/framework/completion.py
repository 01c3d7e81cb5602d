"""`deferd completion`."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from deferd.cli.framework import output
from deferd.cli.framework.command import COMPLETE_VARIABLE, command

_SHELLS: Final = ("bash", "zsh", "fish")


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

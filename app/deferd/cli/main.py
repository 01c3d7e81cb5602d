"""The entry point of the command `deferd`.

A command is imported when it is used: the base install is the client alone, and the help stays fast.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from deferd.cli.command_table import ALIASES, COMMANDS, SECTIONS
from deferd.cli.framework import exit_codes
from deferd.cli.framework.command import EXIT_CODES, command, fail, parameter_name
from deferd.cli.framework.standard_streams import discard, is_write_error, open_closed_streams

_SHELLS: Final = ("bash", "zsh", "fish")
_COMPLETE_VARIABLE: Final = "_DEFERD_COMPLETE"
"""Set by a shell's completion script when it asks for completions."""
_WORDS: Final = ("help", "version")
"""Commands that stand for options."""
_URL_ARGUMENT: Final = re.compile(r"://.*(?=\))", re.DOTALL)
"""What follows the scheme of a URL that click quotes in parentheses."""
_SERVER_PACKAGES: Final = (
    *("fastapi", "hiredis", "httptools", "orjson", "prometheus_client", "pydantic_settings", "redis", "starlette"),
    *("uvicorn", "uvloop"),
)
_EXTRAS: Final = {
    "rich": ("tables and progress bars", "cli"),
    "psycopg": ("the outbox", "outbox"),
    **dict.fromkeys(_SERVER_PACKAGES, ("the service", "server")),
}
"""By package: what needs it, and the extra that has it."""


class LazyGroup(click.Group):
    """The commands of the table, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        """All commands, in the order of the help."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        """Import a command, by its name or an alias."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        found = getattr(importlib.import_module(f"deferd.cli.{COMMANDS[name].module}"), name)
        assert isinstance(found, click.Command)  # noqa: S101 (for mypy)
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command, list[str]]:
        """The command that the arguments name, under its own name and not an alias."""
        found = self.get_command(ctx, args[0])
        if found is None:
            raise click.NoSuchCommand(args[0], possibilities=[*COMMANDS, *_WORDS, *ALIASES], ctx=ctx)
        return found.name, found, args[1:]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing them."""
        commands = [
            CompletionItem(name, help=entry.summary) for name, entry in COMMANDS.items() if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """List the commands by section."""
        for section, commands in SECTIONS.items():
            formatter.write(f"\n{section}:\n")
            for name, entry in commands.items():
                formatter.write(f"  {name:<11} {entry.summary}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """How to get more help, and the exit codes."""
        formatter.write(f"\n`deferd help COMMAND` shows options and examples.\n\n{EXIT_CODES}\n")


def _show_version(ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given:
        from deferd import __version__  # reads the metadata, which takes a third of the time of `deferd --help`

        click.echo(f"deferd {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    options_metavar="",
    subcommand_metavar="COMMAND ...",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def deferd() -> None:
    """A delayed-job service: put a job with a delay, and one consumer gets it when it is due."""


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
    click.echo(kind(ctx.find_root().command, {}, "deferd", _COMPLETE_VARIABLE).source())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (those of the process by default) and return its exit code.

    0: done. 1: failed (a store that refuses, a port in use, an unreachable service). 2: wrong usage or a wrong setting.
    The reason is one line on standard error. `deferd.cli.framework.exit_codes` has all codes.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    open_closed_streams(output_counts=words[:1] not in (["serve"], ["worker"], ["relay"]))
    try:
        try:
            return _main(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        return exit_codes.OUTPUT_CLOSED
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except OSError as error:
        if not is_write_error(error):
            raise
        discard(sys.stdout)
        return fail(f"the output cannot be written: {error.strerror}")


def _main(words: list[str]) -> int:
    if instruction := os.environ.get(_COMPLETE_VARIABLE):
        with contextlib.suppress(ModuleNotFoundError):  # an extra that is not installed
            return shell_complete(deferd, {}, "deferd", _COMPLETE_VARIABLE, instruction)
        return exit_codes.FAILED
    if words[:1] == ["version"]:
        words = ["--version"]
    elif words[:1] == ["help"]:
        words = [*(word for word in words[1:] if word not in _WORDS), "--help"]
    try:
        with deferd.make_context("deferd", list(words)) as ctx:
            return int(deferd.invoke(ctx))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return exit_codes.USAGE
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        return fail(_describe(error), code=exit_codes.USAGE)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        from deferd.version import how_to_install

        purpose, extra = _EXTRAS[package]
        name = ALIASES.get(words[0], words[0])
        return fail(f"`deferd {name}` needs {purpose}, and {package} is missing: {how_to_install(extra)}")


def _describe(error: click.UsageError) -> str:
    """A usage error in one line, with where to read more."""
    path = error.ctx.command_path if error.ctx else "deferd"
    if isinstance(error, click.NoSuchCommand):
        if not error.possibilities:
            return f"there is no command {error.command_name!r}; `{path} --help` lists them"
        name = ALIASES.get(error.possibilities[0], error.possibilities[0])
        help_command = f"{path} {name}".replace("deferd", "deferd help", 1)
        return f"there is no command {error.command_name!r}: did you mean {name}? see `{help_command}`"
    match error:
        case click.NoSuchOption():
            known = [name.lstrip("-") for name in error.possibilities or ()]
            close = difflib.get_close_matches(error.option_name.lstrip("-"), known, n=1)
            text = f"there is no option {error.option_name}" + (f": did you mean --{close[0]}?" if close else "")
        case click.MissingParameter(param=click.Parameter() as parameter):
            text = f"{_name(parameter)} is missing"
        case click.BadParameter(param=click.Parameter() as parameter):
            text = f"{_name(parameter, error.ctx)}: {error.message.rstrip('.')}"
        case _:
            # An extra argument may be a store URL that lacks its option, with a password.
            message = _URL_ARGUMENT.sub("://...", error.message)
            text = message[:1].lower() + message[1:].rstrip(".")
    return f"{text} (see {path} --help)"


def _name(parameter: click.Parameter, ctx: click.Context | None = None) -> str:
    """The name of an argument or option; with the variable if its value is from there."""
    name = parameter_name(parameter)
    source: Any = ctx and parameter.name and ctx.get_parameter_source(parameter.name)
    return f"{parameter.envvar} ({name})" if source is click.core.ParameterSource.ENVIRONMENT else name

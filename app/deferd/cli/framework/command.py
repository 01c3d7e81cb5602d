"""The base of all commands: the layout of their help, and how their errors become messages and exit codes."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource, augment_usage_errors

from deferd.cli.command_table import ALIASES
from deferd.cli.framework import exit_codes
from deferd.cli.framework.exit_codes import UsageError

if TYPE_CHECKING:
    from deferd.contract.errors import DeferdError, FieldError

_PARTS_OF_A_REQUEST: Final = ("body", "query", "path")
_NEGATIVE: Final = re.compile(r"-\d")
EXIT_CODES: Final = textwrap.fill(
    "exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in exit_codes.MEANINGS.items()),
    78,
    subsequent_indent="  ",
)


class Command(click.Command):
    """A command whose epilog is printed unchanged, and whose callback returns an exit code, or None for 0."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The docstring, and the aliases."""
        super().format_help_text(ctx, formatter)
        if aliases := [alias for alias, name in ALIASES.items() if name == self.name]:
            formatter.write(f"\n  Aliases: {', '.join(aliases)}.\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """The examples and the exit codes."""
        formatter.write(f"\n{self.epilog or EXIT_CODES}\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. A negative number is a value and not an option: it may be a job's body."""
        numbers = [at for at, word in enumerate(args) if _NEGATIVE.match(word) and not self._is_value(ctx, args[:at])]
        if numbers and "--" not in args:
            others = [word for at, word in enumerate(args) if at not in numbers]
            args = [*others, "--", *(args[at] for at in numbers)]
        with augment_usage_errors(ctx):  # else an option without its value would not say of which command
            return super().parse_args(ctx, args)

    def _is_value(self, ctx: click.Context, before: list[str]) -> bool:
        """Whether the word after these belongs to an option."""
        options = (option for option in self.get_params(ctx) if isinstance(option, click.Option))
        return any(before[-1:] == [name] and not option.is_flag for option in options for name in option.opts)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and return its exit code; report an expected error in one line."""
        from deferd.contract.errors import DeferdError

        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            for parameter in self.params:
                refuse_undecoded(ctx, parameter, ctx.params.get(parameter.name or ""))
            return super().invoke(ctx) or exit_codes.DONE
        except DeferdError as error:
            return fail(*_sentences(error, ctx), code=exit_codes.of_error(error))
        except UsageError as error:
            return fail(str(error), code=exit_codes.USAGE)


class CommandGroup(click.Group):
    """A group of commands; its epilog is printed unchanged."""

    command_class = Command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """The examples."""
        formatter.write(f"\n{self.epilog}\n")


def parameter_name(parameter: click.Parameter) -> str:
    """An option as people write it, such as ``--delay``, or the name of an argument, such as ``TOPIC``."""
    is_argument = isinstance(parameter, click.Argument)
    return parameter.human_readable_name.strip("[].") if is_argument else parameter.opts[0]


def refuse_undecoded(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Refuse texts that this locale can't decode: they can't be sent. Paths may have any bytes.

    Raises click.BadParameter.
    """
    left = [] if isinstance(parameter.type, click.Path) else [value]
    while left:
        inner = left.pop()
        if isinstance(inner, (list, tuple)):
            left += inner
        elif isinstance(inner, str) and any("\udc80" <= character <= "\udcff" for character in inner):  # PEP 383
            encoding = sys.getfilesystemencoding().upper()
            advice = "" if encoding == "UTF-8" else "; set LC_ALL=C.UTF-8 or another locale with UTF-8"
            raise click.BadParameter(f"it is not text in {encoding}{advice}", ctx, parameter)


def fail(*sentences: str, code: int = exit_codes.FAILED) -> int:
    """Print errors on standard error; returns the exit code."""
    from deferd.cli.framework.output import complain

    for sentence in sentences:
        complain(sentence)
    return code


def command(
    *examples: str, group: CommandGroup | None = None, **attributes: Any
) -> Callable[[Callable[..., int | None]], Command]:
    """Make a function a command, or an action of a group, with its name, its docstring as help, and these examples."""
    make: Any = click.command if group is None else group.command
    decorate: Callable[[Callable[..., int | None]], Command]
    decorate = make(cls=Command, epilog=f"{_listed(examples)}\n{EXIT_CODES}", **attributes)
    return decorate


def command_group(*examples: str, name: str) -> Callable[[Callable[[], None]], CommandGroup]:
    """Make a function a group of actions, with its docstring as help and these examples."""
    epilog = f"{_listed(examples)}\n`deferd {name} ACTION --help` shows the options of an action.\n\n{EXIT_CODES}"
    usage: dict[str, Any] = {"subcommand_metavar": "ACTION ...", "options_metavar": "", "no_args_is_help": False}
    return click.group(name, cls=CommandGroup, epilog=epilog, **usage)


def _listed(examples: Iterable[str]) -> str:
    return "examples:\n" + "".join(f"  {example}\n" for example in examples)


class ConnectionOption(click.Option):
    """An option of the connection. It sets no field of a request: the `url` of a push is not --url."""


def _sentences(error: DeferdError, ctx: click.Context) -> list[str]:
    """What went wrong, one line for each error; `ctx` is the context of the command.

    A refused field is named as the option that set it.
    """
    from deferd.contract.errors import InvalidInput

    if isinstance(error, InvalidInput):
        return [_refused(field_error, ctx) for field_error in error.field_errors]
    return [sentence(error)]


def sentence(error: DeferdError) -> str:
    """What went wrong, in one line."""
    from deferd.client.errors import NoAnswer, UnexpectedAnswer, Unreachable
    from deferd.contract.errors import PayloadTooLarge, Unauthorized

    text = str(error)
    match error:
        case Unreachable():
            return f"the service cannot be reached: {text} (set its URL by --url or DEFERD_URL)"
        case NoAnswer():
            return f"no response from the service, so it is not known whether this was done: {text}"
        case UnexpectedAnswer(is_problem=True):
            return f"the service failed: {text}"
        case UnexpectedAnswer():
            return f"{text} (is the URL that of a service? set it by --url or DEFERD_URL)"
        case PayloadTooLarge():
            return f"{text}, the limit of the service (its --max-body-bytes)"
        case Unauthorized():
            return f"{text or 'a key is required'} (set it by --key or DEFERD_KEY)"
    return text


def _refused(field_error: FieldError, ctx: click.Context) -> str:
    path = list(field_error.path)
    if path and path[0] in _PARTS_OF_A_REQUEST:
        del path[0]
    if path[:1] in (["jobs"], ["select"]):
        del path[0]
    value = f"{field_error.value:g}" if isinstance(field_error.value, float) else repr(field_error.value)
    shown = f" (it is {_cut(value)})" if field_error.value is not None else ""
    is_missing = field_error.message.startswith("is required")
    named = _argument([str(step) for step in path], ctx, is_missing=is_missing)
    return f"{named} {field_error.message}{shown}".strip()


def _argument(path: list[str], ctx: click.Context, *, is_missing: bool) -> str:
    """The option or argument that set the field at `path`, or would if it `is_missing`, and the rest of the path."""
    if not path:
        return "the request:"
    first, *more = path
    rest = "".join(f"[{step}]" if re.fullmatch(r"\d+", step) else f".{step}" for step in more)
    names = {
        parameter.name: parameter_name(parameter)
        for parameter in ctx.command.params
        if parameter.name
        and not isinstance(parameter, ConnectionOption)
        and (is_missing or ctx.get_parameter_source(parameter.name) is not ParameterSource.DEFAULT)
    }
    return f"{names.get(first, first)}{rest}"


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[:most] + "..."

"""The command `deferd`: its entry point, its two big commands, `serve` and `bench`, and `key`.

The flags of `serve` are made from `deferd.settings.Settings`: nothing is declared twice. The commands of the client are
declared in `deferd.cli.parser`. The base install is the client alone, so the service, and what measures it, are
imported only when they are asked for; and of the other commands only the one that runs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, NoReturn, get_origin

from deferd.cli.connection import SETTINGS as OF_CLIENT
from deferd.cli.parser import ALIASES, COMMANDS, CONSUMERS, EXIT_CODES, PROCESSES, PRODUCERS, TOOLS, TOPICS, Command

if TYPE_CHECKING:
    from deferd.cli.config import ServiceSettings

EXAMPLES = """examples:
  deferd serve
  deferd serve --host 0.0.0.0 --port 8000 --data-dir /var/lib/deferd
  DEFERD_REDIS_URL=redis://:password@db.example:6379 deferd serve --workers 4

exit codes: 0 ended by SIGTERM, SIGHUP or Ctrl-C; 1 it cannot serve: the port is taken, the store
refuses; 2 a wrong setting
"""
_SERVE, _BENCH = "run the service", "measure a running deployment, to size it"
_KEY = "make, list and revoke the keys of a service"
_KNOWN = ("serve", "bench", "key", *COMMANDS)
_WORDS = ("help", "version")
"""Commands that are other words for flags."""
_EXTRAS = {
    "rich": ("tables and progress bars", "cli"),
    "shtab": ("completion scripts", "cli"),
    **dict.fromkeys(
        ("redis", "hiredis", "orjson", "prometheus_client", "pydantic_settings"), ("the service", "server")
    ),
}
"""What a package is for, and the extra that brings it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (those of the process by default) and return its exit code.

    0: it did what it was asked. 1: it cannot (a store that refuses, a port that is taken, a service that is away). 2:
    wrong usage or a wrong setting. Why is said in a line on standard error. `deferd.cli.exit_codes` has them all.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _main(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered has nowhere to go, and must not be tried again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def _main(words: list[str]) -> int:
    words, asked = _command_in(words)
    if asked is not None and asked not in _KNOWN:
        close = difflib.get_close_matches(asked, [*_KNOWN, *_WORDS, *ALIASES], n=1)
        if not close:
            return _fail(f"there is no command {asked!r}; `deferd --help` lists them", code=2)
        meant = ALIASES.get(close[0], close[0])
        return _fail(f"there is no command {asked!r}: is {meant} meant? see `deferd help {meant}`", code=2)
    parser = _parser(flags_of=() if asked is None else (asked,))
    given = parser.parse_args(words)
    if given.command is None:
        parser.print_help()
        return 2
    if given.command in COMMANDS:
        return _run_command(COMMANDS[given.command], given)
    if given.command == "key":
        with _service_extra("key"):
            from deferd.cli import key as key_command

        return key_command.run(given)
    flags = {name: value for name, value in vars(given).items() if name != "command"}
    return _bench(flags) if given.command == "bench" else _serve(flags)


def _command_in(words: list[str]) -> tuple[list[str], str | None]:
    """The words with aliases, `help` and `version` put as argparse knows them; and the command that they ask for."""
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), None)
    if at is None:
        return words, None
    if words[at] == "version":
        return ["--version"], None
    if words[at] == "help":
        of = ALIASES.get(words[at + 1], words[at + 1]) if words[at + 1 :] else None
        return (["--help"], None) if of is None or of in _WORDS else ([of, "--help"], of)
    asked = ALIASES.get(words[at], words[at])
    return [*words[:at], asked, *words[at + 1 :]], asked


def version() -> str:
    """The installed version of the package, such as ``0.1.0``."""
    try:
        return metadata.version("deferd")
    except metadata.PackageNotFoundError:
        return "(not installed)"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else here does."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class, but what is unknown is refused here, where the flags of the command are known."""
        given, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = {flag.lstrip("-"): flag for flag in self._option_string_actions}
            close = difflib.get_close_matches(unknown[0].partition("=")[0].lstrip("-"), flags, n=1)
            hint = f": is {flags[close[0]]} meant?" if close and unknown[0].startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return given, unknown

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        sys.exit(_fail(f"{text} (see {self.prog} --help)", code=2))


def _parser(*, flags_of: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the flags of these commands. Those of others would be made for nothing."""
    parser = _Parser(
        prog="deferd",
        description="A delayed-job service: put a job with a delay, and one consumer gets it when it is due.",
        epilog=f"{_listing()}\n`deferd help COMMAND` has flags and examples.\n\n{EXIT_CODES}",
        usage="deferd COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"deferd {version()}")
    listed_by_argparse = len(flags_of) > 1  # for completion; the help's own list is in groups
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        prog="deferd",
        help="what to do" if listed_by_argparse else argparse.SUPPRESS,
    )
    plain: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    serve = commands.add_parser(
        "serve",
        help=_SERVE,
        description="Run the service until SIGTERM, SIGHUP or Ctrl-C. Each setting is a flag and an environment "
        "variable; the flag wins.",
        epilog=EXAMPLES,
        **plain,
    )
    if "serve" in flags_of:
        _add_settings(serve)
    bench = commands.add_parser("bench", help=_BENCH, **plain)
    if "bench" in flags_of:
        from deferd.bench import options

        bench.description, bench.epilog = options.DESCRIPTION, options.EXAMPLES
        options.add_flags(bench)
    key = commands.add_parser("key", help=_KEY, allow_abbrev=False)
    if "key" in flags_of:
        with _service_extra("key"):
            from deferd.cli import key as key_command

        key_command.add_flags(key)
    for command in COMMANDS.values():
        added = commands.add_parser(command.name, help=command.about, allow_abbrev=False)
        if command.name in flags_of:
            command.describe(added)
            if command.name == "config" and _has_service():
                _add_settings(added.add_argument_group("the service's settings"))
    return parser


def _listing() -> str:
    about = {"serve": (PROCESSES, _SERVE), "bench": (TOOLS, _BENCH), "key": (TOOLS, _KEY)}
    about |= {command.name: (command.group, command.about) for command in COMMANDS.values()}
    parts = []
    for group in (PROCESSES, PRODUCERS, CONSUMERS, TOPICS, TOOLS):
        names = [name for name, (its_group, _) in about.items() if its_group == group]
        parts.append(f"{group}:\n" + "".join(f"  {name:<11} {about[name][1]}\n" for name in names))
    return "\n".join(parts)


def _run_command(command: Command, given: argparse.Namespace) -> int:
    if command.name == "completion":
        given.whole_parser = _whole_parser
    if command.name == "config":
        given.service_settings = _service_settings(vars(given)) if _has_service() else _WITHOUT_SERVICE
    from deferd.cli.run import run

    try:
        return run(command, given)
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in _EXTRAS:
            raise
        package = exc.name.partition(".")[0]
        what, extra = _EXTRAS[package]
        return _fail(f"`deferd {command.name}` needs {what}, and {package} is missing: pip install 'deferd[{extra}]'")


_WITHOUT_SERVICE = "the service is not installed here: pip install 'deferd[server]'"


def _has_service() -> bool:
    """Whether the settings of the service can be read, which takes a part of what its extra brings."""
    try:
        import deferd.settings  # noqa: F401 (only whether it can be imported)
    except ModuleNotFoundError as exc:
        if (exc.name or "deferd").partition(".")[0] == "deferd":
            raise
        return False
    return True


def _whole_parser() -> argparse.ArgumentParser:
    names = ["bench", *COMMANDS]
    return _parser(flags_of=["serve", "key", *names] if _has_service() else names)


def _service_settings(given: dict[str, Any]) -> ServiceSettings:
    from deferd.cli.config import ServiceSettings, Setting
    from deferd.settings import Settings, SettingsError, default_text, flag, load_settings, unknown_variables, variable

    flags = {name: value for name, value in given.items() if name in Settings.model_fields}
    problems: list[str] = []
    try:
        load_settings(flags)
    except SettingsError as exc:
        problems = exc.problems
    settings = []
    for name, field in Settings.model_fields.items():
        of_variable = os.environ.get(variable(name)) or None  # an empty one counts as none
        text, source = (
            (flags[name], "flag")
            if name in flags
            else (of_variable, "env")
            if of_variable is not None
            else (default_text(name), "default")
        )
        secret = "SecretStr" in str(field.annotation)
        shown = None if secret else text
        settings.append(Setting(name, flag(name), variable(name), shown, source, secret))
    of_client = {setting.variable for setting in OF_CLIENT.values()}
    return ServiceSettings(settings, problems, unknown_variables(name for name in os.environ if name not in of_client))


class _JoinWithCommas(argparse.Action):
    """A flag that may be repeated; its values are joined as the environment variable has them."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        """Add one value."""
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, str(values) if before is None else f"{before},{values}")


def _add_settings(parser: argparse._ActionsContainer) -> None:
    with _service_extra():
        from deferd.settings import Settings, default_text, flag, variable

    for name, field in Settings.model_fields.items():
        default = default_text(name)
        about = f"{field.description}" + (f" Default: {default}." if default else "")
        kind: dict[str, Any] = {"metavar": "SECONDS" if field.annotation is float else name.rpartition("_")[2].upper()}
        if field.annotation is bool:
            kind = {"metavar": "true|false", "nargs": "?", "const": "true"}
        elif get_origin(field.annotation) is tuple:
            kind |= {"action": _JoinWithCommas}
        parser.add_argument(
            flag(name),
            **kind,
            dest=name,
            help=f"{about} [{variable(name)}]".replace("%", "%%"),
            default=argparse.SUPPRESS,
        )


def _serve(flags: dict[str, str]) -> int:
    with _service_extra():
        from deferd.settings import SettingsError, load_settings, problem, unknown_variables
        from deferd.store.url import StoreUrlError, parse_store_url

    try:
        settings = load_settings(flags)
        if settings.redis_url is not None:
            parse_store_url(settings.redis_url.get_secret_value())
    except SettingsError as exc:
        return _fail(*exc.problems, code=2)
    except StoreUrlError as exc:
        return _fail(problem("redis_url", "", wanted=str(exc)), code=2)
    with _service_extra():
        from deferd.server import run  # after the settings: this import takes a second

    return run.run(settings, version=version(), warnings=unknown_variables(os.environ))


def _bench(flags: dict[str, Any]) -> int:
    try:
        with _extra("bench", "tables and progress bars", "cli"):
            from deferd.bench import command  # serve does without it
    except KeyboardInterrupt:  # the import takes half a second, and nothing has begun
        return 130

    if url := os.environ.get("DEFERD_URL"):  # as for the other commands; of several replicas the first
        flags.setdefault("url", url.partition(",")[0])
    as_json, histogram = flags.pop("json"), flags.pop("histogram")
    return command.run(flags, as_json=as_json, histogram=histogram)


def _service_extra(command: str = "serve") -> contextlib.AbstractContextManager[None]:
    return _extra(command, "the service", "server")


@contextlib.contextmanager
def _extra(command: str, what: str, extra: str) -> Iterator[None]:
    """Around imports of what only an extra of the package brings: says so and exits when it is not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "deferd").partition(".")[0] == "deferd":
            raise
        sys.exit(_fail(f"`deferd {command}` needs {what}, and {exc.name} is missing: pip install 'deferd[{extra}]'"))


def _fail(*sentences: str, code: int = 1) -> int:
    for sentence in sentences:
        print(f"deferd: {sentence}", file=sys.stderr)  # noqa: T201 (the command's own words)
    return code

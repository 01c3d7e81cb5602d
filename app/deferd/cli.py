"""The command `deferd`. The flags of `serve` are made from `deferd.settings.Settings`: nothing is declared twice.

The base install is the client alone, so the service, and what measures it, are imported only when they are asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

EXAMPLES = """examples:
  deferd serve
  deferd serve --host 0.0.0.0 --port 8000 --data-dir /var/lib/deferd
  DEFERD_REDIS_URL=redis://:password@db.example:6379 deferd serve --workers 4
"""
_WORKER_PROCESS = "worker-process"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (those of the process by default) and return its exit code.

    0: it did what it was asked. 1: it cannot (a store that refuses, a port that is taken). 2: wrong usage or a wrong
    setting. Why is said in a line on standard error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == [_WORKER_PROCESS]:  # how a supervisor starts its workers; not for people
        from deferd.supervisor import work  # noqa: PLC0415

        return work(int(words[1]))
    parser = _parser(flags_of=next((word for word in words if not word.startswith("-")), None))
    given = parser.parse_args(words)
    if given.command is None:
        parser.print_help()
        return 2
    flags = {name: value for name, value in vars(given).items() if name != "command"}
    return _bench(flags) if given.command == "bench" else _serve(flags)


def version() -> str:
    """The installed version of the package, such as ``0.1.0``."""
    try:
        return metadata.version("deferd")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _parser(*, flags_of: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deferd",
        description="A delayed-job service: put a job with a delay, and one consumer gets it when it is due.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"deferd {version()}")
    commands = parser.add_subparsers(dest="command", title="commands")
    serve = commands.add_parser(
        "serve",
        help="run the service",
        description="Run the service until SIGTERM or Ctrl-C. Each setting is a flag and an environment variable; "
        "the flag wins.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if flags_of == "serve":
        _add_settings(serve)
    bench = commands.add_parser(
        "bench",
        help="measure a running deployment, to size it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if flags_of == "bench":
        from deferd.bench import options  # noqa: PLC0415

        bench.description, bench.epilog = options.DESCRIPTION, options.EXAMPLES
        options.add_flags(bench)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    with _service_extra():
        from deferd.settings import Settings, default_text, flag, variable  # noqa: PLC0415

    for name, field in Settings.model_fields.items():
        default = default_text(name)
        about = f"{field.description}" + (f" Default: {default}." if default else "")
        parser.add_argument(
            flag(name),
            dest=name,
            metavar="SECONDS" if field.annotation is float else name.rpartition("_")[2].upper(),
            help=f"{about} [{variable(name)}]".replace("%", "%%"),
            default=argparse.SUPPRESS,
        )


def _serve(flags: dict[str, str]) -> int:
    with _service_extra():
        from deferd.settings import SettingsError, load_settings, problem, unknown_variables  # noqa: PLC0415
        from deferd.store.address import AddressError, parse_address  # noqa: PLC0415

    try:
        settings = load_settings(flags)
        if settings.redis_url is not None:
            parse_address(settings.redis_url.get_secret_value())
    except SettingsError as exc:
        return _fail(*exc.problems, code=2)
    except AddressError as exc:
        return _fail(problem("redis_url", "", wanted=str(exc)), code=2)
    with _service_extra():
        from deferd import serve  # noqa: PLC0415 (after the settings: this import takes a second)

    return serve.run(settings, version=version(), warnings=unknown_variables(os.environ))


def _bench(flags: dict[str, Any]) -> int:
    try:
        with _extra("bench", "tables and progress bars", "cli"):
            from deferd.bench import command  # noqa: PLC0415 (serve does without it)
    except KeyboardInterrupt:  # the import takes half a second, and nothing has begun
        return 130

    as_json, histogram = flags.pop("json"), flags.pop("histogram")
    return command.run(flags, as_json=as_json, histogram=histogram)


def _service_extra() -> contextlib.AbstractContextManager[None]:
    return _extra("serve", "the service", "server")


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

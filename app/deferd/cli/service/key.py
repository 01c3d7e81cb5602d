"""`deferd key`: make, list and revoke the keys of a service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

from deferd.api.auth.api_keys import KeysRefused
from deferd.api.auth.key_source import BOUNDS, NoSuchKey, make_key, read_keys, revoke_key
from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import CommandGroup, fail
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import all_of, json_option
from deferd.cli.framework.output import Column
from deferd.contract.scopes import Scope
from deferd.settings import flag, variable

_EPILOG = """examples:
  deferd key new --name shop --scope put --scope cancel --topic 'orders.*' >> keys.toml
  deferd key list --keys-file keys.toml
  deferd key revoke shop --keys-file keys.toml

`deferd key new --help` shows the options of a new key."""
_NEW_EPILOG = """examples:
  deferd key new --name shop --scope put --scope cancel --topic 'orders.*' >> keys.toml
  deferd key new --name closer --scope pop --topic orders.close --requests-per-second 50 --burst 100

The entry is written to standard output, the token to standard error; with --json both to standard output.
The token is shown only now; the service keeps its hash."""
_REVOKE_EPILOG = """exit codes: 0 done; 1 the file cannot be replaced; 2 wrong usage or a wrong file; 3 no such key"""


@click.group(
    cls=CommandGroup, epilog=_EPILOG, subcommand_metavar="ACTION ...", options_metavar="", no_args_is_help=False
)
def key() -> None:
    """Make, list and revoke keys. `deferd serve` reads them from its --keys-file."""


_keys_file_option: Final = click.option(
    flag("keys_file"),
    type=click.Path(path_type=Path),
    envvar=variable("keys_file"),
    metavar="FILE",
    help=f"the TOML file with the keys [{variable('keys_file')}]",
)


@key.command("new", epilog=_NEW_EPILOG)
@click.option("--name", required=True, help="its unique name, which logs show")
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="what it allows; repeatable. admin allows everything",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="PATTERN",
    help="a topic that it may use; `*` stands for any characters; repeatable. Default: all topics",
)
@click.option("--requests-per-second", type=float, metavar="RATE", help="its average request rate")
@click.option("--burst", type=int, metavar="NUMBER", help="most requests at once. Default: one second's")
@all_of(
    click.option(f"--{name.replace('_', '-')}", type=int, metavar="NUMBER", help=about)
    for name, about in BOUNDS.items()
)
@json_option("print a JSON object with the name, the token and the entry")
def new(name: str, scopes: tuple[str, ...], topics: tuple[str, ...], as_json: bool, **bounds: float | None) -> None:
    """Make a token, and the entry with its hash for the --keys-file of `deferd serve`."""
    try:
        token, entry = make_key(name, scopes, topics, bounds)
    except KeysRefused as error:
        raise UsageError(f"the key would be {error}") from None
    if as_json:
        output.json_line({"name": name, "token": token, "entry": entry})
        return
    sys.stdout.write(f"\n{entry}")  # the file it is appended to may not end in a newline
    sys.stdout.flush()
    sys.stderr.write(f"the token, shown this once: {token}\n")


@key.command("list", epilog=_REVOKE_EPILOG)
@json_option()
@_keys_file_option
def list_(as_json: bool, keys_file: Path | None) -> None:
    """Show names, scopes and topics, and no secret."""
    try:
        keys = read_keys(_required(keys_file))
    except KeysRefused as error:
        raise UsageError(str(error)) from None
    if as_json:
        for entry in keys:
            output.json_line(entry)
    else:
        _show(keys)


@key.command("revoke", epilog=_REVOKE_EPILOG)
@click.argument("name", help="the key's name")
@_keys_file_option
def revoke(name: str, keys_file: Path | None) -> int:
    """Remove a key from the keys file, which is replaced as a whole. A running service reads it again within about a
    second; a container that has the file alone mounted reads it when it is restarted.
    """
    file = _required(keys_file)
    try:
        revoke_key(file, name)
    except KeysRefused as error:
        raise UsageError(str(error)) from None
    except NoSuchKey as error:
        return fail(str(error), code=exit_codes.REFUSED)
    except OSError as error:
        return fail(f"{file} cannot be replaced: {error.strerror or error}")
    output.line(f"{name} revoked")
    return exit_codes.DONE


def _required(keys_file: Path | None) -> Path:
    if keys_file is None or keys_file == Path():
        raise UsageError(f"{flag('keys_file')} ({variable('keys_file')}) is missing: it names the file of the keys")
    return keys_file


def _show(keys: list[dict[str, Any]]) -> None:
    columns = [Column(name) for name in ("NAME", "SCOPES", "TOPICS", "BOUNDS")]
    output.show_table(columns, [_row(key) for key in keys])


def _row(key: dict[str, Any]) -> tuple[str, str, str, str]:
    bounds = ", ".join(f"{name} {value}" for name, value in key.items() if name not in {"name", "scopes", "topics"})
    return key["name"], ", ".join(key["scopes"]), ", ".join(key["topics"]), bounds or "-"

"""`deferd key`: make, list and revoke the keys of a service."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from deferd.api.auth import new_key
from deferd.api.auth.api_keys import KeysRefused
from deferd.api.auth.key_file import NoSuchKey, read_keys, revoke_key
from deferd.settings import flag, variable

EXAMPLES = """examples:
  deferd key new --name shop --scope put --scope cancel --topic 'orders.*' >> keys.toml
  deferd key list --keys-file keys.toml
  deferd key revoke shop --keys-file keys.toml

`deferd key new --help` has the flags of a new key.
"""
_FAILED, _USAGE, _REFUSED = 1, 2, 3


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands of `deferd key` and their flags."""
    parser.description = "Make, list and revoke keys. See --keys-file of `deferd serve` for where they go."
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make a token, and the entry with its hash", allow_abbrev=False)
    new_key.add_flags(new)
    listed = actions.add_parser("list", help="show names, scopes and topics, and no secret", allow_abbrev=False)
    listed.add_argument("--json", action="store_true", help="print JSON, one object a line")
    revoke = actions.add_parser("revoke", help="take a key out of the keys file", allow_abbrev=False)
    revoke.description = (
        "Take a key out of the keys file, which is replaced as a whole. A running service reads it again within about "
        "a second; a container that has the file alone mounted, when it is restarted."
    )
    revoke.add_argument("name", metavar="NAME", help="the key's name")
    for parser_with_file in (listed, revoke):
        parser_with_file.add_argument(
            flag("keys_file"), metavar="FILE", help=f"the TOML file with the keys [{variable('keys_file')}]"
        )


def run(given: argparse.Namespace) -> int:
    """Do it and return 0; 1 when the file cannot be replaced, 2 for wrong usage or a wrong file, 3 for no such key."""
    if given.action == "new":
        return new_key.run(given)
    file = given.keys_file or os.environ.get(variable("keys_file"))
    if not file:
        return _fail(_USAGE, f"{flag('keys_file')} ({variable('keys_file')}) is missing: it names the file of the keys")
    try:
        if given.action == "list":
            _show(read_keys(Path(file)), as_json=given.json)
        else:
            revoke_key(Path(file), given.name)
            sys.stdout.write(f"{given.name} revoked\n")
    except KeysRefused as exc:
        return _fail(_USAGE, str(exc))
    except NoSuchKey as exc:
        return _fail(_REFUSED, str(exc))
    except OSError as exc:
        return _fail(_FAILED, f"{file} cannot be replaced: {exc.strerror or exc}")
    return 0


def _show(keys: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.writelines(json.dumps(key, separators=(",", ":")) + "\n" for key in keys)
        return
    rows = [("NAME", "SCOPES", "TOPICS", "BOUNDS"), *map(_row, keys)]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for row in rows:
        line = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        sys.stdout.write(f"{line.rstrip()}\n")


def _row(key: dict[str, Any]) -> tuple[str, str, str, str]:
    bounds = ", ".join(f"{name} {value}" for name, value in key.items() if name not in {"name", "scopes", "topics"})
    return key["name"], ", ".join(key["scopes"]), ", ".join(key["topics"]), bounds or "-"


def _fail(code: int, sentence: str) -> int:
    sys.stderr.write(f"deferd: {sentence}\n")
    return code

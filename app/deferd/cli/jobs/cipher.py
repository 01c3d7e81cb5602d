"""`deferd cipher`: make keys for bodies that only the application can read."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from deferd.cli.framework import output
from deferd.cli.framework.command import command, command_group
from deferd.cli.framework.exit_codes import UsageError


@command_group(
    "deferd cipher new-key k1 > cipher-keys",
    "deferd put mail.welcome '\"ada@example.com\"' --cipher-keys cipher-keys",
    "deferd cipher new-key k2 >> cipher-keys  # the first line encrypts: move it there when all readers have it",
    name="cipher",
)
def cipher() -> None:
    """Make keys that encrypt bodies. Commands read them from --cipher-keys, programs with Cipher.from_file."""


@command("deferd cipher new-key", "deferd cipher new-key k2 >> cipher-keys", group=cipher, name="new-key")
@click.argument("id", required=False, help="its id, which the service sees; default: k and today's date")
def new_key(id: str | None) -> None:
    """Print a new key, ID:BASE64. Who has it can read what it encrypts: keep it out of the service and its store."""
    from deferd.client import Cipher

    try:
        output.line(Cipher.new_key(f"k{datetime.now(UTC):%Y%m%d}" if id is None else id))
    except ValueError as error:
        raise UsageError(str(error)) from None

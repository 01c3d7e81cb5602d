"""`completion`: a script that makes a shell complete commands, flags and their choices."""

from __future__ import annotations

import argparse

from deferd.cli import exit_codes


def completion(given: argparse.Namespace) -> int:
    """Print the script for a shell; `given.whole_parser` makes the parser with the flags of all commands."""
    import shtab  # part of an extra

    print(shtab.complete(given.whole_parser(), given.shell))  # noqa: T201 (the command's output)
    return exit_codes.DONE

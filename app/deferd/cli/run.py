"""Runs a command from its arguments to its exit code: every expected failure is one line and a code."""

from __future__ import annotations

import argparse
import importlib
import sys

from deferd.cli import exit_codes
from deferd.cli.exit_codes import UsageError
from deferd.cli.output import complain
from deferd.cli.parser import Command
from deferd.contract.errors import DeferdError


def run(command: Command, given: argparse.Namespace) -> int:
    """Do what the command says and return its exit code; see `deferd.cli.exit_codes`."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        carry_out = getattr(importlib.import_module(f"deferd.cli.{command.module}"), command.function)
        return int(carry_out(given))
    except UsageError as error:
        complain(str(error))
        return exit_codes.USAGE
    except DeferdError as error:
        from deferd.cli import error_messages

        for sentence in error_messages.sentences(error, given):
            complain(sentence)
        return exit_codes.of_error(error)

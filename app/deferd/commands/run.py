"""Runs a command from its arguments to its exit code: every expected failure is one line and a code."""

from __future__ import annotations

import argparse
import importlib
import sys

from deferd.commands import exits
from deferd.commands.exits import UsageError
from deferd.commands.output import complain
from deferd.commands.parser import Command
from deferd.errors import DeferdError


def run(command: Command, given: argparse.Namespace) -> int:
    """Do what the command says and return its exit code; see `deferd.commands.exits`."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        carry_out = getattr(importlib.import_module(f"{command.package}.{command.module}"), command.function)
        return int(carry_out(given))
    except UsageError as error:
        complain(str(error))
        return exits.USAGE
    except DeferdError as error:
        from deferd.commands import failures

        for sentence in failures.sentences(error, given):
            complain(sentence)
        return exits.of_error(error)

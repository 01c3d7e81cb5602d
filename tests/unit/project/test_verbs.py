"""One verb for one action in every layer, and every command has a place in the documents."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from deferd.api.resp import job_commands
from deferd.api.resp.execution import COMMANDS as RESP_COMMANDS
from deferd.api.resp.options import Options
from deferd.client import AsyncClient

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts/write_verbs.py"))
VERBS: list[str] = SCRIPT["VERBS"]
OF_OPERATIONS_WITH_OTHER_METHODS = {"repair", "test", "redrive", "purge"}
"""`repair` is an argument of the audit, a test of a push is a call of the pusher, and the two others are sweeps."""


def test_a_command_of_the_redis_protocol_has_the_verb_of_its_operation() -> None:
    operations = [operation for operation in SCRIPT["OPERATIONS"] if operation.command]
    commands = sorted(operation.command for operation in operations)
    assert commands == sorted(f"DEFERD.{operation.id.partition('_')[0].upper()}" for operation in operations)
    assert commands == sorted(name.decode() for name in RESP_COMMANDS if name.startswith(b"DEFERD."))


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("POP", job_commands.POP_OPTIONS),
        ("FINISH", job_commands.FINISH_OPTIONS),
        ("RELEASE", job_commands.RELEASE_OPTIONS),
        ("TOUCH", job_commands.TOUCH_OPTIONS),
        ("BURY", job_commands.BURY_OPTIONS),
        ("CANCEL", job_commands.CANCEL_OPTIONS),
    ],
)
def test_the_usage_of_a_command_names_its_options(verb: str, options: Options) -> None:
    """It is a docstring, and the glossary has it for users."""
    usage = SCRIPT["_usage"](f"DEFERD.{verb}".encode())
    assert sorted(re.findall(r"\[([A-Z]+)", usage)) == sorted(name.decode() for name in options)


def test_the_client_has_a_method_with_each_verb() -> None:
    assert set(VERBS) <= {name.partition("_")[0] for name in dir(AsyncClient)}


def test_the_engine_has_a_method_with_each_verb() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "app/deferd/engine").rglob("*.py")]
    methods = re.findall(r"^    (?:async )?def ([a-z]+)\w*\(", "\n".join(sources), re.MULTILINE)
    assert set(VERBS) - set(methods) == OF_OPERATIONS_WITH_OTHER_METHODS


def test_each_command_is_in_the_table_of_verbs_or_on_the_page_of_the_command_line() -> None:
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    groups = set(re.findall(r"`([a-z]+)`", page.partition("| group | commands |")[2].partition("\n\n")[0]))
    of_verbs = {name for verb in VERBS for name in SCRIPT["commands_of"](verb)}
    assert {name for name in SCRIPT["commands"]() if " " not in name} - of_verbs == groups

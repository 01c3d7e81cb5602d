"""The table of verbs in the glossary: each name in it exists, has the verb in it, and no action is missing."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from deferd.api.resp.command_table import COMMANDS as RESP_COMMANDS
from deferd.cli.main import deferd
from deferd.client import AsyncClient
from deferd.contract import operations
from deferd.contract.operations.operation import Operation
from deferd.engine import metrics
from deferd.engine.events import event

ROOT = Path(__file__).resolve().parents[3]
ENGINE = ROOT / "app/deferd/engine"
READS = re.compile(r"(get|list|stream|explain|check)_(?!job$|jobs$)|list_jobs$|explain_job$")
"""Operations that are named by what they read."""
COLUMNS = ("operation", "client", "Redis protocol", "command", "engine", "script", "event", "metric")


def verbs() -> dict[str, dict[str, list[str]]]:
    """By verb: the names in each column."""
    table = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("\n## Verbs\n")[2]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    assert [cell.strip(" *") for cell in rows[0]] == ["verb", *COLUMNS]
    return {
        verb.strip(): {column: re.findall(r"`([^`]+)`", cell) for column, cell in zip(COLUMNS, cells, strict=True)}
        for verb, *cells in rows[1:]
    }


def operation_ids() -> set[str]:
    names = [f"{operations.__name__}.{module.name}" for module in pkgutil.iter_modules(operations.__path__)]
    names.remove(f"{operations.__name__}.test_clock")  # no part of the contract
    rows = [row for name in names for row in vars(importlib.import_module(name)).values()]
    return {row.id for row in rows if isinstance(row, Operation)}


def commands() -> Iterator[str]:
    """Commands, and actions such as `push set`."""
    context = click.Context(deferd)
    for name in deferd.list_commands(context):
        yield name
        command = deferd.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (f"{name} {action}" for action in command.list_commands(context))


def names_of(column: str) -> set[str]:
    """The names that a layer has."""
    if column == "operation":
        return operation_ids()
    if column == "client":
        return {name for name in dir(AsyncClient) if not name.startswith("_")}
    if column == "Redis protocol":
        return {name.decode() for name in RESP_COMMANDS}
    if column == "command":
        return set(commands())
    if column == "engine":
        text = "\n".join(path.read_text(encoding="utf-8") for path in ENGINE.rglob("*.py"))
        return set(re.findall(r"^    (?:async )?def ([a-z]\w*)\(", text, re.MULTILINE))
    if column == "script":
        return {path.stem for path in ENGINE.glob("lua/*.lua")}
    if column == "event":
        return {kind for kind, _ in event._KINDS.values()}
    counters = [value for value in vars(metrics).values() if hasattr(value, "_labelnames") and value._type == "counter"]
    return {f"{counter._name}_total" for counter in counters}


@pytest.mark.parametrize("column", COLUMNS)
def test_each_name_in_the_table_of_verbs_exists_and_has_its_verb_in_it(column: str) -> None:
    existing = names_of(column)
    stem = 3 if column == "event" else None  # cancelled, redriven
    for verb, names in verbs().items():
        for name in names[column]:
            assert name in existing
            assert verb[:stem] in name.lower()


def test_the_table_of_verbs_has_every_operation_that_is_no_read() -> None:
    listed = [name for names in verbs().values() for name in names["operation"]]
    assert sorted(listed) == sorted(name for name in operation_ids() if not READS.match(name))


def test_the_table_of_verbs_has_every_command_of_the_redis_protocol_and_every_verb_of_the_client() -> None:
    of_resp = {name for names in verbs().values() for name in names["Redis protocol"]}
    assert of_resp == {name for name in names_of("Redis protocol") if name.startswith("DEFERD.")}
    of_client = {name for names in verbs().values() for name in names["client"]}
    assert {name for name in names_of("client") if name.partition("_")[0] in verbs()} - of_client == {
        "preview_cancel_all",
        "preview_purge",
        "preview_redrive",
    }

"""Write the tables of verbs and of operations in `docs/glossary.md`, from what each layer has.

python scripts/write_verbs.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from deferd.api.openapi.document import TAGS
from deferd.api.resp.execution import COMMANDS as RESP_COMMANDS
from deferd.cli.main import deferd
from deferd.client import AsyncClient
from deferd.contract.operations.events import EVENT_KINDS
from deferd.contract.operations.operation import all_operations
from deferd.engine import metrics

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/glossary.md"
_READ = re.compile("(list|stream|explain)_|get_(?!job$)|check_(?!jobs$)")
"""Operations that are named by what they read."""
_PAST_ENDING_MAX = 3
"""`popped`, `cancelled`, `redriven`."""
_OF_NO_VERB = {"withdraw_run"}
"""Scripts with a verb in their name that is a noun there."""
_BY_TAG = {str(tag["name"]): place for place, tag in enumerate(TAGS)}
OPERATIONS = sorted(
    (operation for operation in all_operations() if not operation.path.startswith("/testing/")),
    key=lambda operation: _BY_TAG[operation.tag],
)
VERBS = sorted({operation.id.partition("_")[0] for operation in OPERATIONS if not _READ.match(operation.id)})


def render() -> str:
    """The text of the file."""
    text = FILE.read_text(encoding="utf-8")
    text = _with_table(text, "Verbs", ("verb", "operation", *_names_of("put"), "script*"), map(_verb, VERBS))
    return _with_table(text, "Operations", ("operation", "HTTP", "scope", "does"), _operations())


def _verb(verb: str) -> tuple[str, ...]:
    operations = [operation.id for operation in OPERATIONS if operation.id.startswith(f"{verb}_")]
    names = [_codes(column) for column in _names_of(verb).values()]
    return verb, _codes(one for one in operations if not _READ.match(one)), *names, _codes(_scripts(verb))


def _names_of(verb: str) -> dict[str, list[str]]:
    """The names with this verb in each layer that users see, beside the operations."""
    return {
        "client": [name for name in dir(AsyncClient) if name.partition("_")[0] == verb],
        "Redis protocol": [_usage(name) for name in RESP_COMMANDS if name == f"DEFERD.{verb.upper()}".encode()],
        "command": commands_of(verb),
        "event": [kind for kind in EVENT_KINDS if kind.startswith(verb) and len(kind) <= len(verb) + _PAST_ENDING_MAX],
        "metric": [name for name in _counters() if re.fullmatch(f"deferd_{verb}e?s_total", name)],
    }


def _usage(name: bytes) -> str:
    """A command of the Redis protocol with its arguments, as its function describes it."""
    return (inspect.getdoc(RESP_COMMANDS[name].run) or "").split("``")[1]


def commands_of(verb: str) -> list[str]:
    """Those that are the verb, or an action that is."""
    return [name for name in commands() if verb in name.split(" ")]


def commands() -> Iterator[str]:
    """Commands, and actions such as `push set`."""
    context = click.Context(deferd)
    for name in deferd.list_commands(context):
        yield name
        command = deferd.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (f"{name} {action}" for action in command.list_commands(context))


def _scripts(verb: str) -> list[str]:
    names = sorted({path.stem for path in (ROOT / "app/deferd/engine/lua").glob("*.lua")} - _OF_NO_VERB)
    return [name for name in names if verb in (name.partition("_")[0], name.rpartition("_")[2])]


def _counters() -> list[str]:
    collectors = [value for value in vars(metrics).values() if hasattr(value, "_labelnames")]
    return [f"{collector._name}_total" for collector in collectors if collector._type == "counter"]


def _operations() -> Iterator[tuple[str, ...]]:
    for operation in OPERATIONS:
        yield f"`{operation.id}`", f"`{operation.method} {operation.path}`", operation.scope or "", operation.summary


def _codes(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def _with_table(text: str, heading: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """The text with this table in place of the first one behind the heading."""
    lines = [_row(columns), _row("---" for _ in columns).replace(" ", ""), *map(_row, rows)]
    start = text.index("\n|", text.index(f"\n## {heading}\n")) + 1
    end = re.compile(r"(\|.*\n)+").match(text, start).end()
    return text[:start] + "\n".join(lines) + "\n" + text[end:]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")

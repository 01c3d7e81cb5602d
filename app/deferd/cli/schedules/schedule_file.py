"""Schedules as a TOML file declares them: a table ``[schedules.NAME]`` for each, with the fields of the HTTP API."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deferd.cli.framework.exit_codes import UsageError
from deferd.client.schedules import definition
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.limits import TOPIC_PATTERN


def read_schedules(file: Path, prefix: str = "") -> dict[str, dict[str, Any]]:
    """The definitions in a file by their names, as JSON objects. What they contain is not checked.

    Raises:
        UsageError: the file cannot be read, or is not of this form.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    tables = content.pop("schedules", {})
    if content or not isinstance(tables, dict):
        found = f"it has {', '.join(content)}" if content else "`schedules` is not a table"
        raise UsageError(f"{file} must have nothing but tables [schedules.NAME]: {found}")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{file}: schedule {name} must be a table [schedules.{name}] and not {table!r:.80}")
        if not re.fullmatch(TOPIC_PATTERN, name):
            raise UsageError(f"{file}: schedule {name} must have a name such as nightly or shop.orders")
        if not name.startswith(prefix):
            raise UsageError(f"{file}: schedule {name} does not begin with {prefix!r}, which is the --prefix")
    return {name: _definition(file, name, table) for name, table in tables.items()}


def _definition(file: Path, name: str, table: dict[str, Any]) -> dict[str, Any]:
    try:
        return definition(table)
    except InvalidInput as error:
        raise invalid(file, name, error.field_errors) from None


def invalid(file: Path, name: str, errors: Iterable[FieldError]) -> UsageError:
    """The error that names the file, the schedule and the fields."""
    texts = []
    for error in errors:
        path = [str(step) for step in error.path]
        if path[:1] == ["body"]:
            del path[0]
        field = "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in path).lstrip(".")
        shown = "" if error.value is None or isinstance(error.value, dict) else f" (it is {error.value!r:.80})"
        texts.append(f"{field} {error.message}{shown}".strip())
    return UsageError(f"{file}: schedule {name}: {'; '.join(texts)}")

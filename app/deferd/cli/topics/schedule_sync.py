"""The work of `deferd schedules sync`: reads the schedules of a file and compares them with the service's.

A TOML file declares a schedule by a table ``[schedules.NAME]`` with the fields of the HTTP API.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from deferd.cli.framework import output
from deferd.cli.framework.exit_codes import UsageError
from deferd.client import Client
from deferd.client.scheduling import definition, preview_schedule, put_schedule
from deferd.contract.errors import InvalidInput, ScheduleNotFound
from deferd.contract.limits import TOPIC_PATTERN
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.contract.timestamps import format_instant

_ABSENT = object()
_MARKS = {"added": "+", "changed": "~", "removed": "-"}


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
    definitions = {}
    for name, table in tables.items():
        with _errors_of(file, name):
            definitions[name] = definition(table)
    return definitions


@contextlib.contextmanager
def _errors_of(file: Path, name: str) -> Iterator[None]:
    """Raise a UsageError that names the file, the schedule and the fields in place of InvalidInput."""
    try:
        yield
    except InvalidInput as invalid:
        texts = []
        for error in invalid.field_errors:
            path = [str(step) for step in error.path]
            if path[:1] == ["body"]:
                del path[0]
            field = "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in path).lstrip(".")
            shown = "" if error.value is None or isinstance(error.value, dict) else f" (it is {error.value!r:.80})"
            texts.append(f"{field} {error.message}{shown}".strip())
        raise UsageError(f"{file}: schedule {name}: {'; '.join(texts)}") from None


@dataclass(frozen=True)
class Difference:
    """What a sync does with one schedule.

    `what`: it is `added`, `changed` or `removed`, or stays `unchanged`. `fields` has the old and the new value of each
    field that differs; a field of the job is named ``job.ttr``.
    """

    name: str
    what: str
    definition: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    def changes(self, *, prune: bool) -> bool:
        """Whether the sync changes the service."""
        return self.what in {"added", "changed"} or (self.what == "removed" and prune)

    def apply(self, client: Client, *, prune: bool, dry_run: bool) -> None:
        """Change the service accordingly."""
        if dry_run or not self.changes(prune=prune):
            return
        if self.what != "removed":
            client.send(put_schedule(self.name, self.definition))
            return
        try:
            client.delete_schedule(self.name)
        except ScheduleNotFound:  # somebody else was faster
            return

    def show(self, *, prune: bool, as_json: bool) -> None:
        """Print it, unless it changes nothing; in JSON in any case."""
        kept = self.what == "removed" and not prune
        if as_json:
            what = "unlisted" if kept else self.what
            fields = {name: [None if one is _ABSENT else one for one in pair] for name, pair in self.fields.items()}
            output.json_line({"schedule": self.name, "change": what, "fields": fields})
        elif kept:
            output.hint(f"{self.name} is not in the file and stays; --prune deletes such schedules")
        elif self.what in _MARKS:
            output.line(f"{_MARKS[self.what]} {self.name}")
            for name, (old, new) in self.fields.items():
                values = [_shown(value) for value in (old, new) if self.what == "changed" or value is not _ABSENT]
                output.line(output.printable(f"    {name}: {' -> '.join(values)}"))


def compare(client: Client, file: Path, wanted: Mapping[str, dict[str, Any]], prefix: str) -> list[Difference]:
    """The differences between the file and the service, by name. The service has checked what will be added or changed.

    Raises:
        UsageError: a definition is invalid.
    """
    stored = {one.name: one for one in client.schedules(prefix=prefix or None)}
    differences = []
    for name in sorted(wanted.keys() | stored.keys()):
        if name not in wanted:
            differences.append(Difference(name, "removed"))
            continue
        fields = wanted[name]
        old = _normal(stored[name].definition) if name in stored else {}
        new = _normal(fields)
        if "paused" not in fields:
            old.pop("paused", None)  # a put that does not say it leaves it
        changed = {
            key: (old.get(key, _ABSENT), new.get(key, _ABSENT))
            for key in sorted(old.keys() | new.keys())
            if old.get(key, _ABSENT) != new.get(key, _ABSENT)
        }
        what = "added" if name not in stored else "changed" if changed else "unchanged"
        if what != "unchanged":
            with _errors_of(file, name):
                client.send(preview_schedule(fields, count=1))
        differences.append(Difference(name, what, fields, changed))
    return differences


def _normal(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not defaults, with fields of the job as ``job.NAME``.

    Equal definitions give equal results.
    """
    try:
        schedule = PutSchedule.model_validate(fields)
    except ValidationError:  # the service says what is wrong, or knows more than this client
        return dict(fields)
    found = _values(schedule, exclude_defaults=True)
    # In a job null is a value: no limit, also when the topic has one.
    job = _values(schedule.job, exclude_unset=True)
    found.pop("job", None)
    return found | {f"job.{name}": value for name, value in job.items() if (name, value) != ("body", None)}


def _values(model: BaseModel, **options: Any) -> dict[str, Any]:
    values = model.model_dump(mode="json", by_alias=True, **options)
    for name in values:
        value = getattr(model, name, None)
        if isinstance(value, datetime):
            values[name] = format_instant(value)
    return values


def _shown(value: Any) -> str:
    return "(default)" if value is _ABSENT else output.cell(value)

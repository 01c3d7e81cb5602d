"""Jobs by their names, and typed views of the JSON in responses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from deferd.contract.timestamps import parse_instant


class JsonView:
    """A typed view of a JSON object. `fields` is that object, as it was received."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def _instant(self, name: str) -> datetime | None:
        value = self.fields.get(name)
        return None if value is None else parse_instant(value)


class JobRef(NamedTuple):
    """A job by its name, in place of a Delivery in finish, release, touch and bury.

    Without a receipt the call applies to whichever delivery is live.
    """

    topic: str
    id: str
    receipt: str | None = None

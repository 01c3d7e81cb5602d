"""What a change of settings, schedules, jobs and the like was and is now, for the list of changes.

The list outlives jobs, and keys read it that may not read pushes. So of bodies, secrets, the values of headers and the
paths of URLs it has what an `Unshown` says of them, and that they changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deferd.api.responses import whole
from deferd.contract.errors import NotFound
from deferd.engine.activity_list import FieldValues
from deferd.engine.record import json_bytes

_VALUE_BYTES = 300
_ALL_VALUES_BYTES = 1000
"""Of one change; fields for which there is no room are only named."""
_FIELDS_MAX = 50


class Unshown(NamedTuple):
    """A value that is compared and not recorded; `shown` is said of it."""

    shown: str
    value: Any


async def values_before(read: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """What is there before a change: nothing, or None when it can't be read, which must not keep the change from it."""
    try:
        return await read
    except NotFound:
        return {}
    except Exception:  # noqa: BLE001 (a part of the store is away, or something other than deferd has written it)
        return None


def size_of(body: bytes) -> Unshown:
    """A body: its size."""
    return Unshown("1 byte" if len(body) == 1 else f"{len(body):,} bytes", body)


def names_of(headers: Mapping[str, str]) -> Unshown | None:
    """Headers: their names."""
    return Unshown(", ".join(sorted(headers)), dict(headers)) if headers else None


def host_of(url: str) -> Unshown:
    """A URL up to its host: what follows may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return Unshown(f"{parts.scheme}://{host}{'/…' if parts.path.strip('/') or parts.query else ''}", url)


def changed_fields(was: Mapping[str, Any] | None, now: Mapping[str, Any]) -> tuple[FieldValues, ...]:
    """The fields that differ, of which None is as good as absent; nothing if what was there is not known."""
    if was is None:
        return ()
    found, left = [], _ALL_VALUES_BYTES
    for name in dict.fromkeys((*was, *now)):
        before, after = was.get(name), now.get(name)
        if before == after:
            continue
        values = FieldValues(name, _text(before), _text(after))
        if values.was == values.now:
            values = values._replace(now=f"{values.now}, changed")
        left -= sum(len(text.encode()) for text in values[1:] if text is not None)
        found.append(values if left >= 0 else FieldValues(name))
    return tuple(found[:_FIELDS_MAX])


def _text(value: Any) -> str | None:
    """A value as JSON, cut off; None for none."""
    if value is None:
        return None
    text = value.shown if isinstance(value, Unshown) else json_bytes(whole(value)).decode()
    shown = text.encode()[:_VALUE_BYTES].decode(errors="ignore")
    return text if text == shown else f"{shown}…"

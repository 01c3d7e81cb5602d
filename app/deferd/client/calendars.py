"""Calendars, opening hours under a name: the methods of both clients, and their requests of the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from deferd.client import responses
from deferd.client.json_reading import parsed
from deferd.client.policy_types import WindowDict
from deferd.client.request_body import encode
from deferd.client.requests import ApiRequest
from deferd.client.sender import Sender
from deferd.contract.windows import Window


class Calendar(NamedTuple):
    """A calendar: it is open while at least one of its windows is."""

    name: str
    windows: list[Window]


class CalendarMethods:
    """The operations on calendars. Each raises the error that the service names, or CallFailed."""

    _sender: Sender

    async def put_calendar(self, name: str, windows: Sequence[Window | WindowDict]) -> Calendar:
        """Create or replace a calendar. A change counts for due times that are placed from then on.

        Raises:
            InvalidInput: a window is invalid, or never opens.
        """
        body = encode({"windows": list(windows)})
        return await self._sender.send(ApiRequest("PUT", _path(name), _read, body=body, success=(200, 201)))

    async def calendar(self, name: str) -> Calendar:
        """Get a calendar. Raises CalendarNotFound."""
        return await self._sender.send(ApiRequest("GET", _path(name), _read))

    async def calendars(self) -> list[Calendar]:
        """All calendars, by name."""
        return await self._sender.send(ApiRequest("GET", "/calendars", _read_all))

    async def delete_calendar(self, name: str) -> None:
        """Delete a calendar: what still names it is always open from then on. Raises CalendarNotFound."""
        await self._sender.send(ApiRequest("DELETE", _path(name), responses.read_nothing, repeatable=False))


def _path(name: str) -> str:
    return f"/calendars/{quote(name, safe=':')}"


def _read(content: bytes) -> Calendar:
    return _calendar(parsed(content))


def _read_all(content: bytes) -> list[Calendar]:
    return [_calendar(one) for one in parsed(content)["calendars"]]


def _calendar(fields: Mapping[str, Any]) -> Calendar:
    return Calendar(str(fields["name"]), [Window.model_validate(window) for window in fields["windows"]])

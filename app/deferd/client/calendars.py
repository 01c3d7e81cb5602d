"""Calendars, opening hours under a name: the methods of both clients, and their requests of the HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from deferd.client import responses
from deferd.client.policy_types import WindowDict
from deferd.client.request_body import encode
from deferd.client.requests import ApiRequest
from deferd.client.response_reading import reader_of
from deferd.client.sender import Sender
from deferd.contract.responses.calendars import Calendar, CalendarList
from deferd.contract.windows import Window

_read = reader_of(Calendar)
_read_all = reader_of(CalendarList)


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
        return (await self._sender.send(ApiRequest("GET", "/calendars", _read_all))).calendars

    async def delete_calendar(self, name: str) -> None:
        """Delete a calendar: what still names it is always open from then on. Raises CalendarNotFound."""
        await self._sender.send(ApiRequest("DELETE", _path(name), responses.read_nothing, repeatable=False))


def _path(name: str) -> str:
    return f"/calendars/{quote(name, safe=':')}"

"""Calendars, opening hours under a name: the methods of both clients, and their requests of the HTTP API."""

from __future__ import annotations

from collections.abc import Sequence

from deferd.client.policy_types import WindowDict
from deferd.client.request_body import encode
from deferd.client.requests import request_for
from deferd.client.response_reading import read_nothing
from deferd.client.sender import Sender
from deferd.contract.operations import calendars as operations
from deferd.contract.responses.calendars import Calendar
from deferd.contract.windows import Window


class CalendarMethods:
    """The operations on calendars. Each raises the error that the service names, or CallFailed."""

    _sender: Sender

    async def put_calendar(self, name: str, windows: Sequence[Window | WindowDict]) -> Calendar:
        """Create or replace a calendar. A change counts for due times that are placed from then on.

        Raises:
            InvalidInput: a window is invalid, or never opens.
        """
        body = encode({"windows": list(windows)})
        return await self._sender.send(request_for(operations.PUT_CALENDAR, name, body=body, success=(200, 201)))

    async def calendar(self, name: str) -> Calendar:
        """Get a calendar. Raises CalendarNotFound."""
        return await self._sender.send(request_for(operations.GET_CALENDAR, name))

    async def calendars(self) -> list[Calendar]:
        """All calendars, by name."""
        return (await self._sender.send(request_for(operations.LIST_CALENDARS))).calendars

    async def delete_calendar(self, name: str) -> None:
        """Delete a calendar: what still names it is always open from then on. Raises CalendarNotFound."""
        await self._sender.send(request_for(operations.DELETE_CALENDAR, name).reading(read_nothing))

"""What the service runs on, all topics at a glance, and the key: the methods of both clients."""

from __future__ import annotations

from typing import Any

from deferd.client.inspection import MANY_TOPICS_S
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.response_reading import reader_of
from deferd.client.sender import Sender
from deferd.contract.responses.system import Overview, OwnKey, System

_read_overview, _read_system, _read_key = reader_of(Overview), reader_of(System), reader_of(OwnKey)


def overview(**query: Any) -> ApiRequest[Overview]:
    """`GET /overview`."""
    return ApiRequest("GET", "/overview", _read_overview, query=without_none(**query), wait_s=MANY_TOPICS_S)


def system() -> ApiRequest[System]:
    """`GET /system`."""
    return ApiRequest("GET", "/system", _read_system)


def key() -> ApiRequest[OwnKey]:
    """`GET /key`."""
    return ApiRequest("GET", "/key", _read_key)


class SystemMethods:
    """What the service runs on, a part of ApiMethods."""

    _sender: Sender

    async def overview(
        self, *, sort: str | None = None, name: str | None = None, offset: int | None = None, limit: int | None = None
    ) -> Overview:
        """Get topics at a glance, in any order; see `GET /overview`. `name` is a part of their names."""
        return await self._sender.send(overview(sort=sort, name=name, offset=offset, limit=limit))

    async def system(self) -> System:
        """Get what the service runs on: versions, the store, its durability and timers, and the settings."""
        return await self._sender.send(system())

    async def key(self) -> OwnKey:
        """Get the name, scopes, topics and limits of the key that this client uses."""
        return await self._sender.send(key())

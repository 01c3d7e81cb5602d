"""What the service runs on, all topics at a glance, and the key: the methods of both clients."""

from __future__ import annotations

from functools import partial
from typing import Any

from deferd.client import responses
from deferd.client.inspection import MANY_TOPICS_S
from deferd.client.request_body import without_none
from deferd.client.requests import ApiRequest
from deferd.client.sender import Sender

_OVERVIEW = ("topics", "matching", "totals", "complete")
_SYSTEM = ("version", "process", "store", "shards", "settings")
_KEY = ("name", "scopes", "topics", "limits")


def overview(**query: Any) -> ApiRequest[dict[str, Any]]:
    """`GET /overview`."""
    read = partial(responses.object_with, names=_OVERVIEW)
    return ApiRequest("GET", "/overview", read, query=without_none(**query), wait_s=MANY_TOPICS_S)


def system() -> ApiRequest[dict[str, Any]]:
    """`GET /system`."""
    return ApiRequest("GET", "/system", partial(responses.object_with, names=_SYSTEM))


def key() -> ApiRequest[dict[str, Any]]:
    """`GET /key`."""
    return ApiRequest("GET", "/key", partial(responses.object_with, names=_KEY))


class SystemMethods:
    """What the service runs on, a part of ApiMethods. Each method returns the JSON object of the response."""

    _sender: Sender

    async def overview(
        self, *, sort: str | None = None, name: str | None = None, offset: int | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """Get topics at a glance, in any order; see `GET /overview`. `name` is a part of their names."""
        return await self._sender.send(overview(sort=sort, name=name, offset=offset, limit=limit))

    async def system(self) -> dict[str, Any]:
        """Get what the service runs on: versions, the store, its durability and timers, and the settings."""
        return await self._sender.send(system())

    async def key(self) -> dict[str, Any]:
        """Get the name, scopes, topics and limits of the key that this client uses."""
        return await self._sender.send(key())

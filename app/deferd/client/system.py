"""What the service runs on, all topics at a glance, and the key: the methods of both clients."""

from __future__ import annotations

from deferd.client.inspection import MANY_TOPICS_S
from deferd.client.request_body import without_none
from deferd.client.requests import request_for
from deferd.client.sender import Sender
from deferd.contract.operations import system as operations
from deferd.contract.responses.system import Overview, OwnKey, System


class SystemMethods:
    """What the service runs on, a part of ApiMethods."""

    _sender: Sender

    async def overview(
        self, *, sort: str | None = None, name: str | None = None, offset: int | None = None, limit: int | None = None
    ) -> Overview:
        """Get topics at a glance, in any order; see `GET /overview`. `name` is a part of their names."""
        query = without_none(sort=sort, name=name, offset=offset, limit=limit)
        return await self._sender.send(request_for(operations.GET_OVERVIEW, query=query, wait_s=MANY_TOPICS_S))

    async def system(self) -> System:
        """Get what the service runs on: versions, the store, its durability and timers, and the settings."""
        return await self._sender.send(request_for(operations.GET_SYSTEM))

    async def key(self) -> OwnKey:
        """Get the name, scopes, topics and limits of the key that this client uses."""
        return await self._sender.send(request_for(operations.GET_KEY))

"""Pushed topics: the methods of both clients, and their requests of the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from deferd.client.durations import seconds
from deferd.client.request_body import encode, without_none
from deferd.client.requests import request_for
from deferd.client.response_reading import read_nothing
from deferd.client.sender import Sender
from deferd.contract.operations import push as operations
from deferd.contract.responses.push import Push
from deferd.contract.responses.push import TestedPush as PushTest


class PushMethods:
    """The operations on pushed topics. Each raises the error that the service names, or CallFailed."""

    _sender: Sender

    async def set_push(
        self,
        topic: str,
        url: str,
        secrets: Sequence[str] | None = None,
        *,
        timeout: float | timedelta | None = None,
        max_in_flight: int | None = None,
        rate: float | None = None,
        headers: Mapping[str, str] | None = None,
        mode: Literal["job", "batch"] | None = None,
    ) -> Push:
        """Have the service send the topic's jobs to a URL, in place of consumers; replaces what was set before.

        `secrets` are one or two; None keeps those that are stored. Of the other arguments None is the default of the
        service. Repeating the call after a lost response is safe.

        Raises:
            InvalidInput: a value is invalid, the service may not push to the URL, or there are no secrets.
        """
        fields = without_none(
            url=url,
            secrets=None if secrets is None else list(secrets),
            timeout=None if timeout is None else seconds(timeout),
            max_in_flight=max_in_flight,
            rate=rate,
            headers=None if headers is None else dict(headers),
            mode=mode,
        )
        body = encode(fields)
        return await self._sender.send(request_for(operations.SET_PUSH, topic, body=body, success=(200, 201)))

    async def push(self, topic: str) -> Push:
        """How the jobs of a topic are pushed. Raises PushNotFound."""
        return await self._sender.send(request_for(operations.GET_PUSH, topic))

    async def remove_push(self, topic: str) -> None:
        """Stop pushing: consumers can pop the jobs again. Raises PushNotFound."""
        await self._sender.send(request_for(operations.REMOVE_PUSH, topic).reading(read_nothing))

    async def test_push(self, topic: str) -> PushTest:
        """Send a signed test to the topic's target. Raises PushNotFound, and InvalidInput if its URL is refused."""
        return await self._sender.send(request_for(operations.TEST_PUSH, topic))

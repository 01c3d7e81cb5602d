"""The requests that the methods of the client make, without sending them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest

from deferd.client.async_client import ApiMethods
from deferd.client.blocking_transport import run_blocking
from deferd.client.requests import ApiRequest
from deferd.client.sender import Sender, SendOutcome


class KeptRequest(Exception):
    """Raised in place of sending a request."""

    def __init__(self, request: ApiRequest[Any]) -> None:
        self.request = request


class KeepingSender(Sender):
    async def try_to_send(self, request: ApiRequest[Any], **_options: Any) -> SendOutcome[Any]:
        raise KeptRequest(request)


METHODS = ApiMethods(cast("Any", None), KeepingSender(cast("Any", None), ["http://service"], retry_for_s=0))


def request_of(call: Callable[[ApiMethods], Coroutine[Any, Any, Any] | AsyncIterator[Any]]) -> ApiRequest[Any]:
    """The request that a method sends, or the first one."""

    async def sent() -> None:
        made = call(METHODS)
        await (anext(made) if isinstance(made, AsyncIterator) else made)

    with pytest.raises(KeptRequest) as kept:
        run_blocking(sent())
    return kept.value.request

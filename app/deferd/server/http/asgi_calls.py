"""What a connection adds to the application's calls of ASGI's `receive` and `send`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPDisconnectEvent,
)
from uvicorn._types import Scope as AsgiScope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from deferd.api import problem_details


def on_connection(
    app: ASGI3Application, cycle: RequestResponseCycle, has_half_closed: Callable[[], bool]
) -> ASGI3Application:
    """`app`, which ends its waits when the client has closed its side of the connection, and then still responds.

    It closes the connection after a response that is sent instead of 100 Continue: the client may then omit the
    announced body (RFC 9110, section 10.1.1), and its next request would be read as that body.
    """

    async def run(scope: AsgiScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        has_body = False

        async def receive_until_half_closed() -> ASGIReceiveEvent:
            nonlocal has_body
            if not (has_body and has_half_closed()):
                message = await receive()
                if not (has_body and has_half_closed()):
                    has_body = not message.get("more_body", False)
                    return message
            return HTTPDisconnectEvent(type="http.disconnect")

        async def send_response(message: ASGISendEvent) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body and not cycle.body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive_until_half_closed, send_response)
        if has_half_closed() and not cycle.response_started:
            response: Any = problem_details.response(problem_details.HalfClosed())
            await response(scope, receive, send)

    return run

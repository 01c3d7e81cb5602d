"""The outermost layer: every request finds its route, every error its problem document, every answer is timed.

Pure ASGI, and the only place that catches errors of the routes; what they look like is said in `problems`.
"""

from __future__ import annotations

import time
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deferd.api import metrics, problems
from deferd.api.operation import Operation
from deferd.errors import DeferdError

_NOT_FOUND, _METHOD_NOT_ALLOWED = 404, 405
_NO_ANSWER = 0


class Boundary:
    """Wraps the router; see the module's text.

    A request for an `Operation` goes to it straight away: they are looked up by method and number of segments,
    which leaves a few to hold the path against. The router, which tries one route after the other, takes the rest.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._operations: dict[tuple[str, int], list[Operation]] = {}
        for route in router.routes:
            if isinstance(route, Operation):
                for method in route.methods or ():
                    self._operations.setdefault((method, route.path.count("/")), []).append(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        began = time.perf_counter()
        status = _NO_ANSWER

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            _keep_slashes_in_segments(scope)
            await self._find(scope)(scope, receive, send_noting_status)
        except ClientDisconnect:
            pass  # there is nobody to answer
        except Exception as error:
            if status != _NO_ANSWER:
                raise  # an answer is under way already: the server can only cut it off
            await self._answer_to(error, scope)(scope, receive, send_noting_status)
        finally:
            metrics.observe_request(_template(scope), scope["method"], status, time.perf_counter() - began)

    def _find(self, scope: Scope) -> ASGIApp:
        path: str = scope["path"]
        if not scope.get("root_path"):
            for operation in self._operations.get((scope["method"], path.count("/")), ()):
                match = operation.path_regex.match(path)
                if match:
                    scope["path_params"] = match.groupdict()
                    scope["route"] = operation
                    return operation.app
        return self._router

    def _answer_to(self, error: Exception, scope: Scope) -> Response:
        if isinstance(error, DeferdError):
            return problems.answer(error)
        if isinstance(error, HTTPException):
            if error.status_code == _NOT_FOUND:
                return problems.answer(problems.UnknownPath(scope["path"]))
            if error.status_code == _METHOD_NOT_ALLOWED:
                return problems.answer(problems.MethodNotAllowed(scope["method"], self._methods_of_path(scope)))
            return problems.answer_http(error)
        return problems.answer_unexpected(error)

    def _methods_of_path(self, scope: Scope) -> list[str]:
        """All methods that some route has at this path; the router by itself names only those of the first."""
        methods: set[str] = set()
        for route in self._router.routes:
            if route.matches(scope)[0] is not Match.NONE:
                methods.update(getattr(route, "methods", None) or ())
        return sorted(methods)


def _keep_slashes_in_segments(scope: Scope) -> None:
    """Leave `%2F` in a path as it is, so that it is part of a bad topic or id and not a border between two."""
    raw_path: bytes = scope.get("raw_path") or b""
    if b"%2" in raw_path:
        kept = raw_path.replace(b"%2F", b"%252F").replace(b"%2f", b"%252f")
        scope["path"] = unquote(kept.decode("latin-1"))


def _template(scope: Scope) -> str | None:
    """The path as the route writes it, with names in place of values; None for a path that no route has."""
    route: BaseRoute | None = scope.get("route")
    return getattr(route, "path", None)

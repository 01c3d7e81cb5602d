"""The outermost layer: every request finds its route, every error its problem document, every answer is timed.

The only place that catches errors of the routes; what they look like is said in `problems`. For the doors that lead
here see `deferd.api.call`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Router
from starlette.types import Message, Receive, Scope, Send

from deferd.api import metrics, problem_details
from deferd.api.auth.api_keys import Scope as KeyScope
from deferd.api.call import AsgiCall, Call, address_of
from deferd.api.operation import Operation
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract.errors import DeferdError

if TYPE_CHECKING:
    from deferd.api.service import Service

_NOT_FOUND, _METHOD_NOT_ALLOWED = 404, 405
_NO_ANSWER = 0
KEY_NAME = "deferd.key_name"
"""Where the ASGI scope of an answered call has the name of its key, for the server."""
_PATH_LOGGED = 200


class Boundary:
    """Wraps the router; see the module's text.

    A request for an `Operation` does not go through the router, which tries one route after the other: operations
    are looked up by method and number of segments, which leaves a few to hold the path against.
    """

    def __init__(self, service: Service, router: Router) -> None:
        self._service = service
        self._router = router
        self._gate = service.gate
        self._operations: dict[tuple[str, int], list[Operation]] = {}
        self._at_fixed_urls: dict[tuple[bytes, bytes], tuple[Operation, str]] = {}
        for route in router.routes:
            if isinstance(route, Operation):
                for method in route.methods or ():
                    self._operations.setdefault((method, route.path.count("/")), []).append(route)
                    if not route.param_convertors:
                        self._at_fixed_urls[method.encode(), route.path.encode()] = route, method

    def find_at_fixed_url(self, method: bytes, url: bytes) -> tuple[Operation, str] | None:
        """As `find` for a URL that is a path without named parts, and the method as text: the quickest way."""
        return self._at_fixed_urls.get((method, url))

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]] | None:
        """The operation that answers `method` at `path`, with the named parts of the path."""
        for operation in self._operations.get((method, path.count("/")), ()):
            match = operation.path_regex.match(path)
            if match:
                return operation, match.groupdict()
        return None

    async def answer(self, operation: Operation, call: Call) -> Response | None:
        """The answer of `operation`, or that of the error it ended with; None when the client is gone."""
        began = time.perf_counter()
        answer: Response | None = None
        try:
            answer = await self._gate.answer(operation, call)
            if len(answer.body) > LARGE_BYTES:
                self._service.unsent.claim(len(answer.body), call.key_name)
        except ClientDisconnect:
            pass  # there is nobody to answer
        except Exception as error:  # noqa: BLE001 (whatever it is, it gets an answer)
            answer = self._answer_to(error)
        finally:
            status = _NO_ANSWER if answer is None else answer.status_code
            metrics.observe_request(operation.path, call.method, status, time.perf_counter() - began)
        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The door for ASGI servers."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        _keep_slashes_in_segments(scope)
        found = self.find(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
        if found is None:
            await self._visit_page(scope, receive, send)
            return
        operation, path_values = found
        call = AsgiCall(self._service, path_values, scope, receive)
        answer = await self.answer(operation, call)
        if answer is not None:
            scope[KEY_NAME] = call.key_name
            with self._service.unsent.waiting(len(answer.body), call.key_name):
                await answer(scope, receive, send)

    async def _visit_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything that is no operation: the pages, and what there is not."""
        began = time.perf_counter()
        status = _NO_ANSWER

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._refusal_of_page(scope)
            await (refusal or self._router)(scope, receive, send_noting_status)
        except ClientDisconnect:
            pass
        except Exception as error:
            if status != _NO_ANSWER:
                raise  # an answer is under way already: the server can only cut it off
            await self._answer_to(error, scope)(scope, receive, send_noting_status)
        finally:
            metrics.observe_request(_template(scope), scope["method"], status, time.perf_counter() - began)

    def _refusal_of_page(self, scope: Scope) -> Response | None:
        """With keys, a page needs one that may read, and whoever looks for what there is not needs one at all."""
        known = any(route.matches(scope)[0] is Match.FULL for route in self._router.routes)
        return self._gate.refusal_of_page(
            scope["headers"],
            KeyScope.READ if known else None,
            f"{scope['method'][:20]} {scope['path'][:_PATH_LOGGED]}",
            address_of(scope.get("client")),
        )

    def _answer_to(self, error: Exception, scope: Scope | None = None) -> Response:
        if isinstance(error, DeferdError):
            return problem_details.answer(error)
        if isinstance(error, HTTPException) and scope is not None:
            if error.status_code == _NOT_FOUND:
                return problem_details.answer(problem_details.UnknownPath(scope["path"]))
            if error.status_code == _METHOD_NOT_ALLOWED:
                return problem_details.answer(
                    problem_details.MethodNotAllowed(scope["method"], self._methods_of_path(scope))
                )
        return problem_details.answer_unexpected(error)

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

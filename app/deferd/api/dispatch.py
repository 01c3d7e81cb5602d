"""The way of a request: find its operation, admit it, bind it, run the operation, respond.

`RequestHandler.handle` is that way for every operation, whichever server the request came through. It is also the only
place that turns errors into responses; `problem_details` says what they look like.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deferd.api import change_recording, metrics, problem_details
from deferd.api.auth.admission import WITHOUT_KEY
from deferd.api.context import AppContext, RequestContext
from deferd.api.incoming_request import AsgiRequest, IncomingRequest
from deferd.api.operation import OperationRoute
from deferd.api.responses import Header
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract.clocks import TIME_HEADER
from deferd.contract.errors import DeferdError, Unauthorized
from deferd.contract.scopes import Scope as KeyScope
from deferd.engine.scripts import request_ending_at

KEY_NAME = "deferd.key_name"
"""Where the ASGI scope of a request, once it has a response, holds the name of its key, for the server."""
Run = Callable[[dict[str, Any]], Awaitable[Response]]
"""Makes the response of an operation from its arguments."""
_NOT_FOUND, _METHOD_NOT_ALLOWED = 404, 405
_NO_RESPONSE = 0
_TIME = TIME_HEADER.encode()
_PATH_LOGGED = 200
_ASK_FOR_PASSWORD = (b"www-authenticate", b'Basic realm="deferd: any name, a key as the password", charset="UTF-8"')


class RequestHandler:
    """Handles the requests of an application.

    Operations are found by method and number of path segments; the router, which tries one route after the other, is
    for pages only. `console`, if there is one, serves `/` and all below `/console`, and admits its own requests.
    """

    console: ASGIApp | None = None

    def __init__(self, app: AppContext, router: Router) -> None:
        self._app = app
        self._router = router
        self._operations: dict[tuple[str, int], list[OperationRoute]] = {}
        self._at_fixed_urls: dict[tuple[bytes, bytes], tuple[OperationRoute, str]] = {}
        for route in router.routes:
            if isinstance(route, OperationRoute):
                for method in route.served_methods:
                    self._operations.setdefault((method, route.path.count("/")), []).append(route)
                    if not route.param_convertors:
                        self._at_fixed_urls[method.encode(), route.path.encode()] = route, method

    def find_at_fixed_url(self, method: bytes, url: bytes) -> tuple[OperationRoute, str] | None:
        """The operation at a path without named parts, and its method as text: faster than `find`."""
        return self._at_fixed_urls.get((method, url))

    def find(self, method: str, path: str) -> tuple[OperationRoute, dict[str, str]] | None:
        """The operation for `method` at `path`, with the named parts of the path."""
        for operation in self._operations.get((method, path.count("/")), ()):
            match = operation.path_regex.match(path)
            if match:
                return operation, match.groupdict()
        return None

    async def handle(
        self, operation: OperationRoute, request: IncomingRequest, run: Run | None = None
    ) -> Response | None:
        """The response to a request, which may be a problem document; None when the client has disconnected.

        `run` is called in place of the operation's function; nothing else differs.
        """
        started_s = time.perf_counter()
        permission = operation.permission
        admission = WITHOUT_KEY
        response: Response | None = None
        not_after_ms: int | None = None
        try:
            if not request.is_own:
                admission = self._app.gate.admit(permission, request)
            request.key_name = admission.key_name
            admission.authorize()
            not_after_ms = request.not_after_ms()
            context = RequestContext(self._app, request, admission)
            arguments = await operation.bind(context)
            admission.check_arguments(arguments)
            run = run or operation.run
            recording: AbstractContextManager[None] = nullcontext()
            if permission.recorded is not None and change_recording.is_recorded(permission.recorded, request):
                recording = change_recording.recording(operation, context, arguments)
            if not_after_ms is None:
                with recording:
                    response = await run(arguments)
            else:
                ends_at_s = await self._app.engine.request_clock.end_s(not_after_ms)
                with recording, request_ending_at(ends_at_s):
                    response = await run(arguments)
            if len(response.body) > LARGE_BYTES and request.method != "HEAD":
                self._app.unsent.claim(len(response.body), request.key_name)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 (every error gets a response)
            response = error_response(error)
        finally:
            status = _NO_RESPONSE if response is None else response.status_code
            metrics.observe_request(operation.path, request.method, status, time.perf_counter() - started_s)
        if response is not None:
            if request.method == "HEAD":
                response.body = b""  # the headers, and so the length, are those of a GET (RFC 9110, section 9.3.2)
            if admission.usage is not None:
                response.raw_headers.extend(admission.usage.headers())
            if not_after_ms is not None and (now_ms := self._app.engine.request_clock.least_ms()):
                response.raw_headers.append(time_header(now_ms))
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The entry point for ASGI servers."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        _keep_slashes_in_segments(scope)
        found = self.find(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
        if found is None:
            await self._serve_page(scope, receive, send)
            return
        operation, path_values = found
        request = AsgiRequest(scope, receive, path_values, self._app.settings.max_body_bytes)
        response = await self.handle(operation, request)
        if response is not None:
            scope[KEY_NAME] = request.key_name
            with self._app.unsent.waiting(len(response.body), request.key_name):
                await response(scope, receive, send)

    async def _serve_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request for no operation: with a page of the router, or an error."""
        started_s = time.perf_counter()
        status = _NO_RESPONSE

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self.console is not None and is_of_console(scope["path"]):
                page: ASGIApp = self.console
            else:
                page = self._refusal_of_page(scope, receive) or self._router
            await page(scope, receive, send_noting_status)
        except ClientDisconnect:
            pass
        except Exception as error:
            if status != _NO_RESPONSE:
                raise  # the response has begun: the server can only cut it off
            await self._page_error_response(error, scope)(scope, receive, send_noting_status)
        finally:
            metrics.observe_request(self._template(scope), scope["method"], status, time.perf_counter() - started_s)

    def _refusal_of_page(self, scope: Scope, receive: Receive) -> Response | None:
        """With keys, a page requires scope read, and an unknown path requires any key."""
        is_known = any(route.matches(scope)[0] is Match.FULL for route in self._router.routes)
        request = AsgiRequest(scope, receive, {}, self._app.settings.max_body_bytes)
        name = f"{scope['method'][:20]} {scope['path'][:_PATH_LOGGED]}"
        admission = WITHOUT_KEY
        try:
            admission = self._app.gate.admit_page(KeyScope.READ if is_known else None, name, request)
            admission.authorize()
        except DeferdError as error:
            refusal = problem_details.response(error)
            if isinstance(error, Unauthorized) and is_known:
                refusal.raw_headers.insert(0, _ASK_FOR_PASSWORD)
            if admission.usage is not None:
                refusal.raw_headers.extend(admission.usage.headers())
            return refusal
        return None

    def _page_error_response(self, error: Exception, scope: Scope) -> Response:
        if isinstance(error, HTTPException) and error.status_code == _NOT_FOUND:
            error = problem_details.UnknownPath(scope["path"])
        elif isinstance(error, HTTPException) and error.status_code == _METHOD_NOT_ALLOWED:
            error = problem_details.MethodNotAllowed(scope["method"], self._methods_of_path(scope))
        return error_response(error)

    def _template(self, scope: Scope) -> str | None:
        """The path of the matching route, with names in place of values; None for an unknown path.

        The console notes its route itself.
        """
        matching = (route for route in self._router.routes if route.matches(scope)[0] is not Match.NONE)
        return getattr(scope.get("route") or next(matching, None), "path", None)

    def _methods_of_path(self, scope: Scope) -> list[str]:
        """All methods that some route has at this path; the router itself names only those of the first."""
        methods: set[str] = set()
        for route in self._router.routes:
            if route.matches(scope)[0] is not Match.NONE:
                methods.update(
                    route.served_methods if isinstance(route, OperationRoute) else getattr(route, "methods", ())
                )
        return sorted(methods)


def time_header(now_ms: int) -> Header:
    """What tells a client the service's clock."""
    return _TIME, b"%d" % now_ms


def is_of_console(path: str) -> bool:
    """Whether the console serves this path: also icons, which browsers ask for by themselves, with no key."""
    return path in {"/", "/console", "/favicon.ico"} or path.startswith(("/console/", "/apple-touch-icon"))


def error_response(error: Exception) -> Response:
    """The problem document for an error; one that is not a DeferdError is a bug, and is logged."""
    if isinstance(error, DeferdError):
        return problem_details.response(error)
    return problem_details.internal_error_response(error)


def _keep_slashes_in_segments(scope: Scope) -> None:
    """Leave `%2F` in a path encoded, so that it is part of an invalid topic or id and does not separate segments."""
    raw_path: bytes = scope.get("raw_path") or b""
    if b"%2" in raw_path:
        kept = raw_path.replace(b"%2F", b"%252F").replace(b"%2f", b"%252f")
        scope["path"] = unquote(kept.decode("latin-1"))

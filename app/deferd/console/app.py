"""The console as an application: it admits a request, runs its view, and makes every response safe to show."""

from __future__ import annotations

import contextlib
import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deferd.api.context import AppContext
from deferd.api.dispatch import RequestHandler
from deferd.api.incoming_request import AsgiRequest
from deferd.api.problem_details import BY_CODE
from deferd.console.api_calls import READS_KEPT_S, ApiCalls, ApiRefused
from deferd.console.browser_requests import cookie_values, forwarded_prefix, header, is_from_own_page
from deferd.console.masks import Masks
from deferd.console.rendering import Renderer, UnknownRegion, static_files
from deferd.console.sessions import Sessions
from deferd.console.views import ROUTES
from deferd.console.views.log_in import SESSION_COOKIE
from deferd.console.visit import REGION_KEPT_UP_TO, FormTooLarge, PageRoutes, PageServices, Region, Visit
from deferd.contract.errors import DeferdError, StoreUnavailable, TryLater
from deferd.contract.scopes import Scope as KeyScope
from deferd.engine.caches import SharedReads

_LOG = logging.getLogger(__name__)
_PAGES = PageRoutes(ROUTES)
_STATIC = "/console/static/"
_PATH_LOGGED = 200
_REGIONS_KEPT = 200
_SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_FOR_A_DAY = "public, max-age=86400"
_FOR_EVER = "public, max-age=31536000, immutable"


class Console:
    """The ASGI application of `/` and `/console/...`.

    Without keys the Host is checked as for any page. With keys a session is required, but for the page that logs in.
    A region is made once a second at most for all tabs of people with the same key.
    """

    def __init__(self, context: AppContext, handler: RequestHandler) -> None:
        self._context = context
        settings = context.settings
        calls = ApiCalls(handler, Masks(settings.console_mask))
        renderer = Renderer(settings.environment, settings.environment_color)
        self._services = PageServices(context.gate.has_keys, calls, renderer, Sessions(context), {}, context)
        self._regions: SharedReads[Response] = SharedReads(
            READS_KEPT_S, _REGIONS_KEPT, size=_size, largest=REGION_KEPT_UP_TO
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises ClientDisconnect."""
        if scope["path"] == "/favicon.ico":
            response = self._static_file(scope, f"{static_files().version}/icon.svg")
            response.headers["cache-control"] = _FOR_A_DAY
        elif scope["path"].startswith(_STATIC):
            response = self._static_file(scope, scope["path"].removeprefix(_STATIC))
        else:
            request = AsgiRequest(scope, receive, {}, self._context.settings.max_body_bytes)
            response = await self._respond(Visit(scope, receive, self._services, request))
        for name, value in _SECURITY_HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("cache-control", "no-store")
        await response(scope, receive, send)

    async def _respond(self, visit: Visit) -> Response:
        try:
            return await self._run(visit)
        except ClientDisconnect:
            raise
        except ApiRefused as refused:
            if refused.status == HTTPStatus.UNAUTHORIZED:  # the key was revoked just now
                return _to_log_in(visit)
            return _error_page(visit, refused.status, refused.problem, refused.scope)
        except DeferdError as error:
            response = _error_page(visit, BY_CODE[error.code].status, {"detail": str(error)})
            if isinstance(error, TryLater):
                response.headers["retry-after"] = str(max(1, error.retry_after_s))
            return response
        except FormTooLarge as error:
            return _error_page(visit, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"detail": str(error)})
        except UnknownRegion:
            return _error_page(visit, HTTPStatus.NOT_FOUND, {"detail": "This page has no such region."})
        except Exception:  # noqa: BLE001 (every error gets a page)
            _LOG.exception("unexpected error while making a page of the console")
            detail = "The log of the service has the details."
            return _error_page(visit, HTTPStatus.INTERNAL_SERVER_ERROR, {"detail": detail})

    async def _run(self, visit: Visit) -> Response:
        gate = self._context.gate
        method: str = visit.scope["method"]
        if not gate.has_keys:  # refuses a name that may be rebound to this machine
            gate.admit_page(KeyScope.READ, f"{method[:20]} {visit.path[:_PATH_LOGGED]}", visit.request)
        found = _PAGES.find(method, visit.path)
        if found is not None:
            visit.scope["route"] = found[0]  # for the metrics
        if gate.has_keys:
            is_public = found is not None and found[0].public
            try:
                visit.key = await self._services.sessions.key_of(cookie_values(visit.scope, SESSION_COOKIE))
            except StoreUnavailable:
                if not is_public:
                    raise
            if visit.key is None and not is_public:
                return _to_log_in(visit)
        if found is None:
            allowed = _PAGES.methods(visit.path)
            if not allowed:
                return _error_page(visit, HTTPStatus.NOT_FOUND, {"detail": "There is no such page."})
            detail = f"This page has no {method[:20]}."
            response = _error_page(visit, HTTPStatus.METHOD_NOT_ALLOWED, {"detail": detail})
            response.headers["allow"] = ", ".join(allowed)
            return response
        route, values = found
        if route.method == "POST" and not is_from_own_page(visit.scope):
            detail = "This request did not come from a page of this console, so nothing was done."
            return _error_page(visit, HTTPStatus.FORBIDDEN, {"detail": detail})
        with contextlib.suppress(StoreUnavailable):  # the calls of the page say what is unavailable
            visit.now_ms = await self._context.engine.store_clock.now_ms(0)
        if visit.fragment is None or route.method != "GET" or not route.has_regions:
            return await route.view(visit, **values)
        seen_at = (header(visit.scope, b"host"), forwarded_prefix(visit.scope), visit.path, visit.scope["query_string"])
        key = (self._services.calls.writes, visit.key and visit.key.digest, *seen_at)
        made = await self._regions.get(key, lambda: route.view(visit, **values))
        return visit.region_response(made) if isinstance(made, Region) else made

    @staticmethod
    def _static_file(scope: Scope, name: str) -> Response:
        files = static_files()
        version, _, inner = name.partition("/")
        found = files.files.get(inner) if version == files.version else None
        if found is None or scope["method"] not in {"GET", "HEAD"}:
            return Response("no such file", 404, {"content-type": "text/plain; charset=utf-8"})
        headers = {
            "content-type": found.media_type.decode(),
            "cache-control": _FOR_EVER,
            "vary": "accept-encoding",
        }
        if b"gzip" in header(scope, b"accept-encoding"):
            return Response(found.compressed, 200, {**headers, "content-encoding": "gzip"})
        return Response(found.content, 200, headers)


def _size(response: Response) -> int:
    return len(response.text if isinstance(response, Region) else response.body)


def _to_log_in(visit: Visit) -> Response:
    """Ask for a key. A page comes back after the log-in; a part of a page has the browser leave the page."""
    is_page = visit.scope["method"] in {"GET", "HEAD"} and (visit.path != "/" or visit.query)
    after = f"?next={quote(visit.url(), safe='')}" if is_page else ""
    if visit.fragment is not None or header(visit.scope, b"hx-request"):
        return Response(status_code=401, headers={"hx-redirect": f"console/login{after}"})
    return visit.redirect(f"console/login{after}")


def _error_page(visit: Visit, status: int, problem: dict[str, Any], missing_scope: str | None = None) -> Response:
    """A page, or for a region its text alone: the browser keeps the region as it was, and says how old it is."""
    detail = problem.get("detail", "")
    if visit.fragment is not None:
        return Response(detail, status, {"content-type": "text/plain; charset=utf-8"})
    return visit.render(
        "error.html",
        status=status,
        code=int(status),
        title=problem.get("title") or HTTPStatus(status).phrase,
        detail=detail,
        errors=problem.get("errors", []),
        missing_scope=missing_scope if status == HTTPStatus.FORBIDDEN else None,
    )

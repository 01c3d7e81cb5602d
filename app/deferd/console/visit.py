"""What a view gets, the request to a page, and how it declares which URLs it serves."""

from __future__ import annotations

import gzip
import hashlib
import shlex
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

import orjson
from markupsafe import Markup
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope

from deferd.api.auth.api_keys import Key
from deferd.api.context import AppContext
from deferd.api.incoming_request import IncomingRequest
from deferd.console.api_calls import ApiCalls, ApiRefused, Caller, QueryValue
from deferd.console.browser_requests import cookie_values, forwarded_prefix, header, is_secure, relative_root
from deferd.console.masks import Masks
from deferd.console.rendering import Renderer, etag_of, static_files
from deferd.console.sessions import Sessions
from deferd.contract.scopes import Scope as KeyScope
from deferd.engine.undos import Undos

FRAGMENT = "fragment"
"""The query parameter that asks for regions of a page: their names, with commas between."""
NOTICE_COOKIE = "deferd_notice"
_NOTICE_SHOWN = 300
_PROBLEM = "!"
"""In front of a notice that says that nothing was done."""
_REGIONS_KEPT = 200
REGION_KEPT_UP_TO = 128 * 1024
"""Characters. The table of a page of topics has some 70,000."""
_FORM_BYTES_MAX = 1024 * 1024
_FORM_FIELDS_MAX = 10_000
_COMPRESSED_FROM_BYTES = 1024
NAVIGATION = (
    ("now", "Now", "./"),
    ("topics", "Topics", "console/topics"),
    ("dead", "Dead", "console/dead"),
    ("schedules", "Schedules", "console/schedules"),
    ("consumers", "Consumers", "console/consumers"),
    ("events", "Events", "console/events"),
    ("activity", "Activity", "console/activity"),
    ("system", "System", "console/system"),
)


class FormTooLarge(ValueError):
    """A form has more bytes or fields than any form of the console."""


class Region(Response):
    """A part of a page. Requests share it; `Visit.region_response` sends it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.etag = etag_of(text)
        self.compressed: bytes | None = None


class PageServices(NamedTuple):
    """The parts that all visits share."""

    has_keys: bool
    calls: ApiCalls
    renderer: Renderer
    sessions: Sessions
    made: dict[Hashable, Region]
    context: AppContext


class Visit:
    """The request, the key of its session (None without keys), calls of the API, and responses.

    `query` has the parameters; of a repeated one the last counts. `now_ms` is the time of the store's clock; None while
    that cannot be read. `sessions` and `request` are for the log-in.
    """

    def __init__(self, scope: Scope, receive: Receive, services: PageServices, request: IncomingRequest) -> None:
        self.scope = scope
        self.path: str = scope["path"]
        self.page = self.path
        """The path for links and polls of the page that is shown; an action that shows a page again sets it."""
        self.query: dict[str, str] = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        self.fragment = self.query.pop(FRAGMENT, None)
        self.has_keys = services.has_keys
        self.sessions = services.sessions
        self.request = request
        self.key: Key | None = None
        self.now_ms: int | None = None
        self._services = services
        self._receive = receive

    @property
    def _caller(self) -> Caller:
        digest = None if self.key is None else self.key.digest
        return Caller(digest, header(self.scope, b"host"), self.request.client_address())

    def query_values(self, name: str) -> list[str]:
        """All values of a parameter of the URL, which `query` has the last of."""
        pairs = parse_qsl(self.scope["query_string"].decode("latin-1"))
        return [value for one, value in pairs if one == name]

    def wants(self, *regions: str) -> bool:
        """Whether the request asks for one of these regions, or for the whole page."""
        return self.fragment is None or not set(regions).isdisjoint(self.fragment.split(","))

    def may(self, scope: str) -> bool:
        """Whether the session's key has a scope. Its topics are not considered: the API checks them."""
        return not self.has_keys or (self.key is not None and KeyScope(scope) in self.key.scopes)

    def require(self, scope: str) -> None:
        """For a page that calls no operation with the scope that it needs. Raises ApiRefused without the scope."""
        if not self.may(scope):
            raise ApiRefused(403, {"detail": f"The key of this session does not have the scope {scope}."}, scope)

    def sees(self, topic: str) -> bool:
        """Whether the session's key is for this topic, or with `*` for all: a refusal would be in the audit log."""
        return self.key is None or self.key.topics.include(topic)

    def has_room_for(self, requests: int, *, ever: bool = False) -> bool:
        """Whether the key's rate limit allows this many calls now, or with `ever` when it is unused."""
        room = self._services.calls.room(self._caller)
        return room is None or requests <= (room.most if ever else room.left)

    async def read(self, path: str, /, **query: QueryValue) -> Any:
        """The response of the API to a GET. The value may be shared: do not change it.

        Raises:
            ApiRefused: the response is a problem document. Unless the view handles it, it becomes a page.
        """
        return orjson.loads(await self.read_bytes(path, **query))

    async def read_or_none(self, missing: Collection[int], path: str, /, **query: QueryValue) -> Any:
        """As `read`; None for a problem document with one of the statuses `missing`."""
        try:
            return await self.read(path, **query)
        except ApiRefused as refused:
            if refused.status not in missing:
                raise
            return None

    async def read_bytes(self, path: str, /, **query: QueryValue) -> bytes:
        """As `read`, but the JSON as the API wrote it, with exact numbers."""
        return await self._services.calls.read(self._caller, path, query)

    async def read_fresh(self, path: str) -> bytes:
        """As `read_bytes`, but as it is now: for what a form compares before it writes."""
        return await self._services.calls.read_fresh(self._caller, path)

    async def read_unmasked(self, path: str) -> bytes:
        """As `read_bytes`, with hidden fields: for requests to the API, never for a page."""
        return await self._services.calls.read_unmasked(self._caller, path)

    @property
    def undos(self) -> Undos:
        """What the store keeps of cancels that can be undone."""
        return self._services.context.engine.undos

    @property
    def masks(self) -> Masks:
        """The masks of the console."""
        return self._services.calls.masks

    async def write(self, method: str, path: str, body: Any = None, /, **query: QueryValue) -> Any:
        """Carry out an operation of the API; the JSON it responds with, None if there is none. Raises ApiRefused.

        A body of bytes is JSON already.
        """
        content = await self._services.calls.write(self._caller, method, path, body, query)
        return orjson.loads(content) if content else None

    async def create(self, path: str, body: Any) -> None:
        """A PUT that replaces nothing. Raises ApiRefused, also if there is something at this path."""
        await self._services.calls.write(self._caller, "PUT", path, body, headers=((b"if-none-match", b"*"),))

    async def stream(self, path: str, after: str, /, **query: QueryValue) -> Response:
        """The response of an operation that streams events behind the one with the id `after` (empty: from now).

        A browser that connects again says itself where it was.

        Raises:
            ApiRefused.
        """
        last_event_id = header(self.scope, b"last-event-id") or after.encode("latin-1", "replace")
        return await self._services.calls.stream(self._caller, path, query, last_event_id)

    async def form(self) -> dict[str, str]:
        """The fields of a sent form; of several with one name the last. `form_lists` has all.

        Raises:
            FormTooLarge, ClientDisconnect.
        """
        return {name: values[-1] for name, values in (await self.form_lists()).items()}

    async def form_lists(self) -> dict[str, list[str]]:
        """The fields of a sent form by name, with all values. Raises as `form`. Read it once."""
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > _FORM_BYTES_MAX:
                raise FormTooLarge(f"a form may have at most {_FORM_BYTES_MAX} bytes")
            if not message.get("more_body", False):
                break
        fields: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
        except ValueError:
            raise FormTooLarge(f"a form may have at most {_FORM_FIELDS_MAX} fields") from None
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
        return fields

    def to_confirm(self, name: str) -> str:
        """What somebody types to confirm an act on what has this name, as `production/orders`.

        The environment is left out where the service names none.
        """
        environment = self._services.context.settings.environment
        return name if environment is None else f"{environment}/{name}"

    def curl(self, path: str, *, method: str | None = None, body: Any = None) -> str:
        """A call of the API that people can copy: of `path` with its query, at the host that the browser asks for.

        A key is read from `$DEFERD_KEY`.
        """
        scheme = "https" if is_secure(self.scope) else "http"
        host = header(self.scope, b"host").decode("latin-1")
        parts = ["curl -sS"]
        if method is not None:
            parts.append(f"-X {method}")
        if self.has_keys:
            parts.append('-H "Authorization: Bearer $DEFERD_KEY"')
        if body is not None:
            parts.append(f"--json {shlex.quote(orjson.dumps(body).decode())}")
        return " ".join([*parts, shlex.quote(f"{scheme}://{host}{forwarded_prefix(self.scope)}{path}")])

    def url(self, **changes: QueryValue) -> str:
        """This page's URL relative to `<base>`, with these parameters changed; None removes one."""
        query = {**self.query, **{name: str(value) for name, value in changes.items() if value is not None}}
        for name, value in changes.items():
            if value is None:
                query.pop(name, None)
        path = quote(self.page[1:], safe="/:%") or "./"
        return f"{path}?{urlencode(query)}" if query else path

    def anchor(self, name: str) -> str:
        """The URL of an element of the document that is shown, also by an action: the browser does not leave it."""
        query = self.scope["query_string"].decode("latin-1")
        return f"{quote(self.path[1:], safe='/:%') or './'}{'?' if query else ''}{query}#{name}"

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page, or the regions of it that the request asks for."""
        context = self._context(values)
        if self.fragment is not None:
            return self._region(template, self.fragment, values, context)
        response = self._html(self._services.renderer.render(template, context), status)
        if cookie_values(self.scope, NOTICE_COOKIE):
            response.delete_cookie(NOTICE_COOKIE, path="/")
        return response

    def redirect(self, to: str, *, notice: str | None = None, problem: str | None = None) -> Response:
        """See the page `to`, relative to `<base>`; it shows `notice` once, or a `problem`: that nothing was done."""
        response = Response(status_code=303, headers={"location": relative_root(self.path) + to.removeprefix("./")})
        shown = notice if problem is None else f"{_PROBLEM}{problem}"
        if shown is not None:
            response.set_cookie(
                NOTICE_COOKIE,
                quote(shown[:_NOTICE_SHOWN], safe=""),
                max_age=60,
                path="/",
                httponly=True,
                samesite="strict",
                secure=is_secure(self.scope),
            )
        return response

    def _context(self, values: Mapping[str, Any]) -> dict[str, Any]:
        def region(
            name: str,
            every_s: float = 2,
            *,
            brings: Sequence[str] = (),
            follows: str | None = None,
            **query: QueryValue,
        ) -> Markup:
            """The attributes of the element around the block `region_<name>`.

            `brings` names regions whose blocks come in the same response, which saves their requests. They say so by
            `follows`, and the ids of their elements are their names. `query` is further parameters of its request.
            """
            if follows is not None:
                return Markup('data-region="{}" data-follows="{}"').format(name, follows)
            attributes = Markup('data-region="{}" data-every="{}" hx-get="{}" hx-trigger="refresh" hx-swap="innerHTML"')
            return attributes.format(name, every_s, self.url(fragment=",".join((name, *brings)), **query))

        files = static_files()
        notice = unquote("".join(cookie_values(self.scope, NOTICE_COOKIE)[:1]))
        return {
            "visit": self,
            "may": self.may,
            "region": region,
            "root": relative_root(self.path),
            "static": f"console/static/{files.version}/",
            "navigation": NAVIGATION,
            "here": "",
            "notice": "" if notice.startswith(_PROBLEM) else notice,
            "problem": notice.removeprefix(_PROBLEM) if notice.startswith(_PROBLEM) else None,
            "now_ms": self.now_ms,
            **values,
        }

    def _region(self, template: str, names: str, values: dict[str, Any], context: dict[str, Any]) -> Region:
        """Regions, from memory if they were made from the same values: rendering costs most of a poll."""
        try:
            digest = hashlib.sha256(orjson.dumps(values)).digest()
        except orjson.JSONEncodeError:  # a value that is not JSON
            return Region(self._services.renderer.render_regions(template, names.split(","), context))
        made = self._services.made
        key = (template, names, self.url(), self.key, digest)
        region = made.pop(key, None)
        if region is None:
            region = Region(self._services.renderer.render_regions(template, names.split(","), context))
        if len(region.text) <= REGION_KEPT_UP_TO:
            while len(made) >= _REGIONS_KEPT:
                del made[next(iter(made))]
            made[key] = region
        return region

    def region_response(self, region: Region) -> Response:
        """A region for this request: nothing (304) if the browser has it already."""
        if header(self.scope, b"if-none-match") == region.etag.encode():
            response = Response(status_code=304)
        else:
            response = self._html(region.text, 200, region)
        response.headers["etag"] = region.etag
        if self.now_ms is not None:
            response.headers["deferd-now"] = str(self.now_ms)
        return response

    def _html(self, text: str, status: int, shared: Region | None = None) -> Response:
        content = text.encode()
        headers = {"content-type": "text/html; charset=utf-8", "vary": "accept-encoding"}
        if len(content) >= _COMPRESSED_FROM_BYTES and b"gzip" in header(self.scope, b"accept-encoding"):
            if shared is None:
                content = gzip.compress(content, 5)
            elif shared.compressed is None:
                content = shared.compressed = gzip.compress(content, 5)
            else:
                content = shared.compressed
            headers["content-encoding"] = "gzip"
        return Response(content, status, headers)


View = Callable[..., Coroutine[Any, Any, Response]]
"""Takes a Visit, and the named parts of the path as text."""


class PageRoute(NamedTuple):
    """`public` views need no session. A POST is accepted from the console's own pages only.

    The response of one with `has_regions` may be shared by all who ask for the same region.
    """

    method: str
    path: str
    view: View
    public: bool
    has_regions: bool = True


class PageList:
    """The routes of one module of views, which its decorators `page` and `action` collect."""

    def __init__(self) -> None:
        self.routes: list[PageRoute] = []

    def page(self, path: str, *, public: bool = False, has_regions: bool = True) -> Callable[[View], View]:
        """The view of GET at `path`, such as `/console/topics/{topic}`. It has no effect.

        Without `has_regions` it renders no page, but streams for example.
        """
        return self._add("GET", path, public, has_regions)

    def action(self, path: str, *, public: bool = False) -> Callable[[View], View]:
        """The view of POST at `path`: what a form or a button does."""
        return self._add("POST", path, public, has_regions=False)

    def _add(self, method: str, path: str, public: bool, has_regions: bool) -> Callable[[View], View]:
        def add(view: View) -> View:
            self.routes.append(PageRoute(method, path, view, public, has_regions))
            return view

        return add


class PageRoutes:
    """Finds the route of a request. Of several that match, the first counts."""

    def __init__(self, routes: Iterable[PageRoute]) -> None:
        self._routes = [(compile_path(route.path)[0], route) for route in routes]

    def find(self, method: str, path: str) -> tuple[PageRoute, dict[str, Any]] | None:
        """The route with the named parts of the path. HEAD is GET."""
        wanted = "GET" if method == "HEAD" else method
        for pattern, route in self._routes:
            if route.method == wanted and (match := pattern.match(path)) is not None:
                return route, match.groupdict()
        return None

    def methods(self, path: str) -> list[str]:
        """The methods that the path has, sorted; none for an unknown path."""
        methods = {route.method for pattern, route in self._routes if pattern.match(path) is not None}
        return sorted(methods | {"HEAD"} if "GET" in methods else methods)

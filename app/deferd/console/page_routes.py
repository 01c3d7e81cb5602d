"""The routes of the console: which view serves which URL."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.routing import compile_path

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

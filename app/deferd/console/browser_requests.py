"""What the console decides by a request's headers: where a write comes from, how the browser is connected, cookies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.types import Scope

Headers = Iterable[tuple[bytes, bytes]]
_COOKIE_PATH = re.compile(r"/[A-Za-z0-9/._~%-]*")
_CONSOLE = re.compile(r"/console(?=/)")
_PREFIXES_MAX = 5


def header(scope: Scope, name: bytes) -> bytes:
    """The last header of this name, empty without one."""
    return next((value for found, value in reversed(scope["headers"]) if found == name), b"")


def is_from_own_page(scope: Scope) -> bool:
    """Whether a page of this host made the browser send a write.

    Browsers say so in `Sec-Fetch-Site`. Those that leave it out, old ones and all over plain HTTP to another machine,
    send `Origin`. A request with neither is refused: no browser sends a form without one of them.
    """
    site = header(scope, b"sec-fetch-site")
    if site:
        return site == b"same-origin"
    origin = header(scope, b"origin")
    return bool(origin) and origin.partition(b"://")[2] == header(scope, b"host")


def is_secure(scope: Scope) -> bool:
    """Whether the browser is connected by HTTPS, to this service or to the first of the proxies before it."""
    first = header(scope, b"x-forwarded-proto").partition(b",")[0]
    return scope.get("scheme") == "https" or first.strip().lower() == b"https"


def cookie_paths(scope: Scope) -> list[str]:
    """The path of the console as the browser sees it, below the prefix that a proxy strips; `/` if it cannot be known.

    `Referer` of a form has the URL of its page. The form that logs in is sent to the URL of its own page, so there is
    one. Of a page whose path has `console` in it again, such as that of a topic with this name, there are several.
    """
    path = urlsplit(header(scope, b"referer").decode("latin-1")).path
    if path.endswith(scope["path"]):
        prefixes = [path.removesuffix(scope["path"])]
    elif path.endswith("/"):
        prefixes = [path[:-1]]
    else:
        prefixes = [path[: found.start()] for found in _CONSOLE.finditer(path)][:_PREFIXES_MAX] or [""]
    return [wanted if _COOKIE_PATH.fullmatch(wanted) else "/" for wanted in (f"{prefix}/" for prefix in prefixes)]


def forwarded_prefix(scope: Scope) -> str:
    """The prefix that a proxy strips, if `X-Forwarded-Prefix` or the URL of a page that is polling says it."""
    prefix = header(scope, b"x-forwarded-prefix").partition(b",")[0].strip().decode("latin-1").rstrip("/")
    if not prefix:
        path = urlsplit(header(scope, b"referer").decode("latin-1")).path
        prefix = path.removesuffix(scope["path"]) if path.endswith(scope["path"]) and scope["path"] != "/" else ""
    return prefix if _COOKIE_PATH.fullmatch(f"{prefix}/") else ""


def cookies_of(scope: Scope) -> dict[str, str]:
    """The cookies of a request."""
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(header(scope, b"cookie").decode("latin-1"))
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in jar.items()}


def relative_root(path: str) -> str:
    """The way from a page at `path` up to `/`, as a relative URL: it holds behind any prefix that a proxy strips."""
    return "../" * (path.count("/") - 1) or "./"

"""What a request's headers tell the console: where a write comes from, how the browser is connected, cookies."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.types import Scope

from deferd.api.auth.browser_guard import is_origin_of

_COOKIE_PATH = re.compile(r"/[A-Za-z0-9/._~%-]*")
_CONSOLE = re.compile(r"/console(?=/)")
_PREFIXES_MAX = 5


def header(scope: Scope, name: bytes) -> bytes:
    """The header of this name. Several become one list (RFC 9110, section 5.3), which equals no single value."""
    return b", ".join(value for found, value in scope["headers"] if found == name)


def is_from_own_page(scope: Scope) -> bool:
    """Whether a page of this host made the browser send a write.

    Browsers say so in `Sec-Fetch-Site`. Those that leave it out, old ones and all over plain HTTP to another machine,
    send `Origin`. A request with neither is refused: no browser sends a form without one of them.
    """
    site = header(scope, b"sec-fetch-site")
    if site:
        return site == b"same-origin"
    return is_origin_of(header(scope, b"origin"), header(scope, b"host"))


def is_secure(scope: Scope) -> bool:
    """Whether the browser is connected by HTTPS, to this service or to the first of the proxies before it."""
    first = header(scope, b"x-forwarded-proto").partition(b",")[0]
    return scope.get("scheme") == "https" or first.strip().lower() == b"https"


def _path_of_referer(scope: Scope) -> str:
    try:
        return urlsplit(header(scope, b"referer").decode("latin-1")).path
    except ValueError:  # such as brackets that are not closed, which no browser sends
        return ""


def cookie_paths(scope: Scope) -> list[str]:
    """The path of the console as the browser sees it, below the prefix that a proxy strips; `/` if it cannot be known.

    `Referer` of a form has the URL of its page. The form that logs in is sent to the URL of its own page, so there is
    one. A page whose path has `console` in it again, such as the page of a topic with this name, has several
    candidates.
    """
    path = _path_of_referer(scope)
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
        path = _path_of_referer(scope)
        prefix = path.removesuffix(scope["path"]) if path.endswith(scope["path"]) and scope["path"] != "/" else ""
    return prefix if _COOKIE_PATH.fullmatch(f"{prefix}/") else ""


def cookie_values(scope: Scope, name: str) -> list[str]:
    """The values of all cookies with this name, as the browser orders them: first those for longer paths.

    Other programs on this host set cookies too, also some with this name, for other ports and paths: a cookie can
    be anything between two semicolons (RFC 6265, section 5.4), and none hides another one.
    """
    fields = (value for found, value in scope["headers"] if found == b"cookie")
    pairs = (pair.partition("=") for field in fields for pair in field.decode("latin-1").split(";"))
    return [value.strip() for found, _, value in pairs if found.strip() == name]


def relative_root(path: str) -> str:
    """The way from a page at `path` up to `/`, as a relative URL: it holds behind any prefix that a proxy strips."""
    return "../" * (path.count("/") - 1) or "./"

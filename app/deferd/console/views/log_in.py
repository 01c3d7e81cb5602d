"""Log in with a key, and log out."""

from __future__ import annotations

import re
from typing import Final

from starlette.responses import Response

from deferd.console.browser_requests import cookie_paths, cookie_values, is_secure
from deferd.console.visit import PageList, Visit
from deferd.contract.errors import Forbidden, RateLimited, StoreUnavailable, Unauthorized

SESSION_COOKIE = "deferd_session"
_SAME_SITE: Final = "lax"
"""With `strict` a link in a chat or a ticket leads to the log-in although there is a session: the browser sends no
cookie where another site began the navigation. `lax` adds just these: a GET that fills the window. No GET of the
console has an effect, no frame may hold its pages, and another site's window learns nothing of one
(`Cross-Origin-Opener-Policy`).

Forged writes depend on no cookie: a POST does nothing unless the browser says that a page of this host sent it
(`browser_requests.is_from_own_page`). That also covers what `strict` never did: other ports of the host, which are the
same site. `lax` still keeps the cookie from all POSTs, frames and requests of scripts of other sites.
"""
_PAGE_OF_CONSOLE = re.compile(r"(?:\./|console/)[!-\[\]-~]*")
pages = PageList()


@pages.page("/console/login", public=True)
async def log_in_page(visit: Visit) -> Response:
    """The form that asks for a key; without keys there is nothing to log in to."""
    if not visit.has_keys or visit.key is not None:
        return visit.redirect("./")
    return visit.render("log_in.html", error=None, after=_after(visit.query.get("next")))


@pages.action("/console/login", public=True)
async def log_in(visit: Visit) -> Response:
    """Begin a session and see the page that was wanted."""
    if not visit.has_keys:
        return visit.redirect("./")
    form = await visit.form()
    after = _after(form.get("next"))
    try:
        cookie = await visit.sessions.log_in(form.get("key", ""), visit.request)
    except Unauthorized:
        error = "This key is not known to the service."
        return visit.render("log_in.html", status=401, error=error, after=after)
    except Forbidden as forbidden:
        return visit.render("log_in.html", status=403, error=str(forbidden), after=after)
    except RateLimited as limited:
        error = f"Too many attempts. Try again in {limited.retry_after_s} s."
        return visit.render("log_in.html", status=429, error=error, after=after)
    response = visit.redirect(after)
    response.set_cookie(
        SESSION_COOKIE,
        cookie,
        path=cookie_paths(visit.scope)[-1],
        httponly=True,
        samesite=_SAME_SITE,
        secure=is_secure(visit.scope),
    )
    return response


@pages.action("/console/logout", public=True)
async def log_out(visit: Visit) -> Response:
    """End the session; the browser forgets it also when the store can't be reached."""
    try:
        await visit.sessions.log_out(cookie_values(visit.scope, SESSION_COOKIE))
        problem = None
    except StoreUnavailable:
        problem = "Logged out here. The store can't be reached; if it still has the session, that ends within 12 hours."
    response = visit.redirect("console/login", problem=problem)
    for path in cookie_paths(visit.scope):
        response.delete_cookie(SESSION_COOKIE, path=path, httponly=True, samesite=_SAME_SITE)
    return response


def _after(wanted: str | None) -> str:
    """The page to see after the log-in: only one of the console, percent-encoded, never another site."""
    if wanted is None or _PAGE_OF_CONSOLE.fullmatch(wanted) is None or ".." in wanted or "//" in wanted:
        return "./"
    return wanted

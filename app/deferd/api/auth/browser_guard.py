"""The gate of a service without keys: it refuses the requests that web pages of other sites make.

Anyone who runs programs on the service's machine may do everything. A browser runs there too, and any page can make it
send requests to loopback: a pop takes effect even if the page never sees the response. A site whose own name resolves
to loopback (DNS rebinding) would see the response as well. Browsers reveal both, in `Sec-Fetch-Site`, `Origin` or
`Referer`, and in `Host`. With keys `KeyGate` takes this gate's place: no page has a key.

A link is different: the browser opens it as if the person had typed the address (`Sec-Fetch-Site: none` when a typed
address redirects here). So what a browser opens, embeds or loads as an image or a script may only read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from functools import lru_cache

from deferd.api.auth.admission import WITHOUT_KEY, Addressed, Admission, Gate
from deferd.api.auth.api_keys import Key, Permission
from deferd.api.incoming_request import IncomingRequest
from deferd.api.responses import Header
from deferd.contract.errors import Forbidden
from deferd.contract.scopes import Scope
from deferd.engine.topic_usage import TopicUsage
from deferd.settings import flag, variable

_OWN_SITES = frozenset((b"same-origin", b"same-site", b"none"))
"""`none`: a person typed the address. `same-site`: possibly another port of this machine, see `_refusal`."""
_PRIVATE_ENDINGS = (b".localhost", b".local", b".internal", b".test", b".home.arpa")
"""Of names that cannot exist in the public DNS."""
_WEB_SCHEMES = frozenset((b"http", b"https"))
_READING_SCOPES = frozenset((Scope.READ, Scope.ADMIN))
"""Scopes with which a GET has no effect."""
_READING_METHODS = frozenset(("GET", "HEAD"))
_HOST_SHOWN = 100
_HOST_MAX_BYTES = 253 + len(b":65535")
"""The longest name in the DNS, and a port."""
_ADVICE = f"give it keys ({flag('keys_file')}, {variable('keys')})"


class BrowserGuard(Gate):
    """Admits what no foreign page sent. `allowed_hosts` are public names of the service (`--allowed-host`)."""

    has_keys = False

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        super().__init__()
        names = [name.lower().encode("ascii") for name in allowed_hosts]
        self._any_host = b"*" in names
        self._allowed_names = frozenset(names)
        self._allowed_endings = tuple(name[1:] for name in names if name.startswith(b"*."))

    @contextlib.asynccontextmanager
    async def running(self, _usage: TopicUsage) -> AsyncIterator[None]:
        """See Gate."""
        try:
            yield
        finally:
            self._audit_log.close()

    def admit(self, permission: Permission, request: IncomingRequest) -> Admission:
        """See Gate."""
        scope = permission.scope
        if scope is not None and (detail := self._refusal(scope, request.method, request.headers)) is not None:
            raise self._forbidden(detail, permission, request)
        return WITHOUT_KEY

    def find_admission(self, permission: Permission, method: str, headers: Sequence[Header]) -> Admission | None:
        """See Gate."""
        is_open = permission.scope is None or self._refusal(permission.scope, method, headers) is None
        return WITHOUT_KEY if is_open else None

    def check_again(self, key: Key, permission: Permission, topics: Collection[str], request: Addressed) -> None:
        """See Gate. Without keys none can be revoked."""

    def admit_page(self, scope: Scope | None, name: str, request: IncomingRequest) -> Admission:
        """See Gate. A page has no effect, so pages of other sites may link to it."""
        host = next((value for name, value in request.headers if name == b"host"), b"")
        if not self._is_own(host):
            raise self._forbidden(_public_name(host), Permission(scope, operation=name), request)
        return WITHOUT_KEY

    def _refusal(self, scope: Scope, method: str, headers: Iterable[Header]) -> str | None:
        """Why the request is refused; None when it is not.

        A browser sends each of its headers once. Of a repeated one neither counts.
        """
        host = b""
        origin = site = None
        is_fetched = True
        for name, value in headers:
            if name == b"host":
                host = value
            elif name == b"sec-fetch-site":
                site = value if site is None else b"%b, %b" % (site, value)
            elif name == b"sec-fetch-mode":
                is_fetched = is_fetched and value != b"navigate"
            elif name == b"sec-fetch-dest":
                is_fetched = is_fetched and value == b"empty"
            elif name == b"origin":
                origin = value if origin is None else b"%b, %b" % (origin, value)
        if not self._is_own(host):
            return _public_name(host)
        if site is not None:
            is_of_host = _is_page_of_host(headers, origin, host) if site == b"same-site" else True
            is_foreign = site not in _OWN_SITES or is_of_host is False
            is_fetched = is_fetched and is_of_host is not None  # an unknown page may only read
        elif origin is not None:  # a browser from before 2023, or one that does not trust `host` as this machine
            is_foreign = not is_origin_of(origin, host)
        else:
            is_more_than_reading = method in _READING_METHODS and scope is not Scope.READ
            is_foreign = is_more_than_reading and _is_for_unknown_page(headers, host)
        if is_foreign:
            return f"this service has no keys, so it refuses requests of web pages of other sites: {_ADVICE}"
        if not is_fetched and (method not in _READING_METHODS or scope not in _READING_SCOPES):
            return (
                "this request has effects and this service has no keys, so a browser may not open it as an address or "
                f"a link, or load it into a page: send it with curl, a client or /docs, or {_ADVICE}"
            )
        return None

    def _is_own(self, host: bytes) -> bool:
        return self._any_host or (len(host) <= _HOST_MAX_BYTES and (_is_private(host) or self._is_allowed(host)))

    def _is_allowed(self, host: bytes) -> bool:
        name = _name_of(host)
        return name in self._allowed_names or name.endswith(self._allowed_endings)

    def _forbidden(self, detail: str, permission: Permission, request: IncomingRequest) -> Forbidden:
        self.audit_refusal(None, permission, request, request.path_values.get("topic"), Forbidden.code)
        return Forbidden(detail)


def is_origin_of(origin: bytes, host: bytes) -> bool:
    """Whether an `Origin` belongs to pages of `host`. `null` and an empty host belong to nobody."""
    scheme, _, authority = origin.partition(b"://")
    return host != b"" and scheme in _WEB_SCHEMES and authority == host


def _is_for_unknown_page(headers: Iterable[Header], host: bytes) -> bool:
    """Whether a browser sends this without showing that a page of `host` made it do so.

    A GET for an image or a link carries no `Origin`. It carries no `Sec-Fetch-Site` for a host that the browser does
    not know as `localhost` or a loopback address, although it may be 0.0.0.0 or another name of this machine. And a
    page can suppress `Referer`. PowerShell calls itself Mozilla too, but sends no `Accept-Language`.
    """
    by_name = dict(headers)
    is_browser = by_name.get(b"user-agent", b"").startswith(b"Mozilla/") and b"accept-language" in by_name
    return is_browser and by_name.get(b"referer", b"").split(b"/", 3)[2:3] != [host]


def _public_name(host: bytes) -> str:
    name = host[:_HOST_SHOWN].decode("latin-1")
    return (
        f"this service has no keys, so it refuses requests for a public name such as {name}: allow the name with "
        f"{flag('allowed_host')} ({variable('allowed_host')}), or {_ADVICE}"
    )


@lru_cache(maxsize=256)
def _is_private(host: bytes) -> bool:
    """Whether a `Host` is empty, an address, or a name that cannot exist in the public DNS."""
    if host.startswith(b"["):
        return True
    name = _name_of(host)
    last = name.rpartition(b".")[2]
    return b"." not in name or last.isdigit() or name.endswith(_PRIVATE_ENDINGS)


def _name_of(host: bytes) -> bytes:
    """The name in a `Host`, without its port."""
    if host.startswith(b"["):
        return host.partition(b"]")[0].lower()
    return host.partition(b":")[0].lower().rstrip(b".")


def _is_page_of_host(headers: Iterable[Header], origin: bytes | None, host: bytes) -> bool | None:
    """Whether a page of `host`, on any port, made a browser send this; None when the browser does not name the page.

    `same-site` is not enough: user-pages.example.com and jobs.example.com are the same site.
    """
    page = dict(headers).get(b"referer") if origin is None else origin
    if page is None:
        return None
    return host != b"" and [_name_of(part) for part in page.split(b"/", 3)[2:3]] == [_name_of(host)]

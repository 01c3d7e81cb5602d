"""The gate of a service without keys: who is on its machine may do everything, and the pages of strangers nothing.

A browser is on the machine too, and a page of any site can have it send requests to loopback: a pop takes effect even
if the page never sees its answer. And a site whose own name leads to loopback (DNS rebinding) would see the answers as
well. Browsers tell both, in `Sec-Fetch-Site`, `Origin` or `Referer`, and in `Host`. It stands where `access` does when
there are keys, which no page has.

A link is different: the browser opens it as if the person had typed the address (`Sec-Fetch-Site: none` when the
address that was typed redirects here). So what a browser opens, embeds or loads as an image or a script may only read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.responses import Response

from deferd.api import problem_details
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.audit_log import Asked, Refusals
from deferd.api.responses import Header, JsonAnswer
from deferd.contract.errors import Forbidden
from deferd.engine.topic_usage import TopicUsage
from deferd.settings import flag, variable

if TYPE_CHECKING:
    from deferd.api.call import Call
    from deferd.api.operation import Operation

_OWN_SITES = frozenset((b"same-origin", b"same-site", b"none"))
"""`none` is a person who typed the address; `same-site` may be another port of this machine, see `_fault`."""
_PRIVATE_ENDINGS = (b".localhost", b".local", b".internal", b".test", b".home.arpa")
"""Of names that nobody can have in the public DNS."""
_SCOPES_OF_READING = frozenset((Scope.READ, Scope.ADMIN))
"""Scopes with which a GET has no effect."""
_HOST_SHOWN = 100
_HOST_MAX_BYTES = 253 + len(b":65535")
"""The longest name that the DNS knows, and a port."""
_WAY_OUT = f"give it keys ({flag('keys_file')}, {variable('keys')})"


class OwnMachine:
    """The gate. `allowed_hosts` are the public names under which it answers too, as `--allowed-host` gives them."""

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        names = [name.lower().encode("ascii") for name in allowed_hosts]
        self._any_host = b"*" in names
        self._allowed_names = frozenset(names)
        self._allowed_endings = tuple(name[1:] for name in names if name.startswith(b"*."))
        self._refusals = Refusals()

    @contextlib.asynccontextmanager
    async def keeping(self, _usage: TopicUsage) -> AsyncIterator[None]:
        """See Access; what was refused is told at the latest when the block ends."""
        try:
            yield
        finally:
            self._refusals.close()

    async def answer(self, operation: Operation, call: Call) -> Response:
        """The answer of `operation`, or the refusal."""
        if operation.need.scope is not None and (fault := self._fault(operation, call)) is not None:
            return self._refuse(fault, Asked(operation.what, call.path_values.get("topic"), call.client_address()))
        return await operation.answer(call)

    def refusal_of_page(
        self, headers: Iterable[Header], _scope: Scope | None, what: str, client: str | None
    ) -> JsonAnswer | None:
        """See Access. A page has no effect, so a link on a page of another site may lead there."""
        host = next((value for name, value in headers if name == b"host"), b"")
        return None if self._is_own(host) else self._refuse(_of_host(host), Asked(what, None, client))

    def _fault(self, operation: Operation, call: Call) -> str | None:
        host = b""
        origin = site = None
        is_fetched = True
        for name, value in call.headers:
            if name == b"host":
                host = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"sec-fetch-mode":
                is_fetched = is_fetched and value != b"navigate"
            elif name == b"sec-fetch-dest":
                is_fetched = is_fetched and value == b"empty"
            elif name == b"origin":
                origin = value
        if not self._is_own(host):
            return _of_host(host)
        if site is not None:
            is_of_host = _is_page_of_host(call.headers, origin, host) if site == b"same-site" else True
            comes_from_elsewhere = site not in _OWN_SITES or is_of_host is False
            is_fetched = is_fetched and is_of_host is not None  # from an unknown page nothing has effects
        elif origin is not None:  # a browser of before 2023, or one to which `host` is not surely this machine
            comes_from_elsewhere = origin.partition(b"://")[2] != host
        else:
            is_more_than_reading = call.method == "GET" and operation.need.scope is not Scope.READ
            comes_from_elsewhere = is_more_than_reading and _is_for_unknown_page(call.headers, host)
        if comes_from_elsewhere:
            return f"this service has no keys, and so answers no web pages of other sites: {_WAY_OUT}"
        if not is_fetched and (call.method != "GET" or operation.need.scope not in _SCOPES_OF_READING):
            return (
                "this call has effects and this service has no keys, so it is refused to a browser that opens it as an "
                f"address or a link, or loads it into a page: send it with curl, a client or /docs, or {_WAY_OUT}"
            )
        return None

    def _is_own(self, host: bytes) -> bool:
        return self._any_host or (len(host) <= _HOST_MAX_BYTES and (_is_private(host) or self._is_allowed(host)))

    def _is_allowed(self, host: bytes) -> bool:
        name = _name_of(host)
        return name in self._allowed_names or name.endswith(self._allowed_endings)

    def _refuse(self, fault: str, asked: Asked) -> JsonAnswer:
        self._refusals.note(None, asked, Forbidden.code)
        return problem_details.answer(Forbidden(fault))


def _is_for_unknown_page(headers: Iterable[Header], host: bytes) -> bool:
    """Whether a browser asks, and does not say that a page of `host` had it ask.

    With a GET for an image or a link it sends no `Origin`, and where it takes the host for neither `localhost` nor a
    loopback address (it may be 0.0.0.0 or a name of this machine all the same) no `Sec-Fetch-Site`; and a page can
    have it leave out `Referer`. PowerShell calls itself Mozilla as well, but speaks no languages.
    """
    given = dict(headers)
    is_browser = given.get(b"user-agent", b"").startswith(b"Mozilla/") and b"accept-language" in given
    return is_browser and given.get(b"referer", b"").split(b"/", 3)[2:3] != [host]


def _of_host(host: bytes) -> str:
    name = host[:_HOST_SHOWN].decode("latin-1")
    return (
        f"this service has no keys, and so does not answer under a public name as {name} is: allow the name with "
        f"{flag('allowed_host')} ({variable('allowed_host')}), or {_WAY_OUT}"
    )


@lru_cache(maxsize=256)
def _is_private(host: bytes) -> bool:
    """Whether a `Host` is none, an address, or a name that nobody can have in the public DNS."""
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
    """Whether a page of `host`, on whatever port, had a browser ask; None when the browser does not say which page.

    `same-site` alone does not say it: user-pages.example.com is of the same site as jobs.example.com.
    """
    page = dict(headers).get(b"referer") if origin is None else origin
    if page is None:
        return None
    return [_name_of(part) for part in page.split(b"/", 3)[2:3]] == [_name_of(host)]

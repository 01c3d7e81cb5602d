"""Who may do what: the gate that every request passes when the service has keys.

It stands within `Boundary`, behind both doors, and in the order in which it costs least: who asks (401), how often
(429), whether the key has the scope (403); then the request is read, and last its topics are known (403).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from deferd.api import problem_details
from deferd.api.auth.api_keys import NO_BOUNDS, Key, KeyRing, KeysRefused, Scope
from deferd.api.auth.audit_log import Asked, Refusals
from deferd.api.auth.key_source import CHECK_S, KeySource
from deferd.api.auth.quota import Quota, keep_counting
from deferd.api.auth.usage_limits import Account
from deferd.api.responses import Header, JsonAnswer
from deferd.contract.errors import DeferdError, Forbidden, RateLimited, Unauthorized
from deferd.engine.topic_usage import TopicUsage

if TYPE_CHECKING:
    from deferd.api.auth.permissions import Arguments, Need
    from deferd.api.call import Call
    from deferd.api.operation import Operation

_log = logging.getLogger("deferd.keys")
_ASK_FOR_PASSWORD = (b"www-authenticate", b'Basic realm="deferd: any name, a key as the password", charset="UTF-8"')


class Access:
    """The gate. Until `keeping` has read the keys it lets nobody in."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._ring = KeyRing(())
        self._accounts: dict[str, Account] = {}
        self._refusals = Refusals()

    @contextlib.asynccontextmanager
    async def keeping(self, usage: TopicUsage) -> AsyncIterator[None]:
        """Read the keys, and again when their file changes, and count for the quotas, until the block ends.

        Raises:
            KeysRefused: they cannot be used, and there are no last good ones. Later on that is only logged, and the
                old ones stay.
        """
        self.take(await asyncio.to_thread(self._source.read))
        tasks = (
            asyncio.create_task(self._follow(), name="keys"),
            asyncio.create_task(keep_counting(self._quotas, usage), name="quotas"),
        )
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._refusals.close()

    async def _follow(self) -> None:
        while self._source.file is not None:
            await asyncio.sleep(CHECK_S)
            try:
                keys = await asyncio.to_thread(self._source.read_if_changed)
            except KeysRefused as exc:
                _log.error("the keys stay as they were: %s", exc)
            except Exception:  # noqa: BLE001 (to end here would leave a key that was withdrawn valid for ever)
                _log.exception("the keys stay as they were: their file could not be looked at")
            else:
                if keys is not None:
                    self.take(keys)
                    _log.info("%d keys were read anew", len(keys), extra={"keys": len(keys)})

    def _quotas(self) -> list[Quota]:
        return [account.quota for account in self._accounts.values() if account.quota is not None]

    def take(self, keys: Collection[Key]) -> None:
        """Let these keys in and no others. A key whose limit stays the same goes on with what it has left of it."""
        self._accounts = {
            key.name: Account(key, self._accounts.get(key.name))
            for key in keys
            if key.limit is not None or key.bounds != NO_BOUNDS
        }
        self._ring = KeyRing(tuple(keys))

    async def answer(self, operation: Operation, call: Call) -> Response:
        """The answer of `operation` when the key of `call` allows it, else the refusal."""
        need = operation.need
        if need.scope is None:
            return await operation.answer(call)

        def asked() -> Asked:
            return Asked(operation.what, call.path_values.get("topic"), call.client_address())

        admitted = self._admit(call.headers, need.scope, asked)
        if isinstance(admitted, JsonAnswer):
            return admitted
        key, account = admitted
        call.key = key

        def forbid(topic: str) -> Forbidden:
            return self._forbidden(key, need.scope, asked()._replace(topic=topic))

        if account is None:
            check = None if key.topics.everything else _Check(key, need, None, forbid)
            return await operation.answer(call, check)
        call.account = account
        try:
            answer = await operation.answer(call, _Check(key, need, account, forbid))
        except DeferdError as error:
            answer = problem_details.answer(error)
        answer.raw_headers.extend(account.headers())
        return answer

    def check_again(self, call: Call, scope: Scope, what: str, topics: Collection[str]) -> None:
        """For a call that has waited: keys may have been read anew since it was let in.

        Raises:
            Unauthorized, Forbidden: its key would not be let in now.
        """
        key = self._ring.now(call.key)
        if key is call.key:
            return
        asked = Asked(what, ",".join(topics), call.client_address())
        if key is None:
            self._refusals.note(call.key.name, asked, Unauthorized.code)
            raise Unauthorized("the key was withdrawn while the call waited")
        if scope not in key.scopes or not all(map(key.topics.match, topics)):
            raise self._forbidden(key, scope, asked)

    def refusal_of_page(
        self, headers: Iterable[Header], scope: Scope | None, what: str, client: str | None
    ) -> JsonAnswer | None:
        """What answers a request for something that is no operation; None when it may go on.

        `scope` None: there is no such page, and any key may hear that. A page may be asked for by a browser, which
        can be made to ask for a password but not to send a bearer token.
        """
        admitted = self._admit(headers, scope, lambda: Asked(what, None, client), browser=scope is not None)
        return admitted if isinstance(admitted, JsonAnswer) else None

    def _admit(
        self, headers: Iterable[Header], scope: Scope | None, asked: Callable[[], Asked], *, browser: bool = False
    ) -> tuple[Key, Account | None] | JsonAnswer:
        """Who asks, and its account if it has one; the refusal when it may not."""
        token = _token(headers, browser=browser)
        key = None if token is None else self._ring.find(token)
        if key is None:
            self._refusals.note(None, asked(), Unauthorized.code)
            return _unauthorized(token, browser=browser)
        account = self._accounts.get(key.name)
        refusal: JsonAnswer | None = None
        if account is not None and (wait_s := account.take()) > 0:
            refusal = problem_details.answer(
                RateLimited(f"key {key.name!r} asks more often than it may", retry_after_s=math.ceil(wait_s))
            )
        elif scope is not None and scope not in key.scopes:
            refusal = problem_details.answer(self._forbidden(key, scope, asked()))
        if refusal is None:
            return key, account
        if account is not None:
            refusal.raw_headers.extend(account.headers())
        return refusal

    def _forbidden(self, key: Key, scope: Scope | None, asked: Asked) -> Forbidden:
        self._refusals.note(key.name, asked, Forbidden.code)
        if asked.topic == "*":
            where = " for all topics"
        else:
            where = "" if asked.topic is None else f" for topic {asked.topic[:200]!r}"
        return Forbidden(f"key {key.name!r} does not have scope {scope!s}{where}")


class _Check:
    """What a call must pass when its key is not for everything; see `operation.Check`."""

    __slots__ = ("_account", "_forbid", "_key", "_need")

    def __init__(self, key: Key, need: Need, account: Account | None, forbid: Callable[[str], Forbidden]) -> None:
        self._key = key
        self._need = need
        self._account = account
        self._forbid = forbid

    def body(self, raw: bytes) -> None:
        if self._account is not None:
            self._account.check_body(raw)

    def value(self, value: dict[str, Any]) -> None:
        if self._account is not None:
            self._account.check_depth(value)

    def arguments(self, given: Arguments) -> None:
        topic = self._need.topic_out_of_reach(self._key, given)
        if topic is not None:
            raise self._forbid(topic)
        if self._account is not None:
            self._account.check_batch(given)
            self._account.check_times(given)


def _unauthorized(token: bytes | None, *, browser: bool) -> JsonAnswer:
    detail = "the key is none of those that this service knows"
    if token is None:
        detail = "a key is needed, as `Authorization: Bearer` and its token"
        if browser:
            detail += "; a browser takes the token as the password, with any name"
    answer = problem_details.answer(Unauthorized(detail))
    if browser:
        answer.raw_headers.insert(0, _ASK_FOR_PASSWORD)
    return answer


def _token(headers: Iterable[Header], *, browser: bool) -> bytes | None:
    """The token among the headers, None when there is none; one that is sent twice is as good as none.

    With `browser` it may also be the password of HTTP Basic authentication (RFC 7617).
    """
    token = None
    for name, value in headers:
        if name == b"authorization":
            if token is not None:
                return None
            scheme, _, credentials = value.partition(b" ")
            if scheme.lower() == b"bearer":
                token = credentials.strip()
            elif browser and scheme.lower() == b"basic":
                token = _password(credentials)
            else:
                return None
    return token or None


def _password(credentials: bytes) -> bytes:
    """That of Basic credentials, empty when they are none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""

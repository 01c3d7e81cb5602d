"""The gate of a service with keys.

It checks in the order of cost: the key (401), its rate limit (429), its scope (403); then, while the request is read,
the limits of its size (413, 422), and last its topics (403).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Any

from deferd.api.auth.admission import WITHOUT_KEY, Addressed, Admission, Gate
from deferd.api.auth.api_keys import NO_BOUNDS, Arguments, Key, KeyRing, KeysRefused, Permission
from deferd.api.auth.key_source import CHECK_S, KeySource
from deferd.api.auth.quota import Quota, keep_counting
from deferd.api.auth.usage_limits import KeyUsage
from deferd.api.incoming_request import IncomingRequest
from deferd.api.responses import Header
from deferd.contract.errors import Forbidden, RateLimited, Unauthorized
from deferd.contract.scopes import Scope
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.topic_usage import TopicUsage

_TOPIC_SHOWN = 200
_log = logging.getLogger("deferd.keys")


class KeyGate(Gate):
    """Admits requests with a key. Until `running` has read the keys it admits none."""

    has_keys = True

    def __init__(self, source: KeySource) -> None:
        super().__init__()
        self._source = source
        self._ring = KeyRing(())
        self._usages: dict[str, KeyUsage] = {}

    @contextlib.asynccontextmanager
    async def running(self, usage: TopicUsage) -> AsyncIterator[None]:
        """Read the keys, reload them when their file changes, and count for the quotas, until the block ends.

        Raises:
            KeysRefused: the keys are invalid and there are no last good ones. A later failure is only logged, and the
                old keys stay valid.
        """
        self.replace_keys(await asyncio.to_thread(self._source.read))
        tasks = (
            asyncio.create_task(self._reload_changed_keys(), name="keys"),
            asyncio.create_task(keep_counting(self._quotas, usage), name="quotas"),
        )
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._audit_log.close()

    async def _reload_changed_keys(self) -> None:
        while self._source.file is not None:
            await asyncio.sleep(CHECK_S)
            try:
                keys = await asyncio.to_thread(self._source.read_if_changed)
            except KeysRefused as exc:
                _log.error("the keys stay as they were: %s", exc)
            except Exception:  # noqa: BLE001 (if this task ended, a revoked key would stay valid for ever)
                _log.exception("the keys stay as they were: their file could not be checked")
            else:
                if keys is not None:
                    self.replace_keys(keys)
                    _log.info("%d keys were reloaded", len(keys), extra={"keys": len(keys)})

    def _quotas(self) -> list[Quota]:
        return [usage.quota for usage in self._usages.values() if usage.quota is not None]

    def replace_keys(self, keys: Collection[Key]) -> None:
        """Admit these keys and no others. A key whose rate limit is unchanged keeps what is left of it."""
        self._usages = {
            key.name: KeyUsage(key, self._usages.get(key.name))
            for key in keys
            if key.limit is not None or key.bounds != NO_BOUNDS
        }
        self._ring = KeyRing(tuple(keys))
        self.generation += 1

    def admit(self, permission: Permission, request: IncomingRequest) -> Admission:
        """See Gate."""
        if permission.scope is None:
            return WITHOUT_KEY
        return self._identify(permission, request)

    def find_admission(
        self,
        permission: Permission,
        method: str,  # noqa: ARG002 (Gate's)
        headers: Sequence[Header],
    ) -> Admission | None:
        """See Gate."""
        token = _token(headers, password_allowed=False)
        key = None if token is None else self._ring.find(token)
        if key is None or permission.scope not in key.scopes:
            return None
        return Admission(key, self._usages.get(key.name))

    def admit_page(self, scope: Scope | None, name: str, request: IncomingRequest) -> Admission:
        """See Gate. A browser can be made to ask for a password but not for a bearer token."""
        return self._identify(Permission(scope, operation=name), request, password_allowed=scope is not None)

    def _identify(
        self, permission: Permission, request: IncomingRequest, *, password_allowed: bool = False
    ) -> _KeyAdmission:
        token: bytes | None = None
        if request.key_digest is not None:
            key = self._ring.of_digest(request.key_digest)
        else:
            token = _token(request.headers, password_allowed=password_allowed)
            key = None if token is None else self._ring.find(token)
        if key is None:
            self.audit_refusal(None, permission, request, request.path_values.get("topic"), Unauthorized.code)
            raise _unauthorized(token, password_allowed=password_allowed)
        return _KeyAdmission(self, permission, request, key, self._usages.get(key.name))

    def check_again(self, key: Key, permission: Permission, topics: Collection[str], request: Addressed) -> None:
        """See Gate."""
        now = self.key_of_digest(key.digest)
        if now is key:
            return
        joined = ",".join(topics)
        if now is None:
            self.audit_refusal(key.name, permission, request, joined, Unauthorized.code)
            raise Unauthorized("the key was revoked while the request waited")
        if permission.scope not in now.scopes or not all(map(now.topics.match, topics)):
            raise self.forbidden(key, permission, request, joined)

    def forbidden(
        self,
        key: Key,
        permission: Permission,
        request: Addressed,
        topic: str | None,
        scope: Scope | None = None,
        *,
        field: str | None = None,
    ) -> Forbidden:
        """The error for a key without `scope`, by default the permission's scope, and a topic, which `field` names.

        It is written to the audit log.
        """
        self.audit_refusal(key.name, permission, request, topic, Forbidden.code)
        text = f"key {key.name!r} does not have scope {scope or permission.scope!s}"
        if topic is not None:
            text += " for all topics" if topic == "*" else f" for topic {topic[:_TOPIC_SHOWN]!r}"
        return Forbidden(text if field is None else f"{text} of `{field}`")

    def find_key(self, token: bytes) -> Key | None:
        """See Gate."""
        return self._ring.find(token)

    def key_of_digest(self, digest: bytes) -> Key | None:
        """See Gate."""
        return self._ring.of_digest(digest)


class _KeyAdmission(Admission):
    """A request that has a known key."""

    __slots__ = ("_gate", "_permission", "_request")

    key: Key

    def __init__(
        self, gate: KeyGate, permission: Permission, request: IncomingRequest, key: Key, usage: KeyUsage | None
    ) -> None:
        super().__init__(key, usage)
        self._gate = gate
        self._permission = permission
        self._request = request

    def authorize(self) -> None:
        """See Admission."""
        if self.usage is not None and (wait_s := self.usage.take()) > 0:
            raise RateLimited(f"key {self.key.name!r} exceeds its rate limit", retry_after_s=math.ceil(wait_s))
        scope = self._permission.scope
        if scope is not None and scope not in self.key.scopes:
            raise self._forbidden(self._request.path_values.get("topic"))

    def check_body(self, raw: bytes) -> None:
        """See Admission."""
        if self.usage is not None:
            self.usage.check_body(raw)

    def check_value(self, value: dict[str, Any]) -> None:
        """See Admission."""
        if self.usage is not None:
            self.usage.check_depth(value)

    def check_arguments(self, arguments: Arguments) -> None:
        """See Admission."""
        topic = self._permission.denied_topic(self.key, arguments)
        if topic is not None:
            raise self._forbidden(topic)
        for topics, field in ((self._permission.puts_into, None), (self._permission.ends_into, "on_end")):
            for topic in topics(arguments):
                if Scope.PUT not in self.key.scopes or not self.key.topics.match(topic):
                    raise self._forbidden(topic, Scope.PUT, field=field)
        if self.usage is not None:
            self.usage.check_batch(arguments)
            self.usage.check_times(arguments)

    def check_topic(self, topic: str) -> None:
        """See Admission."""
        if not self.key.topics.match(topic):
            self._gate.audit_refusal(self.key_name, self._permission, self._request, topic, Forbidden.code)
            raise Forbidden(f"key {self.key.name!r} does not have scope {self._permission.scope!s} for its topic")

    def check_again(self, topics: Collection[str]) -> None:
        """See Admission."""
        self._gate.check_again(self.key, self._permission, topics, self._request)

    def current_topics(self) -> TopicPatterns | None:
        """See Admission."""
        self.check_again(())
        key = self._gate.key_of_digest(self.key.digest) or self.key
        return None if key.topics.everything else key.topics

    def _forbidden(self, topic: str | None, scope: Scope | None = None, *, field: str | None = None) -> Forbidden:
        return self._gate.forbidden(self.key, self._permission, self._request, topic, scope, field=field)


def _unauthorized(token: bytes | None, *, password_allowed: bool) -> Unauthorized:
    if token is not None:
        return Unauthorized("the key is not known to this service")
    detail = "a key is required: send its token as `Authorization: Bearer`"
    if password_allowed:
        detail += "; in a browser, enter the token as the password, with any name"
    return Unauthorized(detail)


def _token(headers: Iterable[Header], *, password_allowed: bool) -> bytes | None:
    """The bearer token in the headers; None without one, or with two Authorization headers.

    With `password_allowed` it may also be the password of HTTP Basic authentication (RFC 7617).
    """
    token = None
    for name, value in headers:
        if name == b"authorization":
            if token is not None:
                return None
            scheme, _, credentials = value.partition(b" ")
            if scheme.lower() == b"bearer":
                token = credentials.strip()
            elif password_allowed and scheme.lower() == b"basic":
                token = _password(credentials)
            else:
                return None
    return token or None


def _password(credentials: bytes) -> bytes:
    """The password in Basic credentials; empty when they are malformed."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""

"""Who may do what: the gate that every request passes when the service has keys.

It stands within `Boundary`, behind both doors, and in the order in which it costs least: who asks (401), how often
(429), whether the key has the scope (403); then the request is read, and last its topics are known (403).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response

from deferd.api import audit, problems
from deferd.api.answers import Header, JsonAnswer
from deferd.api.key_source import KeySource
from deferd.api.keys import Key, KeyRing, KeysRefused, Scope
from deferd.api.rate_limit import Bucket
from deferd.errors import DeferdError, Forbidden, RateLimited, Unauthorized

if TYPE_CHECKING:
    from deferd.api.call import Call
    from deferd.api.needs import Arguments
    from deferd.api.operation import Operation

CHECK_S = 1.0
"""How often the file is looked at."""
_log = logging.getLogger("deferd.keys")
_BEARER = b"bearer "


class _Asked(NamedTuple):
    """What a refusal is told with."""

    what: str
    topic: str | None
    client: str | None


class Access:
    """The gate. Until `keeping` has read the keys it lets nobody in."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._ring = KeyRing(())
        self._buckets: dict[str, Bucket] = {}

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Read the keys, and again when their file changes, until the block ends.

        Raises:
            KeysRefused: they cannot be used as they are. Later on that is only logged, and the old ones stay.
        """
        self.take(await asyncio.to_thread(self._source.read))
        if self._source.file is None:
            yield
            return
        following = asyncio.create_task(self._follow(), name="keys")
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait((following,))

    async def _follow(self) -> None:
        while True:
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

    def take(self, keys: Collection[Key]) -> None:
        """Let these keys in and no others. A key whose limit stays the same goes on with what it has left of it."""
        now_s = time.monotonic()
        buckets: dict[str, Bucket] = {}
        for key in keys:
            if key.limit is not None:
                old = self._buckets.get(key.name)
                buckets[key.name] = old if old is not None and old.limit == key.limit else Bucket(key.limit, now_s)
        self._ring, self._buckets = KeyRing(tuple(keys)), buckets

    async def answer(self, operation: Operation, call: Call) -> Response:
        """The answer of `operation` when the key of `call` allows it, else the refusal."""
        need = operation.need
        if need.scope is None:
            return await operation.answer(call)

        def asked() -> _Asked:
            return _Asked(operation.what, call.path_values.get("topic"), call.client_address())

        admitted = self._admit(call.headers, need.scope, asked)
        if isinstance(admitted, JsonAnswer):
            return admitted
        key, bucket = admitted
        call.key = key

        def check_topics(given: Arguments) -> None:
            topic = need.topic_out_of_reach(key, given)
            if topic is not None:
                raise _forbidden(key, need.scope, asked()._replace(topic=topic))

        check = None if key.topics.everything else check_topics
        if bucket is None:
            return await operation.answer(call, check)
        try:
            answer = await operation.answer(call, check)
        except DeferdError as error:
            answer = problems.answer(error)
        answer.raw_headers.extend(bucket.headers())
        return answer

    def refusal_of_page(
        self, headers: Iterable[Header], scope: Scope | None, what: str, client: str | None
    ) -> JsonAnswer | None:
        """What answers a request for something that is no operation; None when it may go on. `scope` None: any key."""
        admitted = self._admit(headers, scope, lambda: _Asked(what, None, client))
        return admitted if isinstance(admitted, JsonAnswer) else None

    def _admit(
        self, headers: Iterable[Header], scope: Scope | None, asked: Callable[[], _Asked]
    ) -> tuple[Key, Bucket | None] | JsonAnswer:
        """Who asks, and its bucket if it has one; the refusal when it may not."""
        token = _token(headers)
        key = None if token is None else self._ring.find(token)
        if key is None:
            what, topic, client = asked()
            audit.refused(key=None, call=what, topic=topic, client=client, outcome=Unauthorized.code)
            return problems.answer(
                Unauthorized(
                    "a key is needed, as `Authorization: Bearer` and its token"
                    if token is None
                    else "the key is none of those that this service knows"
                )
            )
        bucket = self._buckets.get(key.name)
        if bucket is not None and (wait_s := bucket.take(time.monotonic())) > 0:
            limited = problems.answer(
                RateLimited(f"key {key.name!r} asks more often than it may", retry_after_s=math.ceil(wait_s))
            )
            limited.raw_headers.extend(bucket.headers())
            return limited
        if scope is not None and scope not in key.scopes:
            refusal = problems.answer(_forbidden(key, scope, asked()))
            if bucket is not None:
                refusal.raw_headers.extend(bucket.headers())
            return refusal
        return key, bucket


def _forbidden(key: Key, scope: Scope | None, asked: _Asked) -> Forbidden:
    audit.refused(key=key.name, call=asked.what, topic=asked.topic, client=asked.client, outcome=Forbidden.code)
    if asked.topic == "*":
        where = " for all topics"
    else:
        where = "" if asked.topic is None else f" for topic {asked.topic[:200]!r}"
    return Forbidden(f"key {key.name!r} does not have scope {scope!s}{where}")


def _token(headers: Iterable[Header]) -> bytes | None:
    """The bearer token among the headers, None when there is none; one that is sent twice is as good as none."""
    token = None
    for name, value in headers:
        if name == b"authorization":
            if token is not None or value[: len(_BEARER)].lower() != _BEARER:
                return None
            token = value[len(_BEARER) :].strip()
    return token or None

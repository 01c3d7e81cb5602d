"""The direct path of pops of one topic. Its specification is `deferd.api.routes.pop`."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from re import Match
from typing import Any, ClassVar, NamedTuple

from deferd.api import request_query
from deferd.api.consumer_tracker import MOST_NOTES
from deferd.api.direct.call import Connection, DirectCall
from deferd.api.direct.verb import DirectVerb, KnownHead
from deferd.api.job_templates import written_deliveries
from deferd.api.routes.pop import NO_STORE, PopQuery, return_undelivered
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract.errors import DeferdError
from deferd.contract.operations.pop import POP_JOBS, POP_JOBS_BY_GET
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.stored_fields import to_ms

_EMPTY_OBJECT = b"{}"
_KEPT_QUERY_BYTES = 200
"""Parsed queries are kept; clients send the same few. Not longer ones, to bound the memory."""
_NO_STORE_FIELD = b"".join([b"%b: %b\r\n" % field for field in NO_STORE])


class _Pop(NamedTuple):
    request: PopRequest
    wait_ms: int


class DirectPop(DirectVerb):
    """Pops of one topic."""

    operations: ClassVar = (POP_JOBS_BY_GET, POP_JOBS)
    query: ClassVar = r"(?:\?([!\x22$-~]*))?"
    has_same_lines: ClassVar = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._notes = self._app.consumers.notes
        self._refusing: set[asyncio.Task[None]] = set()

    def begin(
        self,
        connection: Connection,
        head: KnownHead,
        line: Match[str],
        body: bytes,
        traceparent: str | None,  # noqa: ARG002 (DirectVerb's)
    ) -> DirectCall | None:
        """See DirectVerb."""
        admission = self._admission(head)
        if admission is None or (body and body != _EMPTY_OBJECT):
            return None
        topic, query = self._path_values(line, 2)
        query = query or ""
        differs = "request_id" in query or len(query) > _KEPT_QUERY_BYTES
        pop = _parse_new(query) if differs else _parse(query)
        if pop is None or (pop.request.request_id and self._app.engine.partitions.known.count(topic) > 1):
            return None
        try:
            self._app.unsent.check(topic, admission.key_name)
        except DeferdError:
            return None
        waits = admission.usage.waiting_pop() if pop.wait_ms and admission.usage is not None else None
        call = self._admitted(connection, admission, topic, body, waits)
        if call is not None:
            notes = self._notes
            if len(notes) < MOST_NOTES:
                notes[connection.client or id(connection)] = (head, topic, pop.request, call)
            dispatcher = self._app.engine.dispatcher
            waiter = dispatcher.begin_pop(topic, pop.request, pop.wait_ms, partial(self._respond, call, topic))
            call.abandon = partial(dispatcher.cancel, waiter)
        return call

    def _respond(self, call: DirectCall, topic: str, jobs: list[JobRecord], error: Exception | None) -> None:
        try:
            if error is not None:
                call.fail(error)
                return
            if jobs:
                self._app.gate.check_again(call.admission.key, self._operation.permission, (topic,), call)
            body = written_deliveries(jobs)
            if len(body) > LARGE_BYTES:
                self._app.unsent.claim(len(body), call.key_name, topic)
            call.respond(200, body, _NO_STORE_FIELD)
        except DeferdError as exc:
            call.abandon = None
            refusing = asyncio.get_running_loop().create_task(self._refuse(call, jobs, exc))
            self._refusing.add(refusing)
            refusing.add_done_callback(self._refusing.discard)
        except Exception as exc:  # noqa: BLE001 (every error gets a response)
            call.fail(exc)

    async def _refuse(self, call: DirectCall, jobs: list[JobRecord], error: DeferdError) -> None:
        await return_undelivered(self._app.engine, jobs)
        call.fail(error)


def _parse_new(query: str) -> _Pop | None:
    """The pop of a query; None when its parameters are invalid."""
    parsed = request_query.read(query.encode("ascii"), PopQuery, [])
    if parsed is None:
        return None
    ttr_ms = None if parsed.ttr is None else to_ms(parsed.ttr)
    return _Pop(PopRequest(parsed.count, ttr_ms, parsed.consumer, parsed.request_id), to_ms(parsed.wait))


_parse = lru_cache(maxsize=1000)(_parse_new)

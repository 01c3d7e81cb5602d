"""The direct path of pops. Its specification is `deferd.api.routes.deliveries`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

from deferd.api import request_query
from deferd.api.auth.admission import Admission
from deferd.api.consumer_tracker import MOST_NOTES
from deferd.api.direct.verb import QUERY, DirectCall, DirectRequest, DirectVerb
from deferd.api.job_responses import written_deliveries
from deferd.api.routes.deliveries import NO_STORE, PopQuery, named_topics, return_undelivered
from deferd.api.routes.queries import TOPICS_PATTERN
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract import limits
from deferd.contract.errors import DeferdError
from deferd.contract.operations.jobs import POP_JOBS, POP_JOBS_BY_GET
from deferd.contract.topic_patterns import is_pattern
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord, to_ms
from deferd.engine.topic_search import TopicSelection

_EMPTY_OBJECT = b"{}"
_KEPT_BYTES = 200
"""Parsed queries and topics are kept; clients send the same few. Not longer ones, to bound the memory."""
_REQUEST_ID = re.compile(rf"(?<![^&])request_id=({limits.ID_PATTERN.strip('^$')})(?![^&])", re.ASCII)
"""No `&` is a part of it, so the query without it counts as having as many parameters: there may be 100."""
_NO_STORE_FIELD = b"".join([b"%b: %b\r\n" % field for field in NO_STORE])


class _Pop(NamedTuple):
    request: PopRequest
    wait_ms: int
    waits: bool
    """As the limit of its key counts it, also if it waits for less than a millisecond."""


class DirectPop(DirectVerb):
    """Pops of topics and patterns."""

    operations: ClassVar = (POP_JOBS_BY_GET, POP_JOBS)
    topic: ClassVar = TOPICS_PATTERN.strip("^$").replace("(,", "(?:,")
    query: ClassVar = QUERY
    has_same_lines: ClassVar = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._notes = self._app.consumers.notes
        self._tasks: set[asyncio.Task[None]] = set()

    def _begin(self, request: DirectRequest, admission: Admission) -> DirectCall | None:
        """See DirectVerb."""
        if request.body and request.body != _EMPTY_OBJECT:
            return None
        topics, query = request.values
        if "request_id" in query:
            pop = _parse_named(query)
        else:
            pop = _parse(query) if len(query) <= _KEPT_BYTES else _parse_new(query)
        has_many = "," in topics or "*" in topics
        if pop is None or (has_many and len(set(topics.split(","))) <= topics.count(",")):
            return None
        try:
            self._app.unsent.check(topics, admission.key_name)
        except DeferdError:
            return None
        held = admission.usage.waiting_pop() if pop.waits and admission.usage is not None else None
        call = self._admitted(request, admission, topics, held)
        if call is not None:
            notes = self._notes
            if len(notes) < MOST_NOTES:
                # A client may wait for others on the same connection: pops of many topics have notes of their own.
                caller = request.connection.caller(request.head.headers)
                many = (*(caller or (None, id(request.connection))), topics) if has_many else None
                notes[many or caller or id(request.connection)] = (request.head, topics, pop.request, call)
            names, selection = _named_topics(topics, admission) if has_many else ((topics,), None)
            dispatcher, on_end = self._app.engine.dispatcher, partial(self._respond, call, topics)
            waiter = dispatcher.begin_pop(names, pop.request, pop.wait_ms, on_end, selection)
            call.abandon = partial(dispatcher.cancel, waiter)
        return call

    def _respond(self, call: DirectCall, topics: str, jobs: list[JobRecord], error: Exception | None) -> None:
        try:
            if error is not None:
                call.fail(error)
                return
            key = call.admission.key
            if jobs and key is not None and self._app.gate.key_of_digest(key.digest) is not key:
                named = [topic for topic in topics.split(",") if not is_pattern(topic)]
                delivered = dict.fromkeys([*named, *(job.topic for job in jobs)])
                self._app.gate.check_again(key, self._operation.permission, delivered, call)
            body = written_deliveries(jobs)
            if len(body) > LARGE_BYTES:
                self._app.unsent.claim(len(body), call.admission.key_name, topics)
            call.respond(200, body, _NO_STORE_FIELD)
        except DeferdError as exc:
            call.abandon = None
            task = asyncio.get_running_loop().create_task(self._refuse(call, jobs, exc))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
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
    request = PopRequest(parsed.count, ttr_ms, parsed.consumer, parsed.request_id)
    return _Pop(request, to_ms(parsed.wait), waits=parsed.wait > 0)


def _parse_named(query: str) -> _Pop | None:
    """As `_parse_new`, for a query with a `request_id`: clients send a new one each time, and the rest is the same."""
    found = _REQUEST_ID.search(query) if len(query) <= _KEPT_BYTES else None
    if found is None:
        return _parse_new(query)
    pop = _parse(query[: found.start()] + query[found.end() :])
    if pop is None or pop.request.request_id is not None:
        return None
    same = pop.request
    return pop._replace(request=PopRequest(same.count, same.ttr_ms, same.consumer, found[1]))


def _named_topics(topics: str, admission: Admission) -> tuple[Sequence[str], TopicSelection | None]:
    known = _known_topics if len(topics) <= _KEPT_BYTES else named_topics
    return known(topics, admission.visible_topics)


_parse = lru_cache(maxsize=1000)(_parse_new)
_known_topics = lru_cache(maxsize=1000)(named_topics)

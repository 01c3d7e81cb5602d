"""The direct paths of `POST /jobs` and `DELETE /jobs/{topic}/{id}`. Their specification is `deferd.api.routes.jobs`."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, ClassVar

from deferd.api import request_query
from deferd.api.auth.admission import Admission
from deferd.api.body_decoding import decode_put
from deferd.api.context import AppContext
from deferd.api.direct.verb import QUERY, DirectCall, DirectRequest, DirectVerb
from deferd.api.job_responses import written_put
from deferd.api.operation import OperationRoute
from deferd.api.responses import encode
from deferd.api.routes.jobs import CancelQuery
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract.operations.jobs import CANCEL_JOB, PUT_JOB, Cancelled
from deferd.engine.cancels import state_when_cancelled
from deferd.engine.puts import StoredPut, outcome_of
from deferd.engine.script_arguments import EncodedPut, PutBounds


class DirectPut(DirectVerb):
    """Puts of one job that `decode_put` understands."""

    operations: ClassVar = (PUT_JOB,)
    has_same_lines: ClassVar = True
    values: ClassVar = 0

    def __init__(self, app: AppContext, operation: OperationRoute) -> None:
        super().__init__(app, operation)
        self._body_bytes = app.settings.max_body_bytes

    def _begin(self, request: DirectRequest, admission: Admission) -> DirectCall | None:
        """See DirectVerb."""
        bounds = admission.put_bounds(self._body_bytes)
        put = decode_put(request.body, bounds, admission.bounds, request.traceparent)
        if put is None or not self._app.engine.puts.may_add(put):
            return None
        room = None if admission.usage is None else admission.usage.room_for((put,))
        call = self._admitted(request, admission, put.topic, room)
        if call is not None:
            self._app.engine.puts.add(put, partial(self._respond, call, put, bounds))
        return call

    def _respond(
        self,
        call: DirectCall,
        put: EncodedPut,
        bounds: PutBounds,
        stored: StoredPut | None,
        error: Exception | None,
    ) -> None:
        try:
            if stored is None:
                call.fail(error or AssertionError())
                return
            outcome = outcome_of(put, stored, bounds)
            body = written_put(outcome)
            if len(body) > LARGE_BYTES:  # it is the job that was kept
                self._app.unsent.claim(len(body), call.admission.key_name)
            if outcome.outcome in {"created", "follow_up"}:
                call.respond(201, body, f"location: /jobs/{put.topic}/{put.id}\r\n".encode())
            else:
                call.respond(200, body)
        except Exception as exc:  # noqa: BLE001 (every error gets a response)
            call.fail(exc)


class DirectCancel(DirectVerb):
    """Cancels of one job, without a body."""

    operations: ClassVar = (CANCEL_JOB,)
    query: ClassVar = QUERY
    values: ClassVar = 3

    def _begin(self, request: DirectRequest, admission: Admission) -> DirectCall | None:
        """See DirectVerb."""
        topic, job_id, query = request.values
        options = _parse(query) if query else _NO_OPTIONS
        if options is None or request.body:
            return None
        call = self._admitted(request, admission, topic)
        if call is not None:
            on_result = partial(_respond_to_cancel, call, topic, job_id)
            self._app.engine.cancels.add(
                topic,
                job_id,
                options.durability,
                on_result,
                refuse_reserved=options.if_reserved == "refuse",
                keep_follow_up=options.follow_up == "keep",
            )
        return call


_NO_OPTIONS = CancelQuery()


@lru_cache(maxsize=100)
def _parse(query: str) -> CancelQuery | None:
    """The parameters of a query; None when they are invalid."""
    return request_query.read(query.encode("ascii"), CancelQuery, [])


def _respond_to_cancel(call: DirectCall, topic: str, job_id: str, result: Any, error: Exception | None) -> None:
    try:
        if result is None:
            call.fail(error or AssertionError())
            return
        state, reached = result if isinstance(result, tuple) else (result, None)
        was = state_when_cancelled(state, topic, job_id)
        call.respond(200, encode(Cancelled(topic=topic, id=job_id, state="cancelled", was=was, durability=reached)))
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        call.fail(exc)

"""The direct path of `POST /jobs`. Its specification is `deferd.api.routes.jobs.put_job`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from deferd.api.auth.admission import Admission
from deferd.api.context import AppContext
from deferd.api.direct.call import DirectCall
from deferd.api.direct.verb import DirectRequest, DirectVerb
from deferd.api.job_templates import written_put
from deferd.api.operation import OperationRoute
from deferd.api.put_decoding import decode_put
from deferd.api.unsent_bytes import LARGE_BYTES
from deferd.contract.operations.jobs import PUT_JOB
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

"""The direct path of `DELETE /jobs/{topic}/{id}`. Its specification is `deferd.api.routes.jobs.cancel_job`."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, ClassVar

from deferd.api import request_query
from deferd.api.auth.admission import Admission
from deferd.api.direct.call import DirectCall
from deferd.api.direct.verb import QUERY, DirectRequest, DirectVerb
from deferd.api.responses import encode
from deferd.api.routes.jobs import CancelQuery
from deferd.contract.operations.jobs import CANCEL_JOB
from deferd.contract.responses.job_calls import Cancelled
from deferd.engine.cancels import state_when_cancelled


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
            on_result = partial(_respond, call, topic, job_id)
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


def _respond(call: DirectCall, topic: str, job_id: str, result: Any, error: Exception | None) -> None:
    try:
        if result is None:
            call.fail(error or AssertionError())
            return
        state, reached = result if isinstance(result, tuple) else (result, None)
        was = state_when_cancelled(state, topic, job_id)
        call.respond(200, encode(Cancelled(topic=topic, id=job_id, state="cancelled", was=was, durability=reached)))
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        call.fail(exc)

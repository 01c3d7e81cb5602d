"""The direct path of `DELETE /jobs/{topic}/{id}`. Its specification is `deferd.api.routes.jobs.cancel_job`."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import ClassVar

from deferd.api import request_query
from deferd.api.auth.admission import Admission
from deferd.api.direct.call import DirectCall
from deferd.api.direct.verb import QUERY, DirectRequest, DirectVerb
from deferd.api.responses import encode
from deferd.api.routes.jobs import CancelQuery
from deferd.contract.model import JobState
from deferd.contract.operations.jobs import CANCEL_JOB
from deferd.contract.responses.job_calls import Cancelled
from deferd.engine.cancels import state_when_cancelled


class DirectCancel(DirectVerb):
    """Cancels of one job, without a durability or a body."""

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
            self._app.engine.cancels.add(topic, job_id, partial(_respond, call, topic, job_id), **options)
        return call


_NO_OPTIONS: dict[str, bool] = {}


@lru_cache(maxsize=100)
def _parse(query: str) -> dict[str, bool] | None:
    """The arguments of `Cancels.add`; None when the parameters are invalid, or one is a durability."""
    parsed = request_query.read(query.encode("ascii"), CancelQuery, [])
    if parsed is None or parsed.durability is not None:
        return None
    return {"refuse_reserved": parsed.if_reserved == "refuse", "keep_follow_up": parsed.follow_up == "keep"}


def _respond(call: DirectCall, topic: str, job_id: str, result: JobState | int | None, error: Exception | None) -> None:
    try:
        if result is None:
            call.fail(error or AssertionError())
            return
        was = state_when_cancelled(result, topic, job_id)
        call.respond(200, encode(Cancelled(topic=topic, id=job_id, state="cancelled", was=was)))
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        call.fail(exc)

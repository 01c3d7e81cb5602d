"""The direct path of `DELETE /jobs/{topic}/{id}`. Its specification is `deferd.api.routes.jobs.cancel_job`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from deferd.api.direct.call import Connection, DirectCall
from deferd.api.direct.verb import DirectVerb, KnownHead
from deferd.api.responses import encode
from deferd.contract.model import JobState
from deferd.contract.operations.jobs import CANCEL_JOB
from deferd.contract.responses.job_calls import Cancelled
from deferd.engine.cancels import state_when_cancelled


class DirectCancel(DirectVerb):
    """Cancels of one job, without parameters or a body."""

    operations: ClassVar = (CANCEL_JOB,)

    def begin(
        self,
        connection: Connection,
        head: KnownHead,
        values: tuple[str, ...],
        body: bytes,
        traceparent: str | None,  # noqa: ARG002 (DirectVerb's)
    ) -> DirectCall | None:
        """See DirectVerb."""
        if body:
            return None
        topic, job_id = values
        admission = self._admission(head)
        call = None if admission is None else self._admitted(connection, admission, topic)
        if call is not None:
            self._app.engine.cancels.add(topic, job_id, partial(_respond, call, topic, job_id))
        return call


def _respond(call: DirectCall, topic: str, job_id: str, result: JobState | int | None, error: Exception | None) -> None:
    try:
        if result is None:
            call.fail(error or AssertionError())
            return
        was = state_when_cancelled(result, topic, job_id)
        call.respond(200, encode(Cancelled(topic=topic, id=job_id, state="cancelled", was=was)))
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        call.fail(exc)

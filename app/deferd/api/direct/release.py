"""The direct path of `POST /jobs/{topic}/{id}/release`. Its specification is `routes.deliveries.release_job`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from deferd.api.delivery_decoding import decode_release
from deferd.api.direct.call import Connection, DirectCall
from deferd.api.direct.verb import DirectVerb, KnownHead
from deferd.api.response_values import instant_or_none
from deferd.api.responses import encode
from deferd.contract.operations.deliveries import RELEASE_JOB
from deferd.contract.responses.job_calls import Released
from deferd.engine.deliveries import ReleaseReply, released


class DirectRelease(DirectVerb):
    """Releases of one job, with a JSON object as their body."""

    operations: ClassVar = (RELEASE_JOB,)

    def begin(
        self,
        connection: Connection,
        head: KnownHead,
        values: tuple[str, ...],
        body: bytes,
        traceparent: str | None,  # noqa: ARG002 (DirectVerb's)
    ) -> DirectCall | None:
        """See DirectVerb."""
        topic, job_id = values
        admission = self._admission(head)
        release = None if admission is None else decode_release(body, admission.bounds, job_id)
        if admission is None or release is None:
            return None
        counted = None if admission.usage is None else admission.usage.counting(len(release.error))
        call = self._admitted(connection, admission, topic, body, counted)
        if call is not None:
            self._app.engine.deliveries.add_release(topic, release, partial(_respond, call, topic, job_id))
        return call


def _respond(call: DirectCall, topic: str, job_id: str, reply: ReleaseReply | None, error: Exception | None) -> None:
    try:
        if reply is None:
            call.fail(error or AssertionError())
            return
        state, due_at_ms, attempts = released(reply, topic, job_id)
        call.respond(200, encode(Released(state=state, due_at=instant_or_none(due_at_ms), attempts=attempts)))
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        call.fail(exc)

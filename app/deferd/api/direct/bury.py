"""The direct path of `POST /jobs/{topic}/{id}/bury`. Its specification is `routes.deliveries.bury_job`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from deferd.api.delivery_decoding import decode_bury
from deferd.api.direct.call import Connection, DirectCall
from deferd.api.direct.verb import DirectVerb, KnownHead
from deferd.api.responses import encode
from deferd.contract.operations.deliveries import BURY_JOB
from deferd.contract.responses.job_calls import Buried
from deferd.engine.call_results import raise_unless_ok
from deferd.engine.script_arguments import RECEIPT_BYTES, size

_BURIED = encode(Buried(state="dead"))


class DirectBury(DirectVerb):
    """Burials of one job, with a JSON object as their body."""

    operations: ClassVar = (BURY_JOB,)

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
        burial = None if admission is None else decode_bury(body, admission.bounds, job_id)
        if admission is None or burial is None:
            return None
        counted = (
            None if admission.usage is None else admission.usage.counting(size(burial) - len(job_id) - RECEIPT_BYTES)
        )
        call = self._admitted(connection, admission, topic, body, counted)
        if call is not None:
            self._app.engine.deliveries.add_bury(topic, burial, partial(_respond, call, topic, job_id))
        return call


def _respond(call: DirectCall, topic: str, job_id: str, code: int | None, error: Exception | None) -> None:
    try:
        if code is None:
            call.fail(error or AssertionError())
            return
        raise_unless_ok(code, topic, job_id)
        call.respond(200, _BURIED)
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        call.fail(exc)

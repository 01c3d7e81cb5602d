"""The direct path of `POST /jobs/{topic}/{id}/touch`. Its specification is `routes.deliveries.touch_job`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from deferd.api.delivery_decoding import decode_touch
from deferd.api.direct.call import Connection, DirectCall
from deferd.api.direct.verb import DirectVerb, KnownHead
from deferd.api.response_values import instant
from deferd.api.responses import encode
from deferd.contract.operations.deliveries import TOUCH_JOB
from deferd.contract.responses.job_calls import Touched
from deferd.engine.deliveries import lease_end_ms


class DirectTouch(DirectVerb):
    """Touches of one job, with a JSON object as their body."""

    operations: ClassVar = (TOUCH_JOB,)

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
        touch = None if admission is None else decode_touch(body, admission.bounds, job_id)
        if admission is None or touch is None:
            return None
        call = self._admitted(connection, admission, topic, body)
        if call is not None:
            self._app.engine.deliveries.add_touch(topic, touch, partial(_respond, call, topic, job_id))
        return call


def _respond(call: DirectCall, topic: str, job_id: str, result: int | None, error: Exception | None) -> None:
    try:
        if result is None:
            call.fail(error or AssertionError())
            return
        call.respond(200, encode(Touched(reserved_until=instant(lease_end_ms(result, topic, job_id)))))
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        call.fail(exc)

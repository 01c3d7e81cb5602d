"""The direct paths of calls about one delivery. Their specification is `deferd.api.routes.deliveries`."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar

from msgspec import Raw

from deferd.api.auth.admission import Admission
from deferd.api.auth.api_keys import Bounds
from deferd.api.body_decoding import decode_bury, decode_finish, decode_release, decode_touch
from deferd.api.direct.verb import DirectCall, DirectRequest, DirectVerb
from deferd.api.responses import encode
from deferd.contract.model import JobState
from deferd.contract.operations import jobs as operations
from deferd.contract.operations.jobs import Buried, Finished, Released, Touched
from deferd.contract.timestamps import instant, instant_bytes
from deferd.engine.deliveries import ReleaseReply, lease_end_ms, raise_unless_ok, released
from deferd.engine.group_commit import OnResult
from deferd.engine.script_arguments import (
    RECEIPT_BYTES,
    Args,
    EncodedFinish,
    EncodedRelease,
    progress_bytes,
    size,
)

_BURIED = encode(Buried(state="dead"))
_GAPS: Any = {"due_at": "%b", "attempts": Raw(b"%d")}
_DELAYED = encode(Released(state=JobState.DELAYED, **_GAPS))


class _DirectDelivery(DirectVerb):
    """A verb on one delivery, with a JSON object as its body."""

    def _begin(self, request: DirectRequest, admission: Admission) -> DirectCall | None:
        """See DirectVerb."""
        topic, job_id = request.values
        decoded = self._decode(request.body, admission.bounds, job_id)
        if decoded is None:
            return None
        counted = None if admission.usage is None else admission.usage.counting(self._stored_bytes(decoded))
        call = self._admitted(request, admission, topic, counted)
        if call is not None:
            self._add(topic, decoded, partial(self._respond, call, topic, job_id))
        return call

    def _respond(self, call: DirectCall, topic: str, job_id: str, result: Any, error: Exception | None) -> None:
        try:
            if result is None:
                call.fail(error or AssertionError())
            else:
                call.respond(200, self._response(topic, job_id, result))
        except Exception as exc:  # noqa: BLE001 (every error gets a response)
            call.fail(exc)

    @abstractmethod
    def _decode(self, body: bytes, key: Bounds, job_id: str) -> Any:
        """What `_add` takes; None when the general way must decide."""

    @abstractmethod
    def _stored_bytes(self, decoded: Any) -> int:
        """How much of it may be stored."""

    @abstractmethod
    def _add(self, topic: str, decoded: Any, on_result: OnResult[Any]) -> None:
        """Send it, together with others."""

    @abstractmethod
    def _response(self, topic: str, job_id: str, result: Any) -> bytes:
        """The JSON for its result. Raises the error that the result stands for."""


class DirectFinish(_DirectDelivery):
    """Finishes of one job, without puts."""

    operations: ClassVar = (operations.FINISH_JOB,)

    def _decode(self, body: bytes, key: Bounds, job_id: str) -> EncodedFinish | None:
        return decode_finish(body, key, job_id)

    def _stored_bytes(self, decoded: EncodedFinish) -> int:
        return decoded.result_bytes

    def _add(self, topic: str, decoded: EncodedFinish, on_result: OnResult[int]) -> None:
        self._app.engine.queue.add_finish(topic, decoded, on_result)

    def _response(self, topic: str, job_id: str, result: int) -> bytes:
        raise_unless_ok(result, topic, job_id)
        return encode(Finished(topic=topic, id=job_id, state="finished"))


class DirectRelease(_DirectDelivery):
    """Releases of one job."""

    operations: ClassVar = (operations.RELEASE_JOB,)

    def _decode(self, body: bytes, key: Bounds, job_id: str) -> EncodedRelease | None:
        return decode_release(body, key, job_id)

    def _stored_bytes(self, decoded: EncodedRelease) -> int:
        return len(decoded.error)

    def _add(self, topic: str, decoded: EncodedRelease, on_result: OnResult[ReleaseReply]) -> None:
        self._app.engine.deliveries.add_release(topic, decoded, on_result)

    def _response(self, topic: str, job_id: str, result: ReleaseReply) -> bytes:
        state, due_at_ms, attempts = released(result, topic, job_id)
        if due_at_ms is None:
            return encode(Released(state=state, attempts=attempts))
        return _DELAYED % (instant_bytes(due_at_ms), attempts)


class DirectTouch(_DirectDelivery):
    """Touches of one job."""

    operations: ClassVar = (operations.TOUCH_JOB,)

    def _decode(self, body: bytes, key: Bounds, job_id: str) -> Args | None:
        return decode_touch(body, key, job_id)

    def _stored_bytes(self, decoded: Args) -> int:
        return progress_bytes(decoded)

    def _add(self, topic: str, decoded: Args, on_result: OnResult[int]) -> None:
        self._app.engine.deliveries.add_touch(topic, decoded, on_result)

    def _response(self, topic: str, job_id: str, result: int) -> bytes:
        return encode(Touched(reserved_until=instant(lease_end_ms(result, topic, job_id))))


class DirectBury(_DirectDelivery):
    """Burials of one job."""

    operations: ClassVar = (operations.BURY_JOB,)

    def _decode(self, body: bytes, key: Bounds, job_id: str) -> Args | None:
        return decode_bury(body, key, job_id)

    def _stored_bytes(self, decoded: Args) -> int:
        return size(decoded) - len(decoded[0]) - RECEIPT_BYTES

    def _add(self, topic: str, decoded: Args, on_result: OnResult[int]) -> None:
        self._app.engine.deliveries.add_bury(topic, decoded, on_result)

    def _response(self, topic: str, job_id: str, result: int) -> bytes:
        raise_unless_ok(result, topic, job_id)
        return _BURIED

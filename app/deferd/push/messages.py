"""The requests of pushes, and what the response of a target means for the jobs of its request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

import orjson
from yarl import URL

from deferd.contract import limits
from deferd.contract.errors import excerpt
from deferd.contract.json_values import is_deeper, may_be_infinite
from deferd.contract.webhook_signature import secret_key, signatures
from deferd.engine.push_store import PushDefinition
from deferd.engine.record import JobRecord
from deferd.push.http_sender import PushResponse

SerializeJobs = Callable[[list[JobRecord]], bytes]
"""Writes jobs as a pop returns them."""
_ID_PREFIX = "msg_"
TEST_HEADER = "deferd-test"
Verdict = Literal["finished", "accepted", "snoozed", "buried", "released"]
_SNOOZE_MAX_S = 86_400
_UNAVAILABLE = frozenset({429, 503})
_GONE = 410
_ACCEPTED = 202
_OF_TARGET = frozenset({401, 403, 404, 405, 407, 408, 429})
"""Client errors (4xx) that say more about the target, or how it is configured, than about the job."""


class Message(NamedTuple):
    """One request."""

    headers: dict[str, str]
    body: bytes


class MessageWriter:
    """Writes the requests of one version of a topic's push, with the headers of Standard Webhooks.

    `now_s` is the time of the store's clock.
    """

    def __init__(self, definition: PushDefinition, user_agent: str, serialize_jobs: SerializeJobs) -> None:
        push = definition.push
        self.url = URL(push.url, encoded=True)
        self.timeout_s = push.timeout
        self._is_batch = push.mode == "batch"
        self._keys = [secret_key(secret) for secret in definition.secrets]
        self._serialize_jobs = serialize_jobs
        self._headers = {
            "user-agent": user_agent,
            "accept-encoding": "identity",
            **{name.lower(): value for name, value in push.headers.items()},
            "content-type": "application/json",
            "deferd-topic": definition.topic,
        }

    def of_jobs(self, jobs: list[JobRecord], now_s: float) -> Message:
        """The request for these jobs; in the mode `job` there is one."""
        if self._is_batch:
            message_id = _message_id_of(jobs)
            return self._signed(message_id, self._serialize_jobs(jobs), now_s, {"deferd-jobs": str(len(jobs))})
        (job,) = jobs
        of_job = {
            "deferd-job-id": job.id,
            "deferd-attempt": str(job.attempts),
            "deferd-receipt": str(job.receipt),
        }
        if job.traceparent is not None:
            of_job["traceparent"] = job.traceparent
        return self._signed(_message_id_of(jobs), job.body, now_s, of_job)

    def of_test(self, message_id: str, body: bytes, now_s: float) -> Message:
        """A request without a job."""
        return self._signed(message_id, body, now_s, {TEST_HEADER: "true"})

    def _signed(self, message_id: str, body: bytes, now_s: float, more: dict[str, str]) -> Message:
        timestamp = int(now_s)
        headers = {
            **self._headers,
            **more,
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signatures(self._keys, message_id, timestamp, body),
        }
        return Message(headers, body)


def _message_id_of(jobs: Sequence[JobRecord]) -> str:
    """The `webhook-id`.

    It is the same at each attempt for the same jobs, and differs for a later job that has the same id. By it the
    receiver knows what it has done before.
    """
    digest = hashlib.sha256()
    for job in jobs:
        digest.update(f"{job.topic} {job.id} {job.created_at_ms}\n".encode())
    return _ID_PREFIX + digest.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happens to the jobs of a request.

    `result` is JSON. `wait_s` is the wait that the target asked for. `failures` are single jobs of a batch that failed,
    with their errors. `is_target_failure`: the target fails, not only for this job.
    """

    verdict: Verdict
    error: str | None = None
    result: bytes | None = None
    wait_s: float = 0.0
    failures: dict[str, str] | None = None
    is_target_failure: bool = False


def failed(error: str) -> Outcome:
    """The outcome of a request without a response."""
    return Outcome("released", error, is_target_failure=True)


def judge(response: PushResponse, now_s: float, *, is_batch: bool) -> Outcome:
    """What a response means. A date in its Retry-After is compared with `now_s`."""
    status = response.status
    if status == _ACCEPTED:
        return Outcome("accepted")
    if 200 <= status < 300:
        value = _json_value(response)
        if is_batch:
            return Outcome("finished", failures=_failures(value))
        return Outcome("finished", result=None if value is None else response.body)
    error = f"the target responded with status {status}{_shown(response.body)}"
    if status == _GONE:
        return Outcome("buried", error)
    if status in _UNAVAILABLE:
        wait_s = _retry_after_s(response.retry_after, now_s)
        if wait_s is not None:
            return Outcome("snoozed", error, wait_s=wait_s, is_target_failure=True)
    if 300 <= status < 400:
        error += "; redirects are not followed"
    return Outcome("released", error, is_target_failure=status in _OF_TARGET or not 400 <= status < 500)


def _retry_after_s(value: str | None, now_s: float) -> float | None:
    """The seconds of a Retry-After header, from 0.1 to a day; None without one that can be read."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        seconds = float(min(int(text[:9]), _SNOOZE_MAX_S))
    else:
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        seconds = at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now_s
    return min(max(seconds, limits.SNOOZE_MIN_S), _SNOOZE_MAX_S)


def _json_value(response: PushResponse) -> Any:
    """The JSON value of a response that can be a result; None without one."""
    kind = response.content_type.partition(";")[0].strip().lower()
    if not response.is_whole or not response.body or not (kind == "application/json" or kind.endswith("+json")):
        return None
    try:
        value = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return None
    return None if may_be_infinite(response.body) or is_deeper(value, limits.VALUE_DEPTH_MAX) else value


def _failures(value: Any) -> dict[str, str]:
    """The jobs of a batch that the receiver names as failed: ``{"failures": [{"id": "a", "error": "..."}]}``."""
    named = value.get("failures") if isinstance(value, dict) else None
    found: dict[str, str] = {}
    for one in named if isinstance(named, list) else ():
        if isinstance(one, dict) and isinstance(job_id := one.get("id"), str):
            error = one.get("error")
            found[job_id] = (error if isinstance(error, str) else "the receiver named it as failed")[:1000]
    return found


def _shown(body: bytes) -> str:
    shown = excerpt(body, limits.PUSH_ERROR_BYTES)
    return f": {shown}" if shown else ""

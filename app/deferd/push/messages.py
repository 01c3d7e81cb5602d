"""The requests of pushes: the headers of Standard Webhooks, and what the receiver should know about the jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from yarl import URL

from deferd.contract.webhook_signature import secret_key, signatures
from deferd.engine.push.push_definition import PushDefinition
from deferd.engine.record import JobRecord

SerializeJobs = Callable[[list[JobRecord]], bytes]
"""Writes jobs as a pop returns them."""
_ID_PREFIX = "msg_"
TEST_HEADER = "deferd-test"


class Message(NamedTuple):
    """One request."""

    headers: dict[str, str]
    body: bytes


class MessageWriter:
    """Writes the requests of one version of a topic's push. `now_s` is the time of the store's clock."""

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
            message_id = message_id_of(jobs)
            return self._signed(message_id, self._serialize_jobs(jobs), now_s, {"deferd-jobs": str(len(jobs))})
        (job,) = jobs
        of_job = {
            "deferd-job-id": job.id,
            "deferd-attempt": str(job.attempts),
            "deferd-receipt": str(job.receipt),
        }
        if job.traceparent is not None:
            of_job["traceparent"] = job.traceparent
        return self._signed(message_id_of(jobs), job.body, now_s, of_job)

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


def message_id_of(jobs: Sequence[JobRecord]) -> str:
    """The `webhook-id`.

    It is the same at each attempt for the same jobs, and differs for a later job that has the same id. By it the
    receiver knows what it has done before.
    """
    digest = hashlib.sha256()
    for job in jobs:
        digest.update(f"{job.topic} {job.id} {job.created_at_ms}\n".encode())
    return _ID_PREFIX + digest.hexdigest()[:32]

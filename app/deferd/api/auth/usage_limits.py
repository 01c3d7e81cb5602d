"""What a key may still do: how often it may ask, how many of its pops may wait, how much it may put and send.

The counts are those of one serving process, so a key may have that many times more as there are processes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from deferd.api.auth.api_keys import Key
from deferd.api.auth.quota import Quota
from deferd.api.auth.rate_limit import Bucket
from deferd.api.request_body import is_deeper
from deferd.api.responses import Header
from deferd.contract.errors import FieldError, InvalidInput, PayloadTooLarge, RateLimited
from deferd.contract.model import ChangeJob, JobPolicy, PutBatch, PutJob
from deferd.engine.script_arguments import PutBounds

PARKED_AGAIN_S = 1
"""When a key whose pops are too many may ask again: one may end at any time."""


class Account:
    """The limits of a key, and what it has used of them; read anew, it takes over what it has used `before`."""

    __slots__ = ("_bucket", "_name", "_parked", "bounds", "put_bounds", "quota")

    def __init__(self, key: Key, before: Account | None) -> None:
        self._name = key.name
        self.bounds = key.bounds
        dead_retain_s = key.bounds.max_dead_retain
        self.put_bounds = PutBounds(key.bounds.max_jobs, None if dead_retain_s is None else dead_retain_s * 1000)
        # shared, since pops wait on while keys are read anew
        self._parked: list[int] = [0] if before is None else before._parked
        self.quota: Quota | None = None if before is None else before.quota
        bounds = key.bounds
        if bounds.max_jobs_total is None and bounds.max_bytes_total is None and bounds.max_topics is None:
            self.quota = None
        elif self.quota is None:
            self.quota = Quota(key.name, key.topics, bounds)
        else:
            self.quota.revise(key.topics, bounds)
        self._bucket: Bucket | None = None if before is None else before._bucket
        if key.limit is None:
            self._bucket = None
        elif self._bucket is None or self._bucket.limit != key.limit:
            self._bucket = Bucket(key.limit, time.monotonic())

    def take(self) -> float:
        """Count a request: 0 when it may go on, else the seconds until one may."""
        return 0.0 if self._bucket is None else self._bucket.take(time.monotonic())

    @contextlib.contextmanager
    def parked_pop(self) -> Iterator[None]:
        """Around a pop that waits. Raises RateLimited when the key has as many waiting as it may."""
        most = self.bounds.max_parked_pops
        if most is not None and self._parked[0] >= most:
            text = f"key {self._name!r} has {most} pops waiting here, and may have no more"
            raise RateLimited(text, retry_after_s=PARKED_AGAIN_S)
        self._parked[0] += 1
        try:
            yield
        finally:
            self._parked[0] -= 1

    def check_body(self, raw: bytes) -> None:
        """Raise PayloadTooLarge when the body of a request has more bytes than the key may send."""
        most = self.bounds.max_body_bytes
        if most is not None and len(raw) > most:
            raise PayloadTooLarge(most)

    def check_depth(self, value: dict[str, Any]) -> None:
        """Raise InvalidInput when the parsed body of a request is nested deeper than the key may send."""
        most = self.bounds.max_depth
        if most is not None and is_deeper(value, most):
            text = f"is nested deeper than {most} levels, the most for key {self._name!r}"
            raise InvalidInput([FieldError(("body",), text)])

    def check_batch(self, given: Mapping[str, Any]) -> None:
        """Raise InvalidInput when a call has more jobs in its body than the key may send at once."""
        most = self.bounds.max_batch
        if most is None:
            return
        for value in given.values():
            jobs = getattr(value, "jobs", ())
            if len(jobs) > most:
                text = f"must have at most {most} items, the most for key {self._name!r}"
                raise InvalidInput([FieldError(("body", "jobs"), text)])

    def check_times(self, given: Mapping[str, Any]) -> None:
        """Raise InvalidInput when a job would be kept, or watched, for longer than the key may ask for."""
        faults: list[FieldError] = []
        for value in given.values():
            if isinstance(value, JobPolicy):
                self._check_times(value, ("body",), faults)
            elif isinstance(value, PutBatch):
                for index, job in enumerate(value.jobs):
                    self._check_times(job, ("body", "jobs", index), faults)
        if faults:
            raise InvalidInput(faults)

    def _check_times(self, policy: JobPolicy, at: tuple[str | int, ...], faults: list[FieldError]) -> None:
        for field, most in (("retain", self.bounds.max_retain), ("ttl", self.bounds.max_ttl)):
            asked = getattr(policy, field)
            is_unbounded = (
                field == "ttl" and isinstance(policy, PutJob | ChangeJob) and "ttl" in policy.model_fields_set
            )
            if most is not None and asked is None and is_unbounded:  # a null ttl is no bound at all
                text = f"must be a number, at most {most} seconds, the most for key {self._name!r}; null is no bound"
                faults.append(FieldError((*at, field), text, asked))
            if most is not None and asked is not None and asked > most:
                text = f"must be at most {most} seconds, the most for key {self._name!r}"
                faults.append(FieldError((*at, field), text, asked))

    def headers(self) -> list[Header]:
        """How it stands, for the answer: see Bucket, and the same for pops."""
        headers = [] if self._bucket is None else self._bucket.headers(time.monotonic())
        most = self.bounds.max_parked_pops
        if most is not None:
            headers.append((b"ratelimit-policy", b'"parked-pops";q=%d;qu="concurrent-requests"' % most))
            headers.append((b"ratelimit", b'"parked-pops";r=%d' % max(most - self._parked[0], 0)))
        return headers

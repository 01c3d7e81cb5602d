"""The limits of a key in use: request rate, waiting pops, and the size of what it sends.

Each server process counts by itself: with several processes, a key may use the limits several times.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from deferd.api.auth.api_keys import Key
from deferd.api.auth.quota import Quota
from deferd.api.auth.rate_limit import Bucket
from deferd.api.responses import Header
from deferd.contract.errors import FieldError, InvalidInput, PayloadTooLarge, RateLimited
from deferd.contract.json_values import is_deeper
from deferd.contract.model import ChangeJob, FinishJob, JobPolicy, PutBatch, PutJob
from deferd.contract.operations.schedules_and_calendars import PutSchedule, ScheduledJob
from deferd.engine.script_arguments import EncodedPut, PutBounds

WAITING_RETRY_S = 1
"""`Retry-After` of a key with too many waiting pops: one may end at any time."""
_NO_QUOTA = nullcontext()
_WAITING_POPS = b'ratelimit-policy: "waiting-pops";q=%d;qu="concurrent-requests"\r\nratelimit: "waiting-pops";r=%%d\r\n'


class _WaitingPop:
    """See `KeyUsage.waiting_pop`. Not a generator: this is done for each pop."""

    __slots__ = ("_key_name", "_most", "_waiting")

    def __init__(self, key_name: str, waiting: list[int], most: int | None) -> None:
        self._key_name = key_name
        self._waiting = waiting
        self._most = most

    def __enter__(self) -> None:
        if self._most is not None and self._waiting[0] >= self._most:
            text = f"key {self._key_name!r} already has {self._most} waiting pops, its maximum"
            raise RateLimited(text, retry_after_s=WAITING_RETRY_S)
        self._waiting[0] += 1

    def __exit__(self, *_error: object) -> None:
        self._waiting[0] -= 1


class KeyUsage:
    """The limits of a key and what it has used of them. After a reload it continues from `before`."""

    __slots__ = ("_bucket", "_header_lines", "_name", "_waiting", "bounds", "put_bounds", "quota")

    def __init__(self, key: Key, before: KeyUsage | None) -> None:
        self._name = key.name
        self.bounds = key.bounds
        dead_retain_s = key.bounds.max_dead_retain
        self.put_bounds = PutBounds(key.bounds.max_jobs, None if dead_retain_s is None else dead_retain_s * 1000)
        # shared: pops go on waiting while keys are reloaded
        self._waiting: list[int] = [0] if before is None else before._waiting
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
        most = bounds.max_waiting_pops
        self._header_lines = b"" if self._bucket is None else self._bucket.header_lines
        self._header_lines += b"" if most is None else _WAITING_POPS % most

    def take(self) -> float:
        """Count a request: 0 when the rate limit allows it, else the seconds until it does."""
        return 0.0 if self._bucket is None else self._bucket.take(time.monotonic())

    def give_back(self, requests: int = 1) -> None:
        """Do not count the requests of the last calls of `take`."""
        if self._bucket is not None:
            self._bucket.give_back(requests)

    def room_for(self, jobs: Sequence[PutJob | EncodedPut]) -> AbstractContextManager[None]:
        """Around a put. Raises as `Quota.room_for` does."""
        return _NO_QUOTA if self.quota is None else self.quota.room_for(jobs)

    def counting(self, stored_bytes: int) -> AbstractContextManager[None]:
        """Around the end of a delivery that may store this many bytes: they count, but are never refused."""
        return _NO_QUOTA if self.quota is None else self.quota.counting(stored_bytes)

    def waiting_pop(self) -> AbstractContextManager[None]:
        """Around a pop that waits. Raises RateLimited when the key has its maximum of waiting pops."""
        return _WaitingPop(self._name, self._waiting, self.bounds.max_waiting_pops)

    def check_body(self, raw: bytes) -> None:
        """Raise PayloadTooLarge when a request body is larger than the key allows."""
        most = self.bounds.max_body_bytes
        if most is not None and len(raw) > most:
            raise PayloadTooLarge(most)

    def check_depth(self, value: dict[str, Any]) -> None:
        """Raise InvalidInput when a parsed body is nested deeper than the key allows."""
        most = self.bounds.max_depth
        if most is not None and is_deeper(value, most):
            text = f"is nested deeper than {most} levels, the limit of key {self._name!r}"
            raise InvalidInput([FieldError(("body",), text)])

    def check_batch(self, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInput when a body has more jobs than the key allows."""
        most = self.bounds.max_batch
        if most is None:
            return
        for value in arguments.values():
            for field in ("jobs", "put"):
                items = getattr(value, field, None)
                if isinstance(items, list) and len(items) > most:  # a query may have a `jobs` that is a flag
                    text = f"must have at most {most} items, the limit of key {self._name!r}"
                    raise InvalidInput([FieldError(("body", field), text)])

    def check_times(self, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInput when the `retain` or `ttl` of a job is longer than the key allows."""
        errors: list[FieldError] = []
        for value in arguments.values():
            if isinstance(value, JobPolicy):
                self._check_times(value, ("body",), errors)
            elif isinstance(value, PutBatch):
                for index, job in enumerate(value.jobs):
                    self._check_times(job, ("body", "jobs", index), errors)
            elif isinstance(value, PutSchedule):
                self._check_times(value.job, ("body", "job"), errors)
            elif isinstance(value, FinishJob):
                for index, job in enumerate(value.put or ()):
                    self._check_times(job, ("body", "put", index), errors)
        if errors:
            raise InvalidInput(errors)

    def _check_times(self, policy: JobPolicy, at: tuple[str | int, ...], errors: list[FieldError]) -> None:
        for field, most in (("retain", self.bounds.max_retain), ("ttl", self.bounds.max_ttl)):
            value = getattr(policy, field)
            is_of_job = isinstance(policy, PutJob | ChangeJob | ScheduledJob)
            is_unbounded = field == "ttl" and is_of_job and "ttl" in policy.model_fields_set
            if most is not None and value is None and is_unbounded:  # a null ttl means no bound
                text = f"must be a number, at most {most} seconds, the limit of key {self._name!r}; null means no bound"
                errors.append(FieldError((*at, field), text, value))
            if most is not None and value is not None and value > most:
                text = f"must be at most {most} seconds, the limit of key {self._name!r}"
                errors.append(FieldError((*at, field), text, value))

    def headers(self) -> list[Header]:
        """The response headers that report the rate limit, see Bucket, and the limit of waiting pops."""
        return [
            (name, value) for name, _, value in (line.partition(b": ") for line in self.header_lines().splitlines())
        ]

    def header_lines(self) -> bytes:
        """The same as the lines of a response, each ended by CRLF."""
        values: tuple[float, ...] = () if self._bucket is None else self._bucket.state(time.monotonic())
        most = self.bounds.max_waiting_pops
        if most is not None:
            values = (*values, max(most - self._waiting[0], 0))
        return self._header_lines % values

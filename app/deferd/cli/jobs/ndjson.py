"""Jobs from lines of JSON: read as they arrive, validated one by one, collected into batches."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from deferd.cli.framework.json_input import read_json
from deferd.contract.limits import BATCH_MAX
from deferd.contract.model import PutJob

BATCH_BYTES: Final = 512 * 1024
"""Bytes of lines in a full batch: with the other fields of each job it stays below the limit of the service."""
LINE_MAX_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SHOWN_BYTES: Final = 60
_TOO_LONG: Final = b"\0\n"
"""Stands for a line that is too long: a real line has no line break."""


class BadLine(Exception):
    """A line that is not a job. `number` counts from 1."""

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        super().__init__(f"line {number}: {problem}")


@dataclass(slots=True)
class Batch:
    """Jobs and the line number of each; `end_byte` is the offset of the input after them."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    end_byte: int = 0


class JobLines:
    """The jobs in the lines of a file descriptor.

    `job` has the fields that all jobs share, as in the API. A line is the body of a job or, with `whole_jobs`, an
    object whose members override those of `job`. Empty lines are skipped, but counted.
    """

    def __init__(self, descriptor: int, job: Mapping[str, Any], *, whole_jobs: bool) -> None:
        self._descriptor = descriptor
        self._job = dict(job)
        # A line that has its own due time overrides the options for it.
        self._job_without_time = {name: value for name, value in job.items() if name not in {"delay", "run_at"}}
        self._whole_jobs = whole_jobs
        self._waiting: deque[bytes] = deque()
        self._part: list[bytes] = []
        self._part_bytes = 0
        self._at_end = False
        self._bad: BadLine | None = None
        self._taken_bytes = 0
        self.number = 0
        """The number of the last line taken."""

    def batch(self) -> Batch | None:
        """The next jobs, up to 1000; None at the end. Waits for the first line, but not for more.

        Raises:
            BadLine: the next line is not a job. The lines before it were in earlier batches.
        """
        if self._bad is not None:
            raise self._bad
        batch = Batch()
        size = 0
        while len(batch.jobs) < BATCH_MAX and size < BATCH_BYTES:
            while len(self._waiting) < BATCH_MAX - len(batch.jobs) and self._may_read(wait=not batch.jobs):
                self._read()
            if not self._waiting:
                if self._at_end or batch.jobs:
                    break
                continue
            line = self._waiting.popleft()
            self.number += 1
            self._taken_bytes += len(line) + 1
            size += len(line)
            if not line.strip():
                continue
            try:
                job = self._read_line(line)
            except ValueError as error:
                self._bad = BadLine(self.number, f"{error}: {_shown(line)}")
                if batch.jobs:
                    break
                raise self._bad from None
            batch.jobs.append(job)
            batch.lines.append(self.number)
        batch.end_byte = self._taken_bytes
        return batch if batch.jobs else None

    def _may_read(self, *, wait: bool) -> bool:
        """Whether to read: there is input, or `wait` is set and no line is left."""
        if self._at_end:
            return False
        return (wait and not self._waiting) or bool(select.select([self._descriptor], [], [], 0)[0])

    def _read(self) -> None:
        data = os.read(self._descriptor, _CHUNK_BYTES)
        if not data:
            self._at_end = True
            if self._part:
                self._waiting.append(b"".join(self._part))
                self._part = []
            return
        first, *more = data.split(b"\n")
        self._part.append(first)
        self._part_bytes += len(first)
        if more:
            *whole, rest = more
            self._waiting.append(b"".join(self._part))
            self._waiting.extend(whole)
            self._part, self._part_bytes = [rest] if rest else [], len(rest)
        if self._part_bytes > LINE_MAX_BYTES:
            self._at_end = True
            self._part = []
            self._waiting.append(_TOO_LONG)  # it is refused after the lines before it

    def _read_line(self, line: bytes) -> dict[str, Any]:
        if line == _TOO_LONG:
            raise ValueError(f"longer than {LINE_MAX_BYTES} bytes")
        if self.number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            value = read_json(line)
        except ValueError as error:
            raise ValueError(f"not JSON ({error})") from None
        if not self._whole_jobs:
            return {**self._job, "body": value}
        if not isinstance(value, dict):
            raise ValueError('not a JSON object such as {"id": ..., "body": ...}')  # noqa: TRY004 (it is the line's value)
        has_due_time = value.get("delay") is not None or value.get("run_at") is not None
        job = {**(self._job_without_time if has_due_time else self._job), **value}
        try:
            PutJob.model_validate(job)
        except ValidationError as error:
            raise ValueError("; ".join(_describe(one) for one in error.errors(include_url=False))) from None
        return job


def _describe(error: Any) -> str:
    where = ".".join(str(step) for step in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def _shown(line: bytes) -> str:
    return line[:_SHOWN_BYTES].decode(errors="replace") + ("..." if len(line) > _SHOWN_BYTES else "")

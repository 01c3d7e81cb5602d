"""What clients did, each try of a call as one operation: written down as it happens, and read back per job.

A process writes a line when it begins an operation and another when that has ended, so that what a killed process left
under way is known to be so. Instants are those of the machine's one monotonic clock, in seconds; what the service says
(created, due, lease end) is the store's clock, in ms.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

Kind = Literal["put", "change", "cancel", "pop", "deliver", "finish", "release", "touch", "bury", "redrive", "look"]
UNKNOWN = "unknown"
"""Outcome of an operation that was not answered, or with 503: it may have been carried out, or be so yet."""
NOT_SENT = "not sent"
"""Outcome of an operation for which there was no connection: it was not carried out."""


@dataclass(frozen=True)
class Operation:
    """One try of a call on one job.

    Outcomes: put `created`, `stored` (to replace: created, or put in the place of another), `exists`, `kept`, `held`;
    change `done`, `held`, `not found`; cancel the state that the job was in, `not found`; finish, touch, bury and
    release `done`, `not found`, `stale`, `cancelled`, and release `dead`; redrive `done`, `none`; deliver `done`; look
    `there`, `not found`. `tag` names the put that a job comes from. An empty `on_conflict` is to reject, an empty
    `receipt` means whichever delivery is live. `at_ms` is when the store carried the operation out, where its answer
    tells, `due_ms` when it said that the job is due; `shown` (a tag), `state`, `result` and `created_ms` are of the job
    that an answer shows. `end_s` is None when no answer came; the outcome may be known all the same, as a delivery
    tells of its put.
    """

    kind: Kind
    topic: str
    job: str
    call_s: float
    end_s: float | None
    outcome: str
    tag: str = ""
    delay_ms: int = 0
    ttr_ms: int = 0
    attempt: int = 0
    receipt: str = ""
    lease_end_ms: int = 0
    created_ms: int = 0
    at_ms: int | None = None
    run_at_ms: int = 0
    due_ms: int = 0
    ttl_ms: int = 0
    max_attempts: int = 0
    retain_ms: int = 0
    on_conflict: str = ""
    shown: str = ""
    state: str = ""
    result: str = ""


@dataclass(frozen=True)
class UnansweredPop:
    """A pop that may have taken jobs which nobody got."""

    topic: str
    call_s: float


class Recorder:
    """Writes one process's operations to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count()

    def begin(self, kind: Kind, topic: str, job: str = "", **facts: Any) -> int:
        """An operation is about to be sent; its number for `end`."""
        number = next(self._numbers)
        self._write({"n": number, "kind": kind, "topic": topic, "job": job, "call_s": time.monotonic(), **facts})
        return number

    def end(self, number: int, outcome: str, **facts: Any) -> None:
        """It has ended so. With `jobs` it was a pop that brought these."""
        self._write({"n": number, "end_s": time.monotonic(), "outcome": outcome, **facts})

    def handed_over(self, topic: str, request: str, job: dict[str, Any]) -> None:
        """A worker's handler got this job, by a pop that began at some time before."""
        number = next(self._numbers)
        self._write({"n": number, "kind": "pop", "topic": topic, "call_s": 0.0, "request": request})
        self.end(number, "jobs", jobs=[job])

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """No more is written."""
        os.close(self._file)


@dataclass(frozen=True)
class History:
    """All operations of a run. `lines` are the operations as they were made, a pop being one whatever it brought."""

    lines: Sequence[dict[str, Any]]
    of_job: dict[tuple[str, str], list[Operation]]
    unanswered_pops: list[UnansweredPop]


def read_history(files: Iterable[Path]) -> History:
    """Put the lines of all processes together. An operation without an end is of unknown outcome."""
    lines: list[dict[str, Any]] = []
    for path in files:
        lines += _read_lines(path)
    first_call_s: dict[str, float] = {}
    for line in lines:
        if line["kind"] == "pop":
            request = line["request"]
            first_call_s[request] = min(line["call_s"], first_call_s.get(request, line["call_s"]))
    of_job: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    unanswered: list[UnansweredPop] = []
    for line in lines:
        if line["outcome"] == NOT_SENT:
            continue
        if line["kind"] != "pop":
            of_job[line["topic"], line["job"]].append(_operation(line))
            continue
        if line["outcome"] == UNKNOWN:
            unanswered.append(UnansweredPop(line["topic"], line["call_s"]))
        for job in line.get("jobs", ()):
            # An answer to a request that was asked before may have been made for the first of its tries.
            made = {**line, **job, "kind": "deliver", "call_s": first_call_s[line["request"]], "outcome": "done"}
            of_job[line["topic"], job["job"]].append(_operation(made))
    told = {key: _told_by_deliveries(operations) for key, operations in of_job.items()}
    return History(lines, told, unanswered)


def _told_by_deliveries(operations: list[Operation]) -> list[Operation]:
    """A job that was delivered was put: where the put's answer does not, the delivery tells when it was carried out."""
    created_ms = {one.tag: one.created_ms for one in operations if one.kind == "deliver"}
    told = [
        replace(one, outcome="stored" if one.on_conflict == "replace" else "created", at_ms=created_ms[one.tag])
        if one.kind == "put" and one.at_ms is None and one.outcome in {UNKNOWN, "created"} and one.tag in created_ms
        else one
        for one in operations
    ]
    return sorted(told, key=lambda one: one.call_s)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    by_number: dict[int, dict[str, Any]] = {}
    for text in path.read_bytes().split(b"\n")[:-1]:  # the last may be half a line of a process that was killed
        line = json.loads(text)
        by_number.setdefault(line["n"], {"end_s": None, "outcome": UNKNOWN}).update(line)
    return list(by_number.values())


def _operation(line: dict[str, Any]) -> Operation:
    known = {name: line[name] for name in Operation.__dataclass_fields__ if name in line}
    if line["outcome"] == UNKNOWN:
        known["end_s"] = None
    return Operation(**known)

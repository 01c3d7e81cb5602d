"""The history of a run: each attempt of a call is one operation, recorded as it happens and read back per job.

A process writes a line when an operation begins and another when it ends, so that operations in progress when a process
was killed are known. Call times are on the machine's monotonic clock, in seconds; what the service reports (created,
due, lease end) is on the store's clock, in ms.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

Kind = Literal[
    "put",
    "change",
    "cancel",
    "pop",
    "deliver",
    "finish",
    "release",
    "snooze",
    "touch",
    "bury",
    "redrive",
    "end",
    "look",
    "sadd",
    "spop",
]
SET_KINDS = frozenset(("sadd", "spop"))
"""Calls on topics that are used as sets: `set_commands` checks them."""
UNKNOWN = "unknown"
"""Outcome of an operation without a response, or with 503: it may have been executed. It may still be, but after a 503
only for so long as the service waits for the store, and after a time-out of the client library not at all."""
DELIVERED = "delivered"
"""Outcome of a put without a response that a delivery proves, if it may have become a job, an item or a follow-up."""
NOT_SHOWN = "not shown"
"""The durability level of a job that is in the way, in an error of the Redis protocol."""
NOT_SENT = "not sent"
"""Outcome of an operation without a connection: it was not executed."""


@dataclass(frozen=True)
class Operation:
    """One attempt of a call on one job.

    Outcomes: put `created`, `stored` (with replace: created, or replaced another), `appended`, `follows` (a follow-up,
    new or in the place of another), `follow-up appended`, `exists`, `kept`, `follow-up kept`, `held`; change
    `done`, `held`, `not found`; cancel the state that the job was in, `not found`; finish, touch, bury, snooze and
    release `done`, `not found`, `stale`, `cancelled`, and release `dead`; redrive `done`, `none`; deliver `done`; look
    `there`, `not found`; end (a job that the end of this one put) `finished`, `dead`, `cancelled`, or, when all of them
    were taken, `none`. `tag` identifies the put that a job comes from. An empty `on_conflict` means reject, an empty
    `receipt` the live delivery. `at_ms` is when the store executed the operation and `due_ms` when the job is due, if
    the response shows it; `shown` (a tag), `state`, `result` and `created_ms` are of the job that a response shows.
    A collection has the tags of all its puts; `items` is how many it has after an append. `follows`: the put waits for
    the job's holder; `only_live`: dead and finished jobs are not in its way. `chain` names a finish and the put in the
    same step. `end_s` is None without a response; the outcome may be known all the same, as a delivery proves its put.
    `group` is that of a delivered job, or the one to which a change moves it. `on_end`: its end puts a job, `new` with
    an id of its own, `named` with one made of the job's id.
    `given_up_s`: when a call without a response was given up, by the service with a 503 or by the client. It is not
    executed any more.
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
    dead_retain_ms: int | None = None
    time_limit_ms: int = 0
    deadline_ms: int = 0
    spread_ms: int = 0
    on_conflict: str = ""
    shown: str = ""
    state: str = ""
    result: str = ""
    chain: str = ""
    unique_for_ms: int = 0
    max_wait_ms: int = 0
    max_items: int = 0
    items: int = 0
    follows: bool = False
    only_live: bool = False
    keeps_follow_up: bool = False
    group: str = ""
    on_end: str = ""
    given_up_s: float | None = None

    @property
    def over_s(self) -> float | None:
        """From when on it is not executed any more; None: it may still be."""
        return self.given_up_s if self.end_s is None else self.end_s


@dataclass(frozen=True)
class PopWithoutResponse:
    """A pop without a response, which may have taken jobs that nobody received."""

    topic: str
    call_s: float


class Recorder:
    """Writes one process's operations to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count()

    def begin(self, kind: Kind, topic: str, job: str = "", **facts: Any) -> int:
        """Record that an operation is about to be sent; returns its number for `end`."""
        number = next(self._numbers)
        self._write({"n": number, "kind": kind, "topic": topic, "job": job, "call_s": time.monotonic(), **facts})
        return number

    def end(self, number: int, outcome: str, **facts: Any) -> None:
        """Record how it ended; with `jobs` it was a pop that returned these."""
        self._write({"n": number, "end_s": time.monotonic(), "outcome": outcome, **facts})

    def handed_over(self, topic: str, request: str, job: dict[str, Any]) -> None:
        """Record that a worker's handler got this job, by a pop at some earlier time."""
        number = next(self._numbers)
        self._write({"n": number, "kind": "pop", "topic": topic, "call_s": 0.0, "request": request})
        self.end(number, "jobs", jobs=[job])

    def ended(self, topic: str, job: str, outcome: str, **facts: Any) -> None:
        """Record that the end of a job has put one, at some earlier time; `put` names that one."""
        self.end(self.begin("end", topic, job, call_s=0.0, **facts), outcome)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(frozen=True)
class History:
    """All operations of a run. `lines` are the operations as recorded, where a pop is one with all its deliveries."""

    lines: Sequence[dict[str, Any]]
    of_job: dict[tuple[str, str], list[Operation]]
    pops_without_response: list[PopWithoutResponse]


def read_history(files: Iterable[Path]) -> History:
    """Merge the histories of all processes. An operation without an end has an unknown outcome."""
    lines: list[dict[str, Any]] = []
    for path in files:
        lines += _read_lines(path)
    first_call_s: dict[str, float] = {}
    for line in lines:
        if line["kind"] == "pop":
            request = line["request"]
            first_call_s[request] = min(line["call_s"], first_call_s.get(request, line["call_s"]))
    of_job: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    without_response: list[PopWithoutResponse] = []
    sweeps = []
    ends: set[str] = set()
    for line in lines:
        if line["outcome"] == NOT_SENT or line["kind"] in SET_KINDS:
            continue
        if line["kind"] == "end":  # a job that was handed out again is one end
            if line["put"] in ends:
                continue
            ends.add(line["put"])
        if line.get("by") == "state":
            sweeps.append(line)
            continue
        if line["kind"] != "pop":
            of_job[line["topic"], line["job"]].append(_operation(line))
            continue
        if line["outcome"] == UNKNOWN:
            without_response += [PopWithoutResponse(topic, line["call_s"]) for topic in line["topic"].split(",")]
        for job in line.get("jobs", ()):
            # A response to a repeated request may have been made for the first attempt.
            made = {**line, **job, "kind": "deliver", "call_s": first_call_s[line["request"]], "outcome": "done"}
            of_job[made["topic"], job["job"]].append(_operation(made))
    for (topic, job), operations in of_job.items():
        first_s = min((one.call_s for one in operations if one.kind != "end"), default=inf)
        operations += [
            _part_of(line, job) for line in sweeps if line["topic"] == topic and (line["end_s"] or inf) > first_s
        ]
    completed = {key: _completed_by_deliveries(operations) for key, operations in of_job.items()}
    return History(lines, completed, without_response)


def _part_of(line: dict[str, Any], job: str) -> Operation:
    """What a call on all jobs of a state may have done to one of them, while the call was under way."""
    return replace(_operation({**line, "job": job, "outcome": UNKNOWN}), end_s=line["end_s"])


def _completed_by_deliveries(operations: list[Operation]) -> list[Operation]:
    """A delivery proves that its puts were executed, and when the first was, even if they had no response."""
    created_ms: dict[str, int] = {}
    delivered: set[str] = set()
    for one in operations:
        if one.kind == "deliver":
            tags = tags_of(one.tag)
            if one.created_ms:
                created_ms[tags[0]] = one.created_ms
            delivered.update(tags)
    return sorted(
        (_completed(one, created_ms.get(one.tag)) if one.tag in delivered else one for one in operations),
        key=lambda one: one.call_s,
    )


def _completed(one: Operation, created_ms: int | None) -> Operation:
    """A put whose job was delivered; `created_ms` if it was the first of the job."""
    if one.kind != "put" or one.at_ms is not None or one.outcome not in {UNKNOWN, "created", "follows"}:
        return one
    if one.outcome != UNKNOWN:
        return replace(one, at_ms=created_ms)
    if one.on_conflict == "append" or one.follows:
        return replace(one, outcome=DELIVERED, at_ms=created_ms)
    return replace(one, outcome="stored" if one.on_conflict == "replace" else "created", at_ms=created_ms)


def text_of(body: Any) -> str:
    """A body as histories name it: the tag of a put, or in brackets the tags of all puts of a collection."""
    return body if isinstance(body, str) else f"[{','.join(body)}]"


def tags_of(content: str) -> list[str]:
    """The tags in what `text_of` returned."""
    return content[1:-1].split(",") if content.startswith("[") else [content]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    by_number: dict[int, dict[str, Any]] = {}
    for text in path.read_bytes().split(b"\n")[:-1]:  # the last line of a killed process may be incomplete
        line = json.loads(text)
        by_number.setdefault(line["n"], {"end_s": None, "outcome": UNKNOWN}).update(line)
    return list(by_number.values())


def _operation(line: dict[str, Any]) -> Operation:
    known = {name: line[name] for name in Operation.__dataclass_fields__ if name in line}
    if line["outcome"] == UNKNOWN:
        known["end_s"] = None
        if "given_up_after_s" in line:
            known["given_up_s"] = line["end_s"] + line["given_up_after_s"]
    return Operation(**known)

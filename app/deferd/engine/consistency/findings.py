"""The report of a consistency check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deferd.contract.finding_kinds import FindingKind
from deferd.contract.model import JobState

EXAMPLES_MAX = 100
"""Most examples in a report; its counts include all findings."""
_DEDUPLICATED_MAX = 10_000
STEP = 250
"""Jobs, ids or keys that one script call checks: about two milliseconds of the store's time."""
_LONGEST_PAUSE_S = 0.1


def text(value: bytes) -> str:
    """Any value of the store as text."""
    return value.decode(errors="backslashreplace")


async def paced(step: Awaitable[Any]) -> Any:
    """Run a step, then leave the store to other callers for as long as the step took. Returns the step's reply."""
    began_s = time.monotonic()
    reply = await step
    await asyncio.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S))
    return reply


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency: `subject` is the job's id, the topic or the key, `detail` what was found."""

    kind: FindingKind
    subject: str
    detail: str


def read_findings(reply: Sequence[bytes]) -> list[Finding]:
    """The findings in a script's reply, a flat list of kind, subject and detail."""
    parts = [text(part) for part in reply]
    return [Finding(FindingKind[kind.upper()], *rest) for kind, *rest in zip(*[iter(parts)] * 3, strict=True)]


class Findings:
    """Counts findings by kind and keeps examples. A repeated finding counts once, among the first 10,000."""

    def __init__(self) -> None:
        self.counts: dict[FindingKind, int] = {}
        self.examples: list[Finding] = []
        self._seen: set[tuple[str, str, str]] = set()

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        # An id can lack its record in several sorted sets: each counts.
        identity = (finding.kind, finding.subject, finding.detail if finding.kind is FindingKind.NO_RECORD else "")
        if identity in self._seen:
            return
        if len(self._seen) < _DEDUPLICATED_MAX:
            self._seen.add(identity)
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(finding)


@dataclass(slots=True)
class TopicReport:
    """The result of checking a topic. After a repair: the findings that were repaired, and all else as it is now.

    `checked` is the number of jobs checked. `sums` counts what became of all jobs ever put (see `lua/lib/topic.lua`);
    it and `counts` are empty when they could not be read. `unchecked` says what could not be checked and why; None:
    everything was. `timer_overdue_ms` is how long the timer's first work has been due.
    """

    topic: str
    repaired: bool
    checked: int = 0
    counts: Mapping[JobState, int] = field(default_factory=dict)
    timer_overdue_ms: int = 0
    sums: Mapping[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    unchecked: str | None = None

    def add(self, other: TopicReport) -> None:
        """Add all but the findings of a report on another partition of the topic."""
        self.checked += other.checked
        self.timer_overdue_ms = max(self.timer_overdue_ms, other.timer_overdue_ms)
        self.unchecked = self.unchecked or other.unchecked
        self.counts = {state: self.counts.get(state, 0) + count for state, count in other.counts.items()}
        self.sums = {name: self.sums.get(name, 0) + count for name, count in other.sums.items()}

    @property
    def clean(self) -> bool:
        """Whether everything was checked and nothing was found."""
        return not self.findings.counts and self.unchecked is None


@dataclass(slots=True)
class StoreReport:
    """The result of checking what belongs to no single topic.

    `unlisted` are topics with data that lists of topics leave out; `ConsistencyChecker.audit_topic` repairs them.
    `stray_keys` are up to 100 of the `stray_count` keys under deferd's prefix that belong to no topic; they are
    harmless.
    """

    repaired: bool
    findings: Findings = field(default_factory=Findings)
    unlisted: list[str] = field(default_factory=list)
    stray_keys: list[str] = field(default_factory=list)
    stray_count: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing was found; stray keys do not count."""
        return not self.findings.counts and not self.unlisted

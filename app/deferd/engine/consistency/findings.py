"""What can be wrong in the store, as the audit tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from deferd.contract.model import JobState

EXAMPLES_MAX = 100
"""Most examples that an audit gives; its counts are of all."""
_TOLD_APART_MAX = 10_000


class FindingKind(StrEnum):
    """A kind of damage. Each is of another hand or a broken store: no call of deferd leaves any behind."""

    meaning: str
    repair: str

    def __new__(cls, value: str, meaning: str, repair: str) -> Self:
        """A member with its texts: what it means for the jobs, and what a repair does."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.meaning = meaning
        kind.repair = repair
        return kind

    WRONG_TYPE = (
        "wrong_type",
        "a key is not of its kind: every call that needs it fails",
        "the key is renamed, unharmed; what it should have held is built up anew where that is possible",
    )
    UNKNOWN_TOPIC = (
        "unknown_topic",
        "the topic holds something, and no list of topics shows it",
        "the topic is listed again, without settings unless they were there",
    )
    SETTINGS_UNREADABLE = (
        "settings_unreadable",
        "the topic's settings cannot be read: its puts and pops fail",
        "the settings are put aside; the topic has none, and hands out",
    )
    UNREADABLE = (
        "unreadable",
        "the id or the record of a job cannot be read: it can stop what meets it",
        "the record is put aside as it is, and the job leaves all places; it counts as lost",
    )
    IN_TWO_PLACES = (
        "in_two_places",
        "a job is in several states at once: it may be handed out again when it is over, or to two consumers",
        "it stays in one: finished before dead, dead before reserved, reserved before delayed, delayed before ready",
    )
    IN_NO_PLACE = (
        "in_no_place",
        "a job is nowhere: it would never be handed out",
        "it goes to the end of the Ready list, or waits on if it is not due yet",
    )
    NO_RECORD = (
        "no_record",
        "a place holds an id of which there is no record: nothing is left of the job but its id",
        "the id leaves the place; the job counts as lost",
    )
    DUE_DIFFERS = (
        "due_differs",
        "a delayed job would run at another time than its record says",
        "it runs when its record says",
    )
    LEASE_ENDLESS = (
        "lease_endless",
        "a lease ends later than any lease may: its job would not come back if its consumer is gone",
        "it ends after the job's ttr from now on",
    )
    EXPIRY_WRONG = (
        "expiry_wrong",
        "the end of a job's ttl is not watched, watched without need, or at another time",
        "it is watched as its record says",
    )
    HOLDER_WRONG = ("holder_wrong", "a consumer is noted as holder of a job that nobody holds", "the note goes")
    TOMBSTONE_WRONG = (
        "tombstone_wrong",
        "a job is noted as cancelled although it is there: its holder may be told so",
        "the note goes",
    )
    TIMER_LATE = (
        "timer_late",
        "the timer does not plan to come in time: jobs would be late, or never be due",
        "its next visit is planned for its first work",
    )
    TALLY_OFF = (
        "tally_off",
        "the jobs that were put are not the sum of those that are there and those that ended",
        "what is missing is counted as lost, what is too many as put; what became of those jobs cannot be known",
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage: `subject` is the job's id, the topic or the key, `detail` what was seen."""

    kind: FindingKind
    subject: str
    detail: str


class Findings:
    """Counts damages by kind, and keeps some as examples. One that is met twice counts once, up to 10,000 of them."""

    def __init__(self) -> None:
        self.counts: dict[FindingKind, int] = {}
        self.examples: list[Finding] = []
        self._met: set[tuple[str, str, str]] = set()

    def add(self, finding: Finding) -> None:
        """Note a damage."""
        # An id can lack its record in several places.
        what = (finding.kind, finding.subject, finding.detail if finding.kind is FindingKind.NO_RECORD else "")
        if what in self._met:
            return
        if len(self._met) < _TOLD_APART_MAX:
            self._met.add(what)
        self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(finding)


@dataclass(slots=True)
class TopicAudit:
    """What an audit of a topic found. After a repair it is the damage that was mended, and all else as it is now.

    `checked` is how many jobs were looked at. `sums` says what became of all jobs ever put (see `lua/lib/topic.lua`,
    and `lost`, which repairs count); it and `counts` are empty when they could not be read. `unchecked` says what could
    not be checked and why; None: all was. `timer_overdue_ms` is for how long the timer's first work has waited.
    """

    topic: str
    repaired: bool
    checked: int = 0
    counts: Mapping[JobState, int] = field(default_factory=dict)
    timer_overdue_ms: int = 0
    sums: Mapping[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    unchecked: str | None = None

    @property
    def clean(self) -> bool:
        """Whether all was checked and nothing was found."""
        return not self.findings.counts and self.unchecked is None


@dataclass(slots=True)
class Survey:
    """What is wrong beyond single topics.

    `unlisted` are topics that hold something and that a list of topics does not show, or fails over, each for an audit
    of its own. `stray_keys` are keys under deferd's prefix that are of no topic, which do no harm: `stray_count` in
    all, and up to 100 names.
    """

    repaired: bool
    findings: Findings = field(default_factory=Findings)
    unlisted: list[str] = field(default_factory=list)
    stray_keys: list[str] = field(default_factory=list)
    stray_count: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing was found that is a damage."""
        return not self.findings.counts and not self.unlisted

"""The responses about consistency: what an audit found, or a repair found and repaired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import field

from deferd.contract.finding_kinds import FindingKind
from deferd.contract.responses.response import Response, shown_as
from deferd.contract.responses.topics import Counts

_Repaired = Annotated[bool, "Whether what was found has been repaired."]
_UNREAD = "Omitted when they could not be read."


class FindingSummary(Response, frozen=True, kw_only=True):
    """All findings of one kind: what an audit found, or a repair found and repaired."""

    kind: Annotated[str, shown_as(FindingKind)]
    found: Annotated[int, "The number of findings of this kind."]
    meaning: Annotated[str, "What it means, for people."]
    repair: Annotated[str, "What a repair does about it, for people."]


class FindingExample(Response, frozen=True, kw_only=True):
    """One finding."""

    kind: Annotated[str, shown_as(FindingKind)]
    subject: Annotated[str, "The id of a job, the name of a topic, or a key of the store."]
    detail: Annotated[str, "What was found, for people."]


_Examples = Annotated[list[FindingExample], "Examples of the findings, at most 100."]


class Sums(Response, frozen=True, kw_only=True):
    """The outcomes of all jobs that were ever put; `put` is the sum of the others."""

    put: int
    finished: int
    cancelled: Annotated[int, "By a cancel, a purge, or a put that replaced them."]
    dropped: Annotated[int, "Dead until their retention ended."]
    lost: Annotated[int, "Found missing by a repair."]
    dead: Annotated[int, "Dead now, including expired jobs."]
    live: Annotated[int, "Delayed, ready or reserved now."]


class TopicAudit(Response, frozen=True, kw_only=True):
    """What an audit of a topic found, or a repair repaired. `counts` and `sums` are read afterwards."""

    schema_name = "Audit"

    topic: str
    clean: Annotated[bool, "Whether everything was checked and nothing was found."]
    repaired: _Repaired
    checked: Annotated[int, "The number of jobs checked."]
    timer_overdue: Annotated[
        float, "How many seconds the timer is late. This is not a finding, but check that a service is running."
    ]
    summaries: list[FindingSummary] = field(name="findings")
    examples: _Examples
    counts: Annotated[dict[str, int] | None, shown_as(Counts | None), _UNREAD] = None
    sums: Annotated[dict[str, int] | None, shown_as(Sums | None), _UNREAD] = None
    unchecked: Annotated[str | None, "What could not be checked, and why."] = None

    @property
    def findings(self) -> Mapping[str, int]:
        """The number of findings of each kind; kinds without findings are left out."""
        return {one.kind: one.found for one in self.summaries}

    schema_examples = (
        {
            "topic": "orders.close",
            "clean": False,
            "repaired": False,
            "checked": 14,
            "counts": {"delayed": 12, "ready": 1, "reserved": 1, "dead": 0, "finished": 0},
            "sums": {"put": 5014, "finished": 4800, "cancelled": 200, "dropped": 0, "lost": 0, "dead": 0, "live": 14},
            "timer_overdue": 0,
            "findings": [
                {
                    "kind": "in_no_place",
                    "found": 1,
                    "meaning": FindingKind.IN_NO_PLACE.meaning,
                    "repair": FindingKind.IN_NO_PLACE.repair,
                }
            ],
            "examples": [{"kind": "in_no_place", "subject": "order-1042", "detail": "due 2026-11-21T07:16:58.123Z"}],
        },
    )


class StoreAudit(Response, frozen=True, kw_only=True):
    """What an audit of the whole store found, or a repair repaired."""

    clean: Annotated[bool, "Whether nothing was found and no topic is unlisted."]
    repaired: _Repaired
    unlisted: Annotated[
        list[str], "Topics that have data but are missing from the list of topics, or make it fail. Audit each."
    ]
    summaries: list[FindingSummary] = field(name="findings")
    examples: _Examples
    stray_keys: Annotated[
        list[str], "Keys under deferd's prefix that belong to no topic, at most 100. They are harmless."
    ]
    stray_count: Annotated[int, "The number of such keys."]

    @property
    def findings(self) -> Mapping[str, int]:
        """The number of findings of each kind; kinds without findings are left out."""
        return {one.kind: one.found for one in self.summaries}

    schema_examples = (
        {
            "clean": True,
            "repaired": False,
            "unlisted": [],
            "findings": [],
            "examples": [],
            "stray_keys": [],
            "stray_count": 0,
        },
    )

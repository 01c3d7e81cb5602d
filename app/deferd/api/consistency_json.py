"""Audits as the JSON of the API."""

from __future__ import annotations

from typing import Any

from deferd.api.response_values import seconds
from deferd.contract.model import JobState
from deferd.engine.consistency.findings import Findings, StoreReport, TopicReport


def topic(audit: TopicReport) -> dict[str, Any]:
    """The findings in a topic; what could not be read is omitted."""
    shown = {
        "topic": audit.topic,
        "clean": audit.clean,
        "repaired": audit.repaired,
        "checked": audit.checked,
        "timer_overdue": seconds(audit.timer_overdue_ms),
        **_found(audit.findings),
    }
    if audit.sums:
        shown["counts"] = {state.value: audit.counts[state] for state in JobState}
        shown["sums"] = audit.sums
    if audit.unchecked is not None:
        shown["unchecked"] = audit.unchecked
    return shown


def store(survey: StoreReport) -> dict[str, Any]:
    """The findings in the store as a whole."""
    return {
        "clean": survey.clean,
        "repaired": survey.repaired,
        "unlisted": survey.unlisted,
        **_found(survey.findings),
        "stray_keys": survey.stray_keys,
        "stray_count": survey.stray_count,
    }


def _found(findings: Findings) -> dict[str, Any]:
    return {
        "findings": [
            {"kind": kind.value, "found": count, "meaning": kind.meaning, "repair": kind.repair}
            for kind, count in findings.counts.items()
        ],
        "examples": [
            {"kind": example.kind.value, "subject": example.subject, "detail": example.detail}
            for example in findings.examples
        ],
    }

"""Audits as the API shows them."""

from __future__ import annotations

from typing import Any

from deferd.api.response_values import seconds
from deferd.contract.model import JobState
from deferd.contract.responses import audits as responses
from deferd.engine.consistency.findings import Findings, StoreReport, TopicReport


def audit(report: TopicReport) -> responses.TopicAudit:
    """The findings in a topic; what could not be read is omitted."""
    return responses.TopicAudit(
        topic=report.topic,
        clean=report.clean,
        repaired=report.repaired,
        checked=report.checked,
        timer_overdue=seconds(report.timer_overdue_ms),
        **_found(report.findings),
        counts={state.value: report.counts[state] for state in JobState} if report.sums else None,
        sums=dict(report.sums) or None,
        unchecked=report.unchecked,
    )


def store_audit(report: StoreReport) -> responses.StoreAudit:
    """The findings in the store as a whole."""
    return responses.StoreAudit(
        clean=report.clean,
        repaired=report.repaired,
        unlisted=report.unlisted,
        **_found(report.findings),
        stray_keys=report.stray_keys,
        stray_count=report.stray_count,
    )


def _found(findings: Findings) -> dict[str, Any]:
    return {
        "summaries": [
            responses.FindingSummary(kind=kind, found=count, meaning=kind.meaning, repair=kind.repair)
            for kind, count in findings.counts.items()
        ],
        "examples": [
            responses.FindingExample(kind=example.kind, subject=example.subject, detail=example.detail)
            for example in findings.examples
        ],
    }

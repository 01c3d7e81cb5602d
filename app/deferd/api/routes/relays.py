"""For operators: the relays of outboxes, and what they report."""

from __future__ import annotations

from deferd.api.context import CurrentRequest
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import whole
from deferd.contract.operations import relays as contract
from deferd.contract.operations.relays import RelayName, RelayState, ReportRelay
from deferd.contract.timestamps import instant
from deferd.engine.inspection.relays import Report

router = OperationRouter()


@router.serves(contract.LIST_RELAYS, all_topics=True)
async def list_relays(request: CurrentRequest) -> contract.Relays:
    found = await request.engine.relays.read()
    return contract.Relays(relays=[_relay(one.name, one.report, one.state, one.seen_ms) for one in found.relays])


@router.serves(contract.REPORT_RELAY)
async def report_relay(request: CurrentRequest, name: RelayName, report: ReportRelay) -> contract.Relay:
    kept = Report(report.database, report.working, report.rows, report.refused, round(report.lag, 3))
    reported_ms = await request.engine.relays.report(name, kept)
    return _relay(name, kept, "works" if kept.is_working else "waits", reported_ms)


def _relay(name: str, report: Report, state: RelayState, seen_ms: int) -> contract.Relay:
    return contract.Relay(
        name=name,
        database=report.database,
        state=state,
        rows=report.rows,
        refused=report.refused,
        lag=whole(report.lag_s),
        seen_at=instant(seen_ms),
    )

"""A run's outcome for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.faults.failover import Failovers
from tests.faults.plan import FaultKind
from tests.faults.run import Outcome


def report(outcome: Outcome) -> str:
    """The table."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    calls = sum(count for (kind, _), count in outcome.operations.items() if kind != "deliver")
    clocks = " and ".join(f"{error_h:+.0f} h" for error_h in outcome.clock_errors_h)
    yield f"seed {outcome.seed}: {len(outcome.faults)} faults in {outcome.took_s:.0f} s, {calls} calls"
    yield f"the services' clocks were off by {clocks} at the end; the store's: +-{outcome.uncertainty_ms:.1f} ms"
    yield ""
    faults: defaultdict[FaultKind, list[float]] = defaultdict(list)
    for fault, went_on_after_s in outcome.faults:
        faults[fault.kind].append(went_on_after_s)
    yield " times  s till calls of all kinds went on, at most"
    for kind in FaultKind:
        if kind in faults:
            yield f"{len(faults[kind]):6} {max(faults[kind]):6.1f}  {kind}"
    yield ""
    by_kind: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (kind_of_call, what), count in outcome.operations.items():
        by_kind[kind_of_call][what] += count
    for kind_of_call, outcomes in sorted(by_kind.items()):
        told = ", ".join(f"{what} {count}" for what, count in outcomes.most_common())
        yield f"{kind_of_call:8} {sum(outcomes.values()):7}: {told}"
    yield ""
    broken = outcome.broken
    for count, what in (
        (len(broken.lost), "acknowledged jobs lost"),
        (len(broken.held_twice), "deliveries under another one's live lease"),
        (len(broken.delivered_after_cancel), "deliveries after an acknowledged cancel"),
        (len(broken.delivered_after_finish), "deliveries after an acknowledged finish"),
        (outcome.left, "jobs left at the end"),
        (len(outcome.audit), f"faults found by {outcome.audits} audits, and in what the store counted"),
        (len(outcome.violations), "violations of the model"),
        (
            len(outcome.undecided),
            f"undecided of {outcome.jobs_checked} jobs; the longest history has {outcome.longest} operations",
        ),
    ):
        yield f"{count:6}  {what}"
    for lines in (*vars(broken).values(), outcome.audit, outcome.undecided, outcome.violations):
        yield from lines


def report_failovers(failovers: Failovers) -> str:
    """The part about failovers."""
    slowest_s = max(failovers.went_on_after_s, default=0)
    puts = f"{len(failovers.unknown)} unknown, {len(failovers.delivered)} delivered, {len(failovers.finished)} finished"
    lines = (
        (len(failovers.went_on_after_s), f"failovers; puts went on within {slowest_s:.1f} s of the kill"),
        (len(failovers.acknowledged), f"puts acknowledged as replicated, {puts}"),
        (len(failovers.lost), "acknowledged jobs lost"),
        (len(failovers.unheard_of), "jobs delivered that nobody had put"),
        (failovers.left, "jobs left at the end"),
        (len(failovers.audit), "faults found by the audit"),
    )
    return "\n".join([*(f"{count:6}  {what}" for count, what in lines), *failovers.audit])


def are_clean(failovers: Failovers) -> bool:
    """Whether nothing was lost."""
    return not (failovers.lost or failovers.unheard_of or failovers.left or failovers.audit)


def is_clean(outcome: Outcome) -> bool:
    """Whether all that is promised was kept, and decided."""
    found = (*vars(outcome.broken).values(), outcome.audit, outcome.undecided, outcome.violations)
    return not any(found) and not outcome.left

"""A run's outcome for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.faults.failover import Failovers
from tests.faults.plan import FaultKind
from tests.faults.run import Brought, Outcome


def report(outcome: Outcome) -> str:
    """The table."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    calls = sum(count for (kind, _), count in outcome.operations.items() if kind != "deliver")
    clocks = " and ".join(f"{error_h:+.0f} h" for error_h in outcome.clock_errors_h)
    yield f"seed {outcome.seed}: {len(outcome.faults)} faults in {outcome.took_s:.0f} s, {calls} calls"
    yield f"the services' clocks were off by {clocks} at the end; the store's: +-{outcome.uncertainty_ms:.1f} ms"
    yield ""
    faults: defaultdict[FaultKind, list[Brought]] = defaultdict(list)
    for brought in outcome.faults:
        faults[brought.fault.kind].append(brought)
    yield " times, calls without an answer, s till calls of all kinds went on, at most"
    for kind, of_kind in sorted(faults.items(), key=lambda item: list(FaultKind).index(item[0])):
        troubled, slowest_s = sum(one.troubled for one in of_kind), max(one.went_on_after_s for one in of_kind)
        yield f"{len(of_kind):6} {troubled:6} {slowest_s:6.1f}  {kind}"
    yield f"{len(outcome.not_brought):6}  faults drawn that did not come about"
    yield f"{len(outcome.never_brought):6}  kinds of faults that were not brought{_named(outcome.never_brought)}"
    yield ""
    by_kind: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (kind_of_call, what), count in outcome.operations.items():
        by_kind[kind_of_call][what] += count
    for kind_of_call, outcomes in sorted(by_kind.items()):
        told = ", ".join(f"{what} {count}" for what, count in outcomes.most_common())
        yield f"{kind_of_call:10} {sum(outcomes.values()):7}: {told}"
    yield ""
    broken = outcome.broken
    for count, what in (
        (len(broken.lost), "acknowledged jobs lost"),
        (len(broken.held_twice), "deliveries under another one's live lease"),
        (len(broken.delivered_after_cancel), "deliveries after an acknowledged cancel"),
        (len(broken.delivered_after_finish), "deliveries after an acknowledged finish"),
        (len(broken.forgotten), "finished jobs that were not kept for as long as their put said"),
        (len(broken.receipts_twice), "receipts given to two deliveries"),
        (len(outcome.wrong_answers), "internal errors, and puts that were acknowledged as less than fsync"),
        (outcome.left, "jobs left at the end"),
        (len(outcome.audit), f"faults found by {outcome.audits} audits, and in what the store counted"),
        (len(outcome.violations), "violations of the model"),
        (
            len(outcome.undecided),
            f"undecided of {outcome.jobs_checked} jobs; the longest history has {outcome.longest} operations",
        ),
    ):
        yield f"{count:6}  {what}"
    details = (outcome.not_brought, *vars(broken).values(), outcome.wrong_answers)
    for lines in (*details, outcome.audit, outcome.undecided, outcome.violations):
        yield from lines


def _named(kinds: Iterable[FaultKind]) -> str:
    return "".join(f"; {kind}" for kind in kinds)


def report_failovers(failovers: Failovers) -> str:
    """The part about failovers."""
    slowest_s = max(failovers.went_on_after_s, default=0)
    jobs = f"{len(failovers.unknown)} unknown, {len(failovers.delivered)} delivered, {len(failovers.finished)} finished"
    lines = (
        (len(failovers.went_on_after_s), f"failovers; puts went on within {slowest_s:.1f} s of the kill"),
        (len(failovers.acknowledged), f"jobs acknowledged as replicated, {jobs}"),
        (failovers.replaced, "puts in place of another that were acknowledged as replicated"),
        (failovers.weaker, "puts without a level of their own that were answered as less, settings being lost"),
        (sum(failovers.never_replicated), "stored puts that the new primaries lacked, and so had to be unknown"),
        (failovers.never_replicated.count(0), "failovers at which the new primary lacked none"),
        (len(failovers.lost), "acknowledged jobs lost, or delivered only as they were before"),
        (len(failovers.early), "jobs delivered before they were due"),
        (len(failovers.unheard_of), "jobs delivered that nobody had put"),
        (failovers.left, "jobs left at the end"),
        (len(failovers.audit), "faults found by the audit"),
    )
    return "\n".join([*(f"{count:6}  {what}" for count, what in lines), *failovers.audit])


def are_clean(failovers: Failovers) -> bool:
    """Whether nothing was lost, each time that something could have been."""
    found = (failovers.lost, failovers.early, failovers.unheard_of, failovers.left, failovers.audit)
    return 0 not in failovers.never_replicated and not any(found)


def is_clean(outcome: Outcome) -> bool:
    """Whether all kinds of faults were brought, and all that is promised was kept, and decided."""
    shown = (outcome.never_brought, outcome.not_brought, outcome.wrong_answers)
    found = (*shown, *vars(outcome.broken).values(), outcome.audit, outcome.undecided, outcome.violations)
    return not any(found) and not outcome.left

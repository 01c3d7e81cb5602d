"""Reports of a run, for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.faults.failover import Failovers
from tests.faults.plan import FaultKind
from tests.faults.run import InjectedFault, Outcome


def report(outcome: Outcome) -> str:
    """The report of a fault run."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    calls = sum(count for (kind, _), count in outcome.operations.items() if kind != "deliver")
    clocks = " and ".join(f"{error_h:+.0f} h" for error_h in outcome.clock_errors_h)
    yield f"seed {outcome.seed}: {len(outcome.faults)} faults in {outcome.took_s:.0f} s, {calls} calls"
    yield f"the services' clocks were off by {clocks} at the end; the store's: +-{outcome.uncertainty_ms:.1f} ms"
    yield ""
    faults: defaultdict[FaultKind, list[InjectedFault]] = defaultdict(list)
    for injected in outcome.faults:
        faults[injected.fault.kind].append(injected)
    yield " times, failed calls, longest time in s until all kinds of calls succeeded again"
    for kind, of_kind in sorted(faults.items(), key=lambda item: list(FaultKind).index(item[0])):
        failed_calls, slowest_s = (
            sum(one.failed_calls for one in of_kind),
            max(one.recovered_after_s for one in of_kind),
        )
        yield f"{len(of_kind):6} {failed_calls:6} {slowest_s:6.1f}  {kind}"
    for one in outcome.replacements:
        what = f"service {one.service} is replaced (SIGTERM) by {one.release}; the store has {one.libraries} libraries"
        yield f"{1:6} {one.failed_calls:6} {one.recovered_after_s:6.1f}  {what}"
    yield f"{len(outcome.not_injected):6}  faults drawn that had no effect"
    for kind, why in outcome.left_out.items():
        yield f"     0  {kind}: not on this machine ({why})"
    yield f"{len(outcome.never_injected):6}  kinds of faults that were never injected{_named(outcome.never_injected)}"
    yield ""
    by_kind: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (kind_of_call, what), count in outcome.operations.items():
        by_kind[kind_of_call][what] += count
    for kind_of_call, outcomes in sorted(by_kind.items()):
        counts = ", ".join(f"{what} {count}" for what, count in outcomes.most_common())
        yield f"{kind_of_call:18} {sum(outcomes.values()):7}: {counts}"
    yield ""
    yield " calls that used"
    for verb, of_verb in outcome.verbs.items():
        counts = ", ".join(f"{what} {count}" for what, count in of_verb.most_common())
        yield f"{verb:31} {of_verb.total():7}: {counts}"
    yield ""
    closed = f"requests to push targets; {outcome.pushes_closed} were given up, or ended with their service"
    yield f"{outcome.pushes.total():6}  {closed}"
    yield f"{outcome.pushes_beside:6}  of them while another one of the same job, whose lease had ended, was under way"
    for behaviour, count in outcome.pushes.most_common():
        yield f"{count:6}  {behaviour}"
    delays_s = sorted(outcome.push_delays_s)
    if delays_s:
        slowest = f"half within {delays_s[len(delays_s) // 2] * 1000:.0f} ms, all within {delays_s[-1]:.1f} s"
        yield f"{len(delays_s):6}  jobs of the target that always responds were pushed, {slowest} of being due"
    members = outcome.members
    yield f"{members.acknowledged:6}  members of a set acknowledged, {members.taken} taken"
    yield f"{members.unknown:6}  of them finished by an SPOP whose reply was lost"
    yield f"{outcome.batches:6}  batches sealed"
    if outcome.batches_to_shelf:
        yield f"{outcome.batches_to_shelf:6}  batches of jobs went to the shelf"
    flows = outcome.flow_control
    yield from flows.usage()
    yield ""
    broken = outcome.broken
    for count, what in (
        (len(broken.lost), "acknowledged jobs lost"),
        (len(broken.overlapping_leases), "deliveries while another delivery's lease was live"),
        (len(broken.delivered_after_cancel), "deliveries after an acknowledged cancel"),
        (len(broken.delivered_after_finish), "deliveries after an acknowledged finish"),
        (len(broken.forgotten), "finished jobs that were not retained for as long as their put requested"),
        (len(broken.reused_receipts), "receipts used for two deliveries"),
        (len(broken.split_chains), "jobs delivered again although the put of the same step was done"),
        (len(broken.split_items), "items delivered twice, or in two bodies"),
        (len(broken.lost_items), "acknowledged items that the delivery of their collection lacks"),
        (len(broken.put_while_taken), "jobs put while `unique_for` kept the id taken"),
        (len(broken.late), "puts carried out after they had been given up"),
        (len(flows.over_in_flight), "deliveries beyond `max_in_flight`"),
        (len(flows.over_rate), "deliveries beyond a rate"),
        (len(flows.out_of_order), "jobs whose place in a group with strict order others took"),
        (len(outcome.wrong_responses), "internal errors, and puts acknowledged below fsync"),
        (
            len(outcome.wrong_pushes),
            "push requests that were not signed, or had the id of another job, or came twice at a time",
        ),
        (len(outcome.wrong_batches), "batches that did not put one job with the counts of their jobs"),
        (len(members.lost), "acknowledged members of a set lost"),
        (len(members.taken_twice), "members of a set taken twice"),
        (len(members.early), "members of a set taken before they were due"),
        (len(members.never_put), "members of a set taken that nobody had put"),
        (len(members.miscounted), "members of a set miscounted"),
        (outcome.left, "jobs left at the end"),
        (len(outcome.audit), f"findings of {outcome.audits} consistency checks, and in the store's counters"),
        (len(outcome.violations), "violations of the model"),
        (
            len(outcome.undecided),
            f"undecided of {outcome.jobs_checked} jobs; the longest history has {outcome.longest} operations",
        ),
    ):
        yield f"{count:6}  {what}"
    details = (outcome.not_injected, *vars(broken).values(), *_findings(outcome))
    for lines in (*details, outcome.audit, outcome.undecided, outcome.violations):
        yield from lines


def _findings(outcome: Outcome) -> tuple[list[str], ...]:
    """What must be empty beside the broken promises."""
    flows = outcome.flow_control
    of_flows = flows.over_in_flight, flows.over_rate, flows.out_of_order
    wrong = outcome.wrong_responses, outcome.wrong_pushes, outcome.wrong_batches
    return *wrong, *outcome.members.broken, *of_flows


def _named(kinds: Iterable[FaultKind]) -> str:
    return "".join(f"; {kind}" for kind in kinds)


def report_failovers(failovers: Failovers) -> str:
    """The report of the failovers."""
    slowest_s = max(failovers.recovered_after_s, default=0)
    jobs = f"{len(failovers.unknown)} unknown, {len(failovers.delivered)} delivered, {len(failovers.finished)} finished"
    lines = (
        (len(failovers.recovered_after_s), f"failovers; puts succeeded again within {slowest_s:.1f} s of the kill"),
        (len(failovers.acknowledged), f"jobs acknowledged as replicated, {jobs}"),
        (failovers.replaced, "puts that replaced a job and were acknowledged as replicated"),
        (
            failovers.weaker,
            "puts at the topic's default that were acknowledged below it, because the topic's settings were lost",
        ),
        (sum(failovers.never_replicated), "stored puts that the new primaries lacked; none may have been acknowledged"),
        (failovers.never_replicated.count(0), "failovers at which the new primary lacked no put"),
        (len(failovers.lost), "acknowledged jobs lost, or delivered only in their earlier version"),
        (len(failovers.early), "jobs delivered before they were due"),
        (len(failovers.never_put), "delivered jobs that nobody had put"),
        (len(failovers.wrong_ends), "jobs with fewer or more ends than they may have"),
        (failovers.left, "jobs left at the end"),
        (len(failovers.audit), "findings of the consistency check"),
    )
    return "\n".join([*(f"{count:6}  {what}" for count, what in lines), *failovers.wrong_ends, *failovers.audit])


def are_clean(failovers: Failovers) -> bool:
    """Whether nothing was lost, and every failover could have lost something."""
    found = (failovers.lost, failovers.early, failovers.never_put, failovers.wrong_ends, failovers.audit)
    return 0 not in failovers.never_replicated and not any(found) and not failovers.left


def is_clean(outcome: Outcome) -> bool:
    """Whether all kinds of faults were injected, every promise was kept, and every job was decided."""
    shown = (outcome.never_injected, outcome.not_injected, *_findings(outcome))
    found = (*shown, *vars(outcome.broken).values(), outcome.audit, outcome.undecided, outcome.violations)
    return not any(found) and not outcome.left

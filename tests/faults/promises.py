"""Count broken promises directly from a history and the store, without the search of `linearizability`.

Each count is of plain contradictions and must be 0.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from deferd.contract.model import JobState
from tests.faults.collapsed_puts import lost_items, may_follow, put_while_taken, split_items
from tests.faults.history import DELIVERED, NOT_SHOWN, UNKNOWN, History, Operation, tags_of
from tests.faults.linearizability import StoreClock
from tests.integration.store.store_contents import Contents


@dataclass(frozen=True)
class Broken:
    """Broken promises by kind, with the jobs."""

    lost: list[str] = field(default_factory=list)
    overlapping_leases: list[str] = field(default_factory=list)
    delivered_after_cancel: list[str] = field(default_factory=list)
    delivered_after_finish: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    reused_receipts: list[str] = field(default_factory=list)
    split_chains: list[str] = field(default_factory=list)
    split_items: list[str] = field(default_factory=list)
    lost_items: list[str] = field(default_factory=list)
    put_while_taken: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


_MAY_BE_NEW = {"created", "stored", DELIVERED, UNKNOWN}
_SHOWN_LEVEL = {"created", "stored", "exists", "kept", "appended", "follows", "follow-up appended", "follow-up kept"}
_ENDS = {"finish", "release", "snooze", "bury", "cancel"}


def broken_promises(history: History, clock: StoreClock) -> Broken:
    """Check each job. The history must end with a look at each job in the store."""
    broken = Broken(split_chains=_split_chains(history))
    for (topic, job), operations in history.of_job.items():
        name = f"{topic}/{job}"
        broken.lost.extend(f"{name} {tag}" for tag in _lost(operations))
        broken.forgotten.extend(f"{name} {tag}" for tag in _forgotten(operations, clock))
        broken.split_items.extend(f"{name} {tag}" for tag in split_items(operations))
        broken.lost_items.extend(f"{name} {tag}" for tag in lost_items(operations, clock))
        broken.put_while_taken.extend(f"{name} {tag}" for tag in put_while_taken(operations, clock))
        broken.late.extend(f"{name} {tag}" for tag in _late(operations, clock))
        deliveries = sorted(
            (one for one in operations if one.kind == "deliver"), key=lambda one: _made_by_ms(one, clock)
        )
        ends = [one for one in operations if one.kind in _ENDS and one.outcome not in {"stale", "not found"}]
        for first, second in pairwise(deliveries):
            if second.receipt != first.receipt and _is_overlapping(first, second, operations, ends, clock):
                broken.overlapping_leases.append(f"{name} {first.receipt} and {second.receipt}")
        of_receipt: dict[str, Operation] = {}
        for one in deliveries:
            first = of_receipt.setdefault(one.receipt, one)
            if (first.tag, first.attempt, first.at_ms) != (one.tag, one.attempt, one.at_ms):
                broken.reused_receipts.append(f"{name} {one.receipt}")
        puts_ms = {
            put.tag: clock.latest(put.end_s) if put.at_ms is None else put.at_ms
            for put in operations
            if put.kind == "put" and not may_follow(put)
        }
        for ended, found in (
            ([one for one in ends if one.kind == "cancel"], broken.delivered_after_cancel),
            ([one for one in ends if one.kind == "finish"], broken.delivered_after_finish),
        ):
            for end in ended:
                if end.outcome in {UNKNOWN, "cancelled"}:
                    continue
                found.extend(f"{name} {one.receipt}" for one in deliveries if _is_after(one, end, puts_ms, clock))
    return broken


def _split_chains(history: History) -> list[str]:
    """Finishes that put a job, whose own job was delivered again after that one was put."""
    puts = {
        one.chain: one
        for operations in history.of_job.values()
        for one in operations
        if one.kind == "put" and one.chain and one.outcome == "created" and one.at_ms is not None
    }
    found = []
    for (topic, job), operations in history.of_job.items():
        tags = {one.receipt: one.tag for one in operations if one.kind == "deliver"}
        found += [
            f"{topic}/{job} {later.receipt} after {puts[finish.chain].tag}"
            for finish in operations
            if finish.kind == "finish" and finish.chain in puts
            for later in operations
            if later.kind == "deliver"
            and later.tag == tags.get(finish.receipt)
            and (later.at_ms or 0) > (puts[finish.chain].at_ms or 0)
        ]
    return found


def _lost(operations: Iterable[Operation]) -> list[str]:
    """Tags of acknowledged puts whose jobs are gone though no operation can have ended them."""
    of_job = list(operations)
    looks = [one for one in of_job if one.kind == "look"]
    if not looks or looks[-1].outcome == "there":
        return []
    receipts: defaultdict[str, set[str]] = defaultdict(set)
    for one in of_job:
        if one.kind == "deliver":
            for tag in tags_of(one.tag):
                receipts[tag].add(one.receipt)
    ended = {one.receipt for one in of_job if one.kind in {"finish", "bury"} and one.outcome in {"done", UNKNOWN}}
    others = [one for one in of_job if _may_remove(one) or _finishes_live_delivery(one)]
    return [
        put.tag
        for put in of_job
        if put.kind == "put"
        and put.outcome in {"created", "stored", "appended", "follows", "follow-up appended", DELIVERED}
        and not any(_may_die(other) for other in (of_job if put.on_conflict == "append" else [put]))
        and not receipts[put.tag] & ended
        and not any(one.tag != put.tag and (one.end_s is None or one.end_s > put.call_s) for one in others)
    ]


def _may_die(put: Operation) -> bool:
    """Whether its job may die by itself."""
    return bool(put.ttl_ms or put.max_attempts or put.deadline_ms)


def _may_remove(one: Operation) -> bool:
    """Whether the operation may have removed the job of another put."""
    if one.kind == "put":
        return one.on_conflict == "replace" and one.outcome in {"stored", "follows", DELIVERED, UNKNOWN}
    return one.kind == "cancel" and one.outcome != "not found"


def _finishes_live_delivery(one: Operation) -> bool:
    return one.kind == "finish" and not one.receipt and one.outcome in {"done", UNKNOWN}


def _forgotten(of_job: Iterable[Operation], clock: StoreClock) -> list[str]:
    """Tags of finished jobs that were not found before their retention ended."""
    operations = list(of_job)
    retains_ms = {one.tag: one.retain_ms for one in operations if one.kind == "put" and one.retain_ms}
    puts_s = {one.tag: one.call_s for one in operations if one.kind == "put"}
    removals = [
        one for one in operations if _may_remove(one) or (one.kind == "put" and (one.only_live or may_follow(one)))
    ]
    found = []
    for delivery in operations:
        if delivery.kind != "deliver" or delivery.tag not in retains_ms:
            continue
        until_ms = (delivery.at_ms or 0) + retains_ms[delivery.tag]  # it was finished after it was delivered
        done_s = [
            one.end_s or inf
            for one in operations
            if one.kind == "finish" and one.receipt == delivery.receipt and one.outcome == "done"
        ]
        found += [
            delivery.tag
            for one in operations
            if _shows_absence(one)
            and one.call_s > min(done_s, default=inf)
            and clock.latest(one.end_s) < until_ms
            and not any(
                other.call_s < (one.end_s or inf) and (other.end_s or inf) > puts_s[delivery.tag]
                for other in removals
                if other.tag != delivery.tag
            )
        ]
    return found


def _late(of_job: Iterable[Operation], clock: StoreClock) -> list[str]:
    """Tags of puts that were carried out after the service, or the client, had given them up."""
    return [
        put.tag
        for put in of_job
        if put.kind == "put" and put.at_ms is not None and put.at_ms > clock.latest(put.over_s)
    ]


def _shows_absence(one: Operation) -> bool:
    """Whether the response shows that no job has the id."""
    if one.kind == "put":
        return one.outcome == "created"
    return one.outcome == "not found" and one.kind != "change"  # which a finished job causes, too


def _is_overlapping(
    first: Operation, second: Operation, of_job: Iterable[Operation], ends: Iterable[Operation], clock: StoreClock
) -> bool:
    """Whether the second delivery was made during the first one's lease, which no operation can have ended."""
    is_of_same_job = second.receipt.split(".")[0] == first.receipt.split(".")[0]
    if is_of_same_job and second.attempt < first.attempt:  # it was made earlier, and its message took longer
        return False
    made_ms, first_ms = _made_by_ms(second, clock), first.at_ms or 0
    touches = [one for one in of_job if one.kind == "touch" and one.receipt == first.receipt and one.outcome == "done"]
    if made_ms >= max([first.lease_end_ms, *(one.lease_end_ms for one in touches if (one.at_ms or 0) < made_ms)]):
        return False
    return not any(
        (end.receipt in {"", first.receipt})
        and clock.earliest(end.call_s) <= made_ms
        and clock.latest(end.end_s) >= first_ms
        for end in ends
    )


def _made_by_ms(delivery: Operation, clock: StoreClock) -> float:
    """When it was made: if that is not shown, at the latest. That was before its own lease ended."""
    if delivery.at_ms is not None:
        return delivery.at_ms
    return min(clock.latest(delivery.end_s), delivery.lease_end_ms)


def _is_after(delivery: Operation, end: Operation, puts_ms: Mapping[str, float], clock: StoreClock) -> bool:
    """Whether a job that was put before an acknowledged end is delivered after it."""
    made_ms = delivery.at_ms or 0
    was_of_this_job = not end.receipt or end.receipt.split(".")[0] == delivery.receipt.split(".")[0]
    put_before = delivery.tag in puts_ms and puts_ms[delivery.tag] < clock.earliest(end.call_s)
    return was_of_this_job and put_before and made_ms > clock.latest(end.end_s)


def wrong_responses(history: History) -> list[str]:
    """Responses that no fault excuses: internal errors, and puts acknowledged below the default durability."""
    found = []
    for line in history.lines:
        name = f"{line['kind']} {line['topic']}/{line['job']}" if line.get("job") else f"{line['kind']} {line['topic']}"
        if "status" in line:
            found.append(f"{name} got status {line['status']}")
        if (
            line["kind"] == "put"
            and line["outcome"] in _SHOWN_LEVEL
            and line.get("level") != "fsync"
            and not (line["outcome"] == "exists" and "chain" in line)  # it refuses the finish and acknowledges no put
            and not (line["outcome"] == "exists" and line.get("level") == NOT_SHOWN)
        ):
            found.append(f"{name} was acknowledged as {line.get('level')}, not as fsync")
    return found


def check_store_contents(topic: str, contents: Contents, history: History) -> list[str]:
    """Errors in a topic's keys at the end: sets against Job Pool, the tally, and the tally against the history."""
    errors = []
    placed = [*contents.ready_list, *(job for scores in contents.scores.values() for job in scores)]
    if len(placed) != len(set(placed)):
        errors.append("an id is in two sets")
    if strays := set(placed) - contents.pool.keys():
        errors.append(f"ids without a record: {strays}")
    if lost := contents.pool.keys() - set(placed):
        errors.append(f"jobs in no set: {lost}")
    if strays := contents.holders.keys() - contents.scores[JobState.RESERVED].keys():
        errors.append(f"holders of jobs that are not reserved: {strays}")
    tally = Counter(contents.tally)
    live_or_dead = len(contents.pool) - len(contents.scores[JobState.FINISHED])
    if tally["put"] != tally["finished"] + tally["cancelled"] + tally["dropped"] + live_or_dead:
        errors.append(f"put is not finished + cancelled + dropped + {live_or_dead} in the Job Pool: {dict(tally)}")
    of_ids = [operations for (of, _), operations in history.of_job.items() if of == topic]
    for counted, kind, known in (
        ("put", "put", _puts),
        ("finished", "finish", _finishes),
        ("cancelled", "cancel", _cancels),
    ):
        counts = [known(operations) for operations in of_ids]
        at_least = sum(least for least, _ in counts)
        at_most = sum(most for _, most in counts)
        at_most += sum(one.kind == kind and one.outcome == UNKNOWN for operations in of_ids for one in operations)
        if not at_least <= tally[counted] <= at_most:
            errors.append(f"{counted}: the store counted {tally[counted]}, clients know of {at_least} to {at_most}")
    return [f"{topic}: {error}" for error in errors]


def _puts(of_id: Iterable[Operation]) -> tuple[int, int]:
    """Jobs that were put, at least and at most; the functions below do the same."""
    outcomes = Counter(one.outcome for one in of_id if one.kind == "put")
    count = outcomes["created"] + outcomes["stored"]
    # A follow-up counts once it has become the job.
    return count, count + outcomes["follows"] + outcomes[DELIVERED]


def _finishes(of_id: Iterable[Operation]) -> tuple[int, int]:
    done = [one.receipt for one in of_id if one.kind == "finish" and one.outcome == "done"]
    # A repeated finish succeeds too, and so does the holder's finish of a job that was finished without a receipt.
    by_receipt, by_others = len({receipt for receipt in done if receipt}), done.count("")
    return max(by_receipt, by_others), by_receipt + by_others


def _cancels(of_id: Iterable[Operation]) -> tuple[int, int]:
    operations = list(of_id)
    count = sum(one.kind == "cancel" and one.outcome in {"delayed", "ready", "reserved", "dead"} for one in operations)
    # A put that replaced a job counts as its cancel.
    replaced = sum(
        one.kind == "put" and (one.on_conflict == "replace" or one.only_live) and one.outcome in _MAY_BE_NEW
        for one in operations
    )
    return count, count + replaced

"""What deferd promises, counted straight from a history and from the store, without the search of `linearizability`.

Each count is of plain contradictions, so that it stands on its own: 0 is what is promised.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from deferd.model import JobState
from tests.faults.history import UNKNOWN, History, Operation
from tests.faults.linearizability import StoreClock
from tests.integration.store_contents import Contents


@dataclass(frozen=True)
class Broken:
    """How often a promise was broken, and where."""

    lost: list[str]
    held_twice: list[str]
    delivered_after_cancel: list[str]
    delivered_after_finish: list[str]


def broken_promises(history: History, clock: StoreClock) -> Broken:
    """Look at each job. The history must end with looks at what is left in the store."""
    broken = Broken([], [], [], [])
    for (topic, job), operations in history.of_job.items():
        name = f"{topic}/{job}"
        broken.lost.extend(f"{name} {tag}" for tag in _lost(operations))
        deliveries = sorted((one for one in operations if one.kind == "deliver"), key=lambda one: one.at_ms or 0)
        ends = [one for one in operations if one.kind in {"finish", "release", "cancel"} and one.outcome != "stale"]
        for first, second in pairwise(deliveries):
            if second.receipt != first.receipt and _too_soon(first, second, ends, clock):
                broken.held_twice.append(f"{name} {first.receipt} and {second.receipt}")
        puts_ms = {
            put.tag: clock.latest(put.end_s) if put.at_ms is None else put.at_ms
            for put in operations
            if put.kind == "put"
        }
        for ended, found in (
            ([one for one in ends if one.kind == "cancel"], broken.delivered_after_cancel),
            ([one for one in ends if one.kind == "finish"], broken.delivered_after_finish),
        ):
            for end in ended:
                if end.outcome in {UNKNOWN, "not found", "cancelled"}:
                    continue
                found.extend(f"{name} {one.receipt}" for one in deliveries if _is_after(one, end, puts_ms, clock))
    return broken


def _lost(operations: Iterable[Operation]) -> list[str]:
    """Tags of acknowledged puts of which nothing is left though nothing may have ended them."""
    of_job = list(operations)
    looks = [one for one in of_job if one.kind == "look"]
    if not looks or looks[-1].outcome == "there":
        return []
    receipts: defaultdict[str, set[str]] = defaultdict(set)
    for one in of_job:
        if one.kind == "deliver":
            receipts[one.tag].add(one.receipt)
    finished = {one.receipt for one in of_job if one.kind == "finish" and one.outcome in {"done", UNKNOWN}}
    cancels = [one for one in of_job if one.kind == "cancel" and one.outcome != "not found"]
    return [
        put.tag
        for put in of_job
        if put.kind == "put"
        and put.outcome == "created"
        and not receipts[put.tag] & finished
        and not any(cancel.end_s is None or cancel.end_s > put.call_s for cancel in cancels)
    ]


def _too_soon(first: Operation, second: Operation, ends: Iterable[Operation], clock: StoreClock) -> bool:
    """Whether the second delivery was made under the first one's lease, which nothing may have ended before."""
    made_ms = second.at_ms or 0
    if made_ms >= first.lease_end_ms:
        return False
    of_first = [end for end in ends if end.kind == "cancel" or end.receipt == first.receipt]
    return not any(clock.earliest(end.call_s) <= made_ms for end in of_first if end.outcome != "not found")


def _is_after(delivery: Operation, end: Operation, puts_ms: Mapping[str, float], clock: StoreClock) -> bool:
    """Whether a job that was put before an end that was acknowledged is delivered after it."""
    made_ms = delivery.at_ms or 0
    was_of_this_job = end.kind == "cancel" or end.receipt.split(".")[0] == delivery.receipt.split(".")[0]
    put_before = delivery.tag in puts_ms and puts_ms[delivery.tag] < clock.earliest(end.call_s)
    return was_of_this_job and put_before and made_ms > clock.latest(end.end_s)


def count_outcomes(history: History) -> Counter[tuple[str, str]]:
    """Operations by kind and outcome, a pop being one operation."""
    counts = Counter((line["kind"], line["outcome"]) for line in history.lines)
    counts["deliver", "done"] = sum(len(line.get("jobs", ())) for line in history.lines)
    return counts


def check_books(topic: str, contents: Contents, history: History) -> list[str]:
    """What is wrong with a topic's keys at the end: sets and Job Pool, the tally, and the tally with the history."""
    faults = []
    placed = [job for scores in contents.scores.values() for job in scores]
    if len(placed) != len(set(placed)):
        faults.append("an id is in two places")
    if strays := set(placed) - contents.pool.keys():
        faults.append(f"ids without a record: {strays}")
    ready = contents.pool.keys() - set(placed)
    if lost := ready - set(contents.ready_list):
        faults.append(f"ready jobs that are not in line: {lost}")
    if strays := contents.holders.keys() - contents.scores[JobState.RESERVED].keys():
        faults.append(f"holders of jobs that nobody holds: {strays}")
    tally = Counter(contents.tally)
    live_or_dead = len(contents.pool) - len(contents.scores[JobState.FINISHED])
    if tally["put"] != tally["finished"] + tally["cancelled"] + tally["dropped"] + live_or_dead:
        faults.append(f"put is not finished + cancelled + dropped + {live_or_dead} in the pool: {dict(tally)}")
    for counted, kind, outcomes in (
        ("put", "put", {"created"}),
        ("finished", "finish", {"done"}),
        ("cancelled", "cancel", {"delayed", "ready", "reserved", "dead"}),
    ):
        of_kind = [one for line in history.of_job.values() for one in line if one.kind == kind and one.topic == topic]
        sure = sum(one.outcome in outcomes for one in of_kind)
        at_most = sure + sum(one.outcome == UNKNOWN for one in of_kind)
        if not sure <= tally[counted] <= at_most:
            faults.append(f"{counted}: the store counted {tally[counted]}, clients know of {sure} to {at_most}")
    return [f"{topic}: {fault}" for fault in faults]

"""Promises to puts that collapse, counted from the operations of one job without the search of `linearizability`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf

from tests.faults.history import UNKNOWN, Operation, tags_of
from tests.faults.linearizability import StoreClock


def may_follow(put: Operation) -> bool:
    """Whether the put may have become a follow-up."""
    return put.follows or put.on_conflict == "append"


def split_items(operations: Sequence[Operation]) -> list[str]:
    """Tags that were delivered in several bodies, or twice in one.

    A redriven job may be delivered alone, and then as the first item of a collection.
    """
    bodies: defaultdict[str, set[str]] = defaultdict(set)
    twice = set()
    for one in operations:
        if one.kind == "deliver":
            tags = tags_of(one.tag)
            twice |= {tag for tag in tags if tags.count(tag) > 1}
            for tag in tags:
                bodies[tag].add(one.tag)
    if any(one.kind == "redrive" and one.outcome in {"done", UNKNOWN} for one in operations):
        for tag, of_tag in bodies.items():
            of_tag.discard(tag)
    return sorted(twice | {tag for tag, of_tag in bodies.items() if len(of_tag) > 1})


def lost_items(operations: Sequence[Operation], clock: StoreClock) -> Iterator[str]:
    """Tags of acknowledged appends that the first delivery after them lacks, of a collection that it belonged to.

    Such a delivery was made after the append, and of a collection that was put before it.
    """
    deliveries = sorted((one for one in operations if one.kind == "deliver"), key=lambda one: one.at_ms or 0)
    delivered = {tag for one in deliveries for tag in tags_of(one.tag)}
    puts = {one.tag: one for one in operations if one.kind == "put"}
    for put in puts.values():
        if put.outcome != "appended" or put.tag in delivered:
            continue
        for one in deliveries:
            began = puts.get(tags_of(one.tag)[0])
            is_first = one.attempt == 1 and (one.at_ms or 0) > clock.latest(put.end_s)
            was_there = began is not None and clock.latest(began.end_s) <= clock.earliest(put.call_s)
            others = [other for other in operations if other.kind in {"put", "cancel"} and other.tag != put.tag]
            may_be_new = any(
                other is not began
                and other.on_conflict != "append"
                and (inf if other.end_s is None else other.end_s) > (began.call_s if began else 0)
                for other in others
            )
            if is_first and was_there and not may_be_new:
                yield put.tag
                break


def put_while_taken(operations: Sequence[Operation], clock: StoreClock) -> Iterator[str]:
    """Tags of new jobs that were put while the id was certainly taken by a finished one."""
    puts = {one.tag: one for one in operations if one.kind == "put" and one.unique_for_ms}
    tags = {one.receipt: one.tag for one in operations if one.kind == "deliver" and one.tag in puts}
    may_follow_any = any(one.kind == "put" and may_follow(one) for one in operations)
    for finish in operations:
        if finish.kind != "finish" or finish.outcome != "done" or finish.receipt not in tags or may_follow_any:
            continue
        # This one may repeat another, since which the id was taken by a put and freed.
        began_s = min(one.call_s for one in operations if one.kind == "finish" and one.receipt == finish.receipt)
        until_ms = clock.earliest(finish.call_s) + puts[tags[finish.receipt]].unique_for_ms
        for put in operations:
            if (
                put.kind == "put"
                and put.outcome in {"created", "stored"}
                and not put.only_live
                and put.call_s > (finish.end_s or inf)
                and clock.latest(put.end_s) < until_ms
                and not any(
                    (other.kind == "cancel" and other.outcome != "not found") or other.only_live
                    for other in operations
                    if other.call_s < (put.end_s or inf) and (other.end_s or inf) > began_s
                )
            ):
                yield put.tag

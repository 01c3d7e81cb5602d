"""Puts in the model of a job's life: a new job, one in the place of another, an item of a collection, a follow-up."""

from __future__ import annotations

from math import inf

from tests.faults.history import DELIVERED, UNKNOWN, Operation
from tests.faults.job_state import DEAD_RETENTION_MS, HiddenFrom, Life, Place, Step, Terms
from tests.faults.timed_changes import (
    if_dead,
    if_finished,
    if_gone,
    if_held,
    if_shown,
    if_there,
    if_waiting,
)

_ANY = frozenset({UNKNOWN, DELIVERED})


def put(life: Life, operation: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """The possible steps of a put; see `job_life.after`."""
    match operation.outcome:
        case "exists":
            return _exists(life, operation, hidden_from)
        case "kept":
            return _kept(life, operation, hidden_from)
        case "follow-up kept":
            is_kept = life.follow_up is not None and operation.shown in {"", life.follow_up.content}
            return if_held(life, hidden_from) if is_kept and operation.on_conflict == "keep" else []
        case "held":
            may_be_held = operation.on_conflict in {"replace", "append"} and not operation.follows
            return if_held(life, hidden_from) if may_be_held else []
    steps: list[Step] = []
    if operation.outcome in {"created", "stored"} | _ANY:
        steps += _put_in_place(life, operation, at_ms, hidden_from)
    if operation.on_conflict == "append" and operation.outcome in {"appended"} | _ANY:
        steps += _append(life, operation, at_ms, hidden_from)
    if operation.outcome in {"follows", "follow-up appended"} | _ANY:
        steps += _follow(life, operation, at_ms, hidden_from)
    return steps


def _exists(life: Life, put: Operation, hidden_from: HiddenFrom) -> list[Step]:
    steps: list[Step] = []
    if not put.on_conflict:
        is_live = life.place in {Place.WAITING, Place.HELD}
        steps += if_there(life) if not put.only_live or is_live else []
    elif put.on_conflict == "append" and not put.only_live:
        steps += [*if_dead(life, hidden_from), *if_finished(life)]
    if put.only_live:
        return steps
    if put.chain and life.place is Place.HELD and life.terms.unique_for_ms:
        steps.append((life, -inf))  # the finish in the same step, which is not done, would have left the id taken
    taken = if_gone(life, hidden_from) + (if_finished(life) if put.on_conflict == "replace" else [])
    return steps + [(was, from_ms) for was, from_ms in taken if was.taken_until_ms]


def _kept(life: Life, put: Operation, hidden_from: HiddenFrom) -> list[Step]:
    if put.on_conflict != "keep":
        return []
    kept = if_shown(life, put, hidden_from)
    if put.only_live:
        kept = [(was, from_ms) for was, from_ms in kept if was.place in {Place.WAITING, Place.HELD}]
    if put.follows and put.state == "reserved":
        return []
    return kept


def _put_in_place(life: Life, put: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """A new job, or one in the place of another."""
    over = [*if_dead(life, hidden_from), *if_finished(life)]
    before = if_gone(life, hidden_from) + (over if put.only_live else [])
    replaced: list[Step] = []
    if put.on_conflict == "replace" and put.outcome != "created":
        before += [] if put.only_live else over
        replaced = if_waiting(life)
    steps = []
    for was, from_ms in before:
        free_ms = from_ms if put.only_live else max(from_ms, was.taken_until_ms)
        steps += _new(was, None, put, max(at_ms, free_ms))
    for was, from_ms in replaced:
        steps += _new(was, None if was.was_delivered else was, put, max(at_ms, from_ms))
        if put.max_wait_ms and not was.was_delivered:  # unless it was, unseen
            steps += _new(was, None, put, max(at_ms, from_ms, was.since_ms, hidden_from(was.hidden + 1)))
    return steps


def _new(was: Life, first: Life | None, put: Operation, put_ms: float) -> list[Step]:
    """The job of a put in the place of `was`; its longest wait counts from `first`."""
    if put_ms == inf:
        return []
    marks = frozenset((receipt, until_ms) for receipt, until_ms in was.cancelled_marks if receipt)
    new = _job_of(put, first, put_ms)
    chain, receipt = was.chained
    succeeds = receipt if chain and put.chain == chain else ""
    if new is None:
        return []
    new = new._replace(hidden=was.hidden, ends=was.ends, cancelled_marks=marks, succeeds=succeeds)
    return [(new, put_ms)]


def _job_of(put: Operation, first: Life | None, put_ms: float) -> Life | None:
    """The job of a put; None if its response shows another due time. `first` is the job that the same wait began with.

    Not for an append to a job that exists.
    """
    terms = Terms(
        *(put.tag, put.ttr_ms, put.max_attempts, put.ttl_ms, put.retain_ms),
        *(DEAD_RETENTION_MS if put.dead_retain_ms is None else put.dead_retain_ms, put.time_limit_ms, put.deadline_ms),
        put.unique_for_ms,
        put.on_end,
    )
    is_sure = put.at_ms is not None
    due_ms = max(put_ms, put.run_at_ms) if put.run_at_ms else put_ms + put.delay_ms
    due_by_ms, is_due_by_sure = inf, False
    if put.max_wait_ms:
        due_by_ms, is_due_by_sure = _due_by(put, first, put_ms)
        is_sure = is_sure and is_due_by_sure
        due_ms = max(min(due_ms, due_by_ms), put_ms)
    if put.on_conflict == "append" and put.max_items == 1:
        due_ms = put_ms
    if put.due_ms and put.at_ms is not None:
        if due_ms > put.due_ms or (is_sure and due_ms != put.due_ms):
            return None
        due_ms, is_sure = put.due_ms, True
    new = Life(
        terms=terms,
        items=(put.tag,) if put.on_conflict == "append" else (),
        is_open=put.on_conflict == "append",
        created_ms=put_ms,
        is_created_sure=put.at_ms is not None,
        due_by_ms=due_by_ms,
        is_due_by_sure=is_due_by_sure,
    )
    return new.due_anew(due_ms, is_sure=is_sure)


def _due_by(put: Operation, first: Life | None, put_ms: float) -> tuple[float, bool]:
    if first is None:
        return put_ms + put.max_wait_ms, put.at_ms is not None
    if first.due_by_ms < inf:
        return first.due_by_ms, first.is_due_by_sure
    return first.created_ms + put.max_wait_ms, first.is_created_sure


def _append(life: Life, put: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """Append to a job that waits and was not handed out."""
    steps: list[Step] = []
    for was, from_ms in if_waiting(life):
        if not was.may_collect:
            continue
        appended_ms = max(at_ms, from_ms)
        job = _with_item(was, put, appended_ms, is_ready_if_full=True)
        if job is not None:
            steps.append((job, _ready_from(job, put, appended_ms) if put.state == "ready" else appended_ms))
        if put.state == "delayed":
            continue
        # It may be ready already: then its due time stays.
        is_enough = put.items in {0, len(_items_with(was, put))}
        if is_enough and not (put.due_ms and was.is_sure and put.due_ms != was.since_ms):
            grown = was._replace(items=_items_with(was, put), is_open=True)
            if put.max_wait_ms and was.due_by_ms == inf:
                grown = grown._replace(due_by_ms=was.created_ms + put.max_wait_ms, is_due_by_sure=was.is_created_sure)
            steps.append((grown, max(appended_ms, was.since_ms)))
    return steps


def _ready_from(job: Life, put: Operation, at_ms: float) -> float:
    """From when on the job may be ready at once with the due time that the append gives it."""
    if 0 < put.max_items <= len(job.items):
        return at_ms
    wanted_ms = inf if put.delay_ms else put.run_at_ms
    return max(at_ms, min(wanted_ms, job.due_by_ms))


def _items_with(job: Life, put: Operation) -> tuple[str, ...]:
    return (*(job.items or (job.terms.tag,)), put.tag)


def _with_item(job: Life, put: Operation, at_ms: float, *, is_ready_if_full: bool) -> Life | None:
    """A job or follow-up whose due time an append has moved; None if the response shows something else."""
    items = _items_with(job, put)
    if put.items not in {0, len(items)}:
        return None
    due_by_ms, is_due_by_sure = job.due_by_ms, job.is_due_by_sure
    if put.max_wait_ms and due_by_ms == inf:
        due_by_ms, is_due_by_sure = job.created_ms + put.max_wait_ms, job.is_created_sure
    is_full = 0 < put.max_items <= len(items)
    wanted_ms = max(at_ms, put.run_at_ms) if put.run_at_ms else at_ms + put.delay_ms
    due_ms = at_ms if is_full else max(min(wanted_ms, due_by_ms), at_ms)
    if put.due_ms:
        is_delayed = put.state == "delayed" and is_ready_if_full
        is_too_late = is_delayed and is_due_by_sure and put.due_ms > due_by_ms
        if put.due_ms < due_ms or is_too_late or (is_delayed and is_full):
            return None
        due_ms = put.due_ms
    moved = job.due_anew(due_ms, is_sure=bool(put.due_ms))
    return moved._replace(items=items, is_open=True, due_by_ms=due_by_ms, is_due_by_sure=is_due_by_sure)


def _follow(life: Life, put: Operation, at_ms: float, hidden_from: HiddenFrom) -> list[Step]:
    """Wait until the job has ended: that is held, or, for an append, was handed out."""
    before = if_held(life, hidden_from) if put.follows else []
    if put.on_conflict == "append":
        for was, from_ms in if_waiting(life):
            if was.may_collect:  # unless it was handed out unseen
                before.append((was, max(from_ms, was.since_ms, hidden_from(was.hidden + 1))))
            else:
                before.append((was, from_ms))
    steps: list[Step] = []
    for was, from_ms in before:
        if from_ms == inf:
            continue
        follows_ms = max(at_ms, from_ms)
        old, new = was.follow_up, None
        if put.on_conflict == "append" and old is not None:
            if put.outcome != "follows":
                new = _with_item(old, put, follows_ms, is_ready_if_full=False)
        elif put.outcome != "follow-up appended" and not (put.on_conflict == "keep" and old is not None):
            new = _job_of(put, old, follows_ms)
        if new is not None:
            steps.append((was._replace(follow_up=new), follows_ms))
    return steps

"""Histories of one job as its clients saw it, for the checker of the fault runs: helpers, and right histories."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.history import UNKNOWN, Kind, Operation
from tests.unit.faults.led_job import TTR_MS


def op(kind: Kind, call_s: float, end_s: float | None, outcome: str = "done", **facts: object) -> Operation:
    """An operation on the one job of these tests."""
    operation = Operation(kind, "t", "job", call_s, end_s, outcome)
    return replace(operation, **facts)  # type: ignore[arg-type] # each test gives what the kind has


def put(call_s: float, end_s: float | None, outcome: str = "created", tag: str = "first", **facts: object) -> Operation:
    return op("put", call_s, end_s, outcome, tag=tag, **{"ttr_ms": TTR_MS, **facts})


def deliver(
    call_s: float,
    end_s: float,
    at_ms: int,
    *,
    attempt: int = 1,
    tag: str = "first",
    receipt: str = "",
    created_ms: int = 0,
) -> Operation:
    return op(
        "deliver",
        call_s,
        end_s,
        tag=tag,
        attempt=attempt,
        receipt=receipt or f"{tag}.{attempt}",
        at_ms=at_ms,
        lease_end_ms=at_ms + TTR_MS,
        created_ms=created_ms,
    )


def pushed(arrived_s: float, *, lease_end_ms: int, attempt: int = 1) -> Operation:
    """A delivery that shows only until when its lease is; it was made at some time before it arrived."""
    made = deliver(0, arrived_s, 0, attempt=attempt)
    return replace(made, at_ms=None, lease_end_ms=lease_end_ms)


def finish(
    call_s: float, end_s: float | None, outcome: str = "done", receipt: str = "first.1", result: str = ""
) -> Operation:
    return op("finish", call_s, end_s, outcome, receipt=receipt, result=result)


def look(call_s: float, end_s: float, state: str = "", tag: str = "first", **facts: object) -> Operation:
    return op("look", call_s, end_s, "there", shown=tag, state=state, **facts)


def end(at_ms: int, outcome: str = "finished", tag: str = "first", result: str = "") -> Operation:
    """What an end has put, at an instant that it shows."""
    return op("end", 0, at_ms / 1000 + 1, outcome, tag=tag, result=result, at_ms=at_ms)


def no_more_ends(at_s: float = 1001) -> Operation:
    return op("end", at_s, at_s, "none")


def gone(at_s: float = 1000) -> Operation:
    return op("look", at_s, at_s + 1, "not found")


RIGHT = {
    "a finish without a response that put a job": [
        put(0, 1, on_end="new"),
        deliver(2, 3, 2500),
        finish(3, None, UNKNOWN, result="well"),
        end(3100, result="well"),
        gone(),
        no_more_ends(),
    ],
    "two deaths, with a redrive between them, and a cancel of which nobody knows": [
        put(0, 1, on_end="new", max_attempts=1, dead_retain_ms=9000),
        deliver(2, 3, 2500),
        op("redrive", 4, 5),
        end(3500, "dead"),
        deliver(5, 6, 5500, receipt="later.1"),
        op("cancel", 7, None, UNKNOWN),
        end(6500, "dead"),
        gone(),
        no_more_ends(),
    ],
    "a second end whose job would have the id of one that was there still": [
        put(0, 1, on_end="named"),
        op("cancel", 1.1, 1.2, "ready"),
        put(1.3, 1.4, tag="again", on_end="named"),
        op("cancel", 1.5, 1.6, "ready"),
        end(1150, "cancelled"),
        gone(),
        no_more_ends(),
    ],
    "a replaced job, whose follow-up was cancelled with its holder": [
        put(0, 1, delay_ms=9000, on_end="new"),
        put(1.1, 1.2, "stored", tag="two", on_conflict="replace", on_end="new"),
        deliver(2, 3, 2500, tag="two"),
        put(3.1, 3.2, "follows", tag="three", on_conflict="replace", follows=True, on_end="new"),
        op("cancel", 3.3, 3.4, "reserved"),
        end(3350, "cancelled", tag="two"),
        gone(),
        no_more_ends(),
    ],
    "nothing": [],
    "put, delivered, finished": [put(0, 1, at_ms=500), deliver(1, 3, 2500), finish(3, 4), gone()],
    "a delivery, made at an unknown time, after the first one's lease": [
        put(0, 1),
        pushed(2, lease_end_ms=3000),
        op("touch", 2.5, 2.8, receipt="first.1", lease_end_ms=4000),
        pushed(4.1, lease_end_ms=6000, attempt=2),
        finish(5, None, UNKNOWN, receipt="first.2"),
        gone(),
    ],
    "a delivery, made at an unknown time, that arrives during the lease of the next job": [
        put(0, 1, on_conflict="replace"),
        pushed(5, lease_end_ms=3000),
        put(3.5, 4, "stored", tag="second", on_conflict="replace"),
        deliver(4, 4.5, 4200, tag="second"),
        finish(5.5, 6, receipt="second.1"),
        gone(),
    ],
    "a first delivery that arrives after the second one": [
        put(0, 1),
        pushed(4, lease_end_ms=3000),
        pushed(3.1, lease_end_ms=5000, attempt=2),
        finish(4.5, 4.6, "stale", receipt="first.1"),
        finish(5, 6, receipt="first.2"),
        gone(),
    ],
    "a delivery that ends before its put": [put(0, 9), deliver(1, 3, 2500), finish(4, 5), gone()],
    "an unseen put": [put(0, None, UNKNOWN), gone()],
    "a put that took effect before it was given up": [
        put(0, None, UNKNOWN, given_up_s=2),
        op("cancel", 1, 2, "ready"),
        put(2, 3, "created", tag="again"),
        deliver(4, 5, 4500, tag="again"),
    ],
    "a put that took effect late": [put(0, None, UNKNOWN), gone(2), deliver(5, 6, 5500), finish(7, 8), gone()],
    "a lost response to a cancel": [put(0, 1), op("cancel", 2, None, UNKNOWN), gone()],
    "a lost response to a finish": [put(0, 1), deliver(2, 3, 2500), finish(3, None, UNKNOWN), gone()],
    "a lost response to a release": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("release", 2.6, None, UNKNOWN, receipt="first.1", delay_ms=100),
        deliver(2.7, 3, 2900, attempt=2),
        finish(3, 4, receipt="first.2"),
        gone(),
    ],
    "a deadline that passes while the job waits for its retry": [
        put(0, 1, at_ms=500, deadline_ms=4000),
        deliver(2, 3, 2500),
        op("release", 3, 4, receipt="first.1", at_ms=3200, delay_ms=9000),
        look(5, 6, "dead"),
        gone(),
    ],
    "a release after the deadline": [
        put(0, 1, deadline_ms=2500, dead_retain_ms=0),
        deliver(2, 3, 2500),
        op("release", 3.1, 4, "dead", receipt="first.1"),
        gone(4),
    ],
    "a lease that ends with the time limit": [
        put(0, 1, time_limit_ms=1500),
        deliver(2, 3, 2500),
        op("touch", 3, 3.2, receipt="first.1", lease_end_ms=4000),
        deliver(4, 4.2, 4100, attempt=2),
        finish(4.3, 4.4, receipt="first.2"),
        gone(),
    ],
    "a snooze of the last attempt": [
        put(0, 1, max_attempts=1, ttl_ms=3000),
        deliver(2, 3, 2500),
        op("snooze", 3, 3.4, receipt="first.1", at_ms=3200, delay_ms=6000),
        deliver(9, 10, 9500, receipt="again.1"),
        finish(10, 10.2, receipt="again.1"),
        gone(),
    ],
    "a lost response to a snooze": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("snooze", 2.6, None, UNKNOWN, receipt="first.1", delay_ms=100),
        deliver(2.7, 3, 2900, receipt="again.1"),
        finish(3, 4, receipt="again.1"),
        gone(),
    ],
    "a lease that ran out": [
        put(0, 1),
        deliver(2, 3, 2500),
        deliver(3, 4, 3500, attempt=2),
        finish(5, 6, "stale"),
        finish(6, 7, receipt="first.2"),
        gone(),
    ],
    "a finish after the lease, without a delivery in between": [put(0, 1), deliver(2, 3, 2500), finish(8, 9), gone()],
    "a finish refused when the lease was over": [
        put(0, 1),
        deliver(2, 3, 2500),
        finish(3.4, 3.6, "stale"),
        deliver(4, 5, 4500, attempt=2),
        finish(5, 6, receipt="first.2"),
        gone(),
    ],
    "a cancel and a delivery at the same time": [
        put(0, 1),
        op("cancel", 2, 3, "reserved"),
        deliver(2, 3, 2500),
        finish(3, 4, "cancelled"),
        gone(),
    ],
    "a holder that finishes long after the cancel": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("cancel", 3, 4, "reserved"),
        finish(80, 81, "not found"),
        gone(),
    ],
    "a lost cancel of a job whose lease was over": [
        put(0, 1),
        deliver(2, 3, 2500),
        op("cancel", 5, None, UNKNOWN),
        finish(6, 7, "not found"),
        gone(),
    ],
    "a change that makes it due": [
        put(0, 1, delay_ms=60_000),
        op("change", 1, 2, at_ms=1500, delay_ms=0),
        deliver(2, 3, 2500),
        op("change", 2.6, 2.7, "held", delay_ms=0),
        finish(3, 4),
        op("change", 4, 5, "not found", delay_ms=0),
        gone(),
    ],
    "a change with a spread, made after a delivery for which its due time would be too late": [
        put(0, 1),
        op("change", 1, 3, due_ms=2100, delay_ms=900),
        deliver(1, 1.9, 1800),
        op("release", 2, 2.1, at_ms=2050, delay_ms=5000),
        deliver(2.2, 3, 2300, attempt=2),
        finish(3, 4, receipt="first.2"),
        gone(),
    ],
    "a lost response to a change that delayed it beyond its ttl": [
        put(0, 1, at_ms=500, ttl_ms=1000),
        op("change", 1, None, UNKNOWN, delay_ms=4000),
        deliver(5, 6, 5500),
        finish(6, 7),
        gone(),
    ],
    "buried, redriven, and finished at its new first attempt": [
        put(0, 1, max_attempts=1),
        deliver(2, 3, 2500),
        op("bury", 2.6, 2.7, receipt="first.1"),
        finish(2.7, 2.8, "stale"),
        op("look", 2.8, 2.9, "there"),
        op("redrive", 3, 4),
        deliver(4, 5, 4500, receipt="again.1"),
        finish(5, 6, receipt="again.1"),
        gone(),
    ],
    "a dead job whose retention ended": [
        put(0, 1, max_attempts=1),
        deliver(2, 3, 2500),
        op("redrive", 3.4, 4, "done"),
        deliver(4, 5, 4500, receipt="again.1"),
        op("release", 5, 5.2, "dead", receipt="again.1"),
        put(6, 7, "exists", tag="second"),
        gone(),
    ],
    "an expired job": [
        put(0, 1, at_ms=500, ttl_ms=100),
        op("redrive", 1, 2),
        op("cancel", 2, 3, "dead"),
        gone(),
    ],
    "a change after an unseen delivery": [
        put(0, 1, at_ms=500),
        op("change", 3, 4, at_ms=3500, delay_ms=500),
        deliver(4, 5, 4500, attempt=2),
        finish(5, 6, receipt="first.2"),
        gone(),
    ],
    "a job that died after an unseen delivery": [put(0, 1, at_ms=500, max_attempts=1), gone()],
    "a job in the place of another": [
        put(0, 1, delay_ms=9000),
        put(2, 3, "stored", tag="second", on_conflict="replace"),
        deliver(4, 5, 4500, tag="second"),
        put(4.6, 4.7, "held", tag="third", on_conflict="replace"),
        finish(5, 6, receipt="second.1"),
        gone(),
    ],
    "a retained job": [
        put(0, 1, at_ms=500, retain_ms=5000),
        deliver(2, 3, 2500),
        look(2.6, 2.7, "reserved", created_ms=500),
        finish(3, 4, result="one"),
        look(4, 5, "finished", result="one"),
        finish(5, 5.1, result="two"),
        finish(5.2, 5.3, "stale", receipt=""),
        finish(5.4, 5.5, "stale", receipt="other.1"),
        op("release", 5.6, 5.7, "stale", receipt="first.1"),
        put(6, 6.1, "exists", tag="second"),
        put(6.2, 6.3, "kept", tag="third", on_conflict="keep", shown="first", state="finished", result="one"),
        op("change", 6.4, 6.5, "not found", delay_ms=0),
        op("redrive", 6.6, 6.7, "none"),
        look(7.5, 7.6, "finished", result="one"),
        finish(9, 10, "not found"),
        gone(11),
    ],
    "a retained job that was finished after an unseen delivery": [
        put(0, 1, at_ms=500, retain_ms=5000),
        finish(2, 3, receipt="", result="one"),
        look(4, 5, "finished", result="one"),
        gone(),
    ],
    "a retained job that was cancelled": [
        put(0, 1, retain_ms=5000),
        deliver(2, 3, 2500),
        finish(3, 3.2),
        op("cancel", 3.3, 3.4, "finished"),
        finish(3.5, 3.6, "not found"),
        gone(4),
    ],
    "a retained job that was replaced": [
        put(0, 1, retain_ms=5000),
        deliver(2, 3, 2500),
        finish(3, 3.2),
        put(3.3, 3.4, "stored", tag="second", on_conflict="replace"),
        finish(3.5, 3.6, "stale"),
        deliver(4, 5, 4500, tag="second"),
        finish(5, 5.1, receipt=""),
        gone(6),
    ],
    "a finish without a receipt": [
        put(0, 1, at_ms=500),
        deliver(2, 3, 2500),
        finish(2.6, 2.7, receipt=""),
        finish(2.8, 2.9, "not found"),
        finish(3, 3.1, "not found", receipt=""),
        put(3.2, 3.3, tag="second", at_ms=3250),
        finish(3.4, 3.5, "stale", receipt=""),
        deliver(3.5, 3.6, 3550, tag="second"),
        finish(3.7, None, UNKNOWN, receipt=""),
        gone(4),
    ],
    "a finish without a receipt after a cancel": [
        put(0, 1, at_ms=500),
        op("cancel", 2, 3, "reserved"),
        finish(3, 4, "cancelled", receipt=""),
        put(5, 6, tag="second"),
        op("cancel", 7, 8, "ready"),
        finish(9, 10, "not found", receipt=""),
        gone(),
    ],
    "a put that keeps": [
        put(0, 1, at_ms=500, on_conflict="keep"),
        put(2, 3, "kept", tag="second", on_conflict="keep", shown="first", state="ready", created_ms=500),
        deliver(2, 5, 4500),
        put(5, 5.1, "kept", tag="third", on_conflict="keep", shown="first", state="reserved"),
        finish(5, 6),
        gone(),
    ],
    "an id put again": [
        put(0, 1),
        op("cancel", 1, 2, "delayed"),
        put(3, 4, tag="second"),
        put(4, 5, "exists", tag="third"),
        deliver(5, 6, 5500, tag="second"),
        finish(6, 7, receipt="second.1"),
        gone(),
    ],
}

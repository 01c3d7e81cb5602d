"""Histories of jobs whose puts collapse, for the checker of the fault runs: right ones, and wrong ones."""

from __future__ import annotations

from tests.faults.history import DELIVERED, UNKNOWN, Operation
from tests.unit.faults.job_histories import deliver, finish, gone, look, op, put


def append(call_s: float, end_s: float | None, outcome: str, tag: str, **facts: object) -> Operation:
    return put(call_s, end_s, outcome, tag, on_conflict="append", **facts)


def follow(call_s: float, end_s: float | None, tag: str, outcome: str = "follows", **facts: object) -> Operation:
    return put(call_s, end_s, outcome, tag, follows=True, **{"on_conflict": "replace", **facts})


ONE = append(0, 0.9, "created", "one", items=1, delay_ms=1000)
TWO = append(1, 2, "appended", "two", items=2, delay_ms=1000)
BOTH = deliver(3, 4, 3500, tag="[one,two]", receipt="both.1")
HELD = [put(0, 1), deliver(2, 3, 2500)]
NEXT = follow(2.6, 2.7, "next")
UNIQUE = [put(0, 1, unique_for_ms=5000), deliver(2, 3, 2500), finish(2.6, 2.7)]
DEAD = [put(0, 1), deliver(2, 3, 2500), op("bury", 2.6, 2.7, receipt="first.1")]
BOUNDED = put(0, 1, "stored", at_ms=500, due_ms=1500, on_conflict="replace", delay_ms=1000, max_wait_ms=1500)

RIGHT = {
    "a collection": [ONE, TWO, BOTH, finish(4, 4.2, receipt="both.1"), gone()],
    "a collection that began with another job": [
        put(0, 1, tag="one", delay_ms=2000),
        append(1, 2, "appended", "two", items=2, delay_ms=1000, due_ms=2500, state="delayed"),
        BOTH,
        finish(4, 4.2, receipt="both.1"),
        gone(),
    ],
    "an append whose response was lost": [
        ONE,
        append(1, None, DELIVERED, "two", delay_ms=1000),
        BOTH,
        finish(4, 4.2, receipt="both.1"),
        gone(),
    ],
    "an append to what is due": [
        append(0, 1, "created", "one", items=1, at_ms=500, due_ms=500),
        append(1, 2, "appended", "two", items=2, due_ms=500, state="ready", delay_ms=1000),
        BOTH,
        finish(4, 4.2, receipt="both.1"),
        gone(),
    ],
    "an append without a response to a job that was cancelled": [
        ONE,
        append(1, None, UNKNOWN, "two"),
        op("cancel", 3, 4, "ready"),
        gone(),
    ],
    "appends to a held job": [
        *HELD,
        append(2.6, 2.65, "held", "zero"),
        append(2.7, 2.8, "follows", "one", follows=True, items=1),
        append(2.8, 2.9, "follow-up appended", "two", follows=True, items=2),
        finish(2.9, 3, receipt="first.1"),
        BOTH,
        finish(4, 4.2, receipt="both.1"),
        gone(),
    ],
    "an append to a job that waits for its retry": [
        *HELD,
        op("release", 2.6, 2.7, receipt="first.1", at_ms=2650, delay_ms=400),
        append(2.8, 2.9, "follows", "one", items=1),
        deliver(3, 3.2, 3100, attempt=2),
        finish(3.2, 3.3, receipt="first.2"),
        deliver(3.4, 3.6, 3500, tag="[one]", receipt="next.1"),
        finish(3.6, 3.7, receipt="next.1"),
        gone(),
    ],
    "an append to a job that was handed out unseen": [
        put(1, 2),
        append(3, 4, "follows", "one", items=1),
        finish(4, 5, receipt=""),
        look(5, 6, tag="[one]"),
    ],
    "a longest wait": [
        append(0, 1, "created", "one", items=1, at_ms=500, due_ms=1500, delay_ms=1000, max_wait_ms=1500),
        append(1, 1.4, "appended", "two", items=2, due_ms=2000, delay_ms=1000, max_wait_ms=1500, state="delayed"),
        BOTH,
        finish(4, 4.2, receipt="both.1"),
        gone(),
    ],
    "a job that is due when it has enough items": [
        append(0, 1, "created", "one", items=1, delay_ms=9000),
        append(1, 2, "appended", "two", items=2, delay_ms=9000, max_items=2, state="ready"),
        BOTH,
        finish(4, 4.2, receipt="both.1"),
        gone(),
    ],
    "a put within the longest wait of another": [
        BOUNDED,
        put(
            *(1, 1.4, "stored", "second"),
            at_ms=1300,
            due_ms=2000,
            on_conflict="replace",
            delay_ms=1000,
            max_wait_ms=1500,
        ),
        deliver(2, 3, 2500, tag="second"),
        finish(3, 3.2, receipt="second.1"),
        gone(),
    ],
    "a follow-up": [
        *HELD,
        NEXT,
        finish(2.8, 2.9),
        deliver(3, 4, 3500, tag="next"),
        finish(4, 4.2, receipt="next.1"),
        gone(),
    ],
    "a follow-up of a job that is buried": [
        *HELD,
        NEXT,
        op("bury", 2.8, 2.9, receipt="first.1"),
        deliver(3, 4, 3500, tag="next"),
        finish(4, 4.2, receipt="next.1"),
        gone(),
    ],
    "a follow-up of a job whose last lease ended": [
        put(0, 1, max_attempts=1),
        deliver(2, 3, 2500),
        NEXT,
        deliver(3, 4, 3600, tag="next"),
        finish(4, 4.2, receipt="next.1"),
        gone(),
    ],
    "a follow-up of a job that comes back first": [
        *HELD,
        NEXT,
        deliver(3, 4, 3600, attempt=2),
        finish(4, 4.2, receipt="first.2"),
        deliver(5, 6, 5500, tag="next"),
        finish(6, 6.2, receipt="next.1"),
        gone(),
    ],
    "a follow-up that is kept, and one that is replaced": [
        *HELD,
        follow(2.6, 2.7, "next", on_conflict="keep"),
        follow(2.7, 2.8, "other", "follow-up kept", on_conflict="keep", shown="next"),
        follow(2.8, 2.9, "newest"),
        finish(2.9, 3),
        deliver(3, 4, 3500, tag="newest"),
        finish(4, 4.2, receipt="newest.1"),
        gone(),
    ],
    "a finish that is repeated when the follow-up has the place": [
        *HELD,
        NEXT,
        finish(2.8, 2.9),
        finish(3, 3.1),
        deliver(3.2, 3.3, 3250, tag="next", receipt="next.1"),
        finish(3.4, 3.5),
        finish(3.6, 3.7, receipt="next.1"),
        gone(),
    ],
    "a follow-up that is cancelled too": [*HELD, NEXT, op("cancel", 2.8, 2.9, "reserved"), gone(3)],
    "a follow-up that a cancel keeps": [
        *HELD,
        NEXT,
        op("cancel", 2.8, 2.9, "reserved", keeps_follow_up=True),
        finish(2.9, 3, "stale"),
        deliver(3, 4, 3600, tag="next"),
        finish(4, 4.2, receipt="next.1"),
        gone(),
    ],
    "a repeated finish behind a put of the same step that took the id and ended": [
        *UNIQUE[:2],
        op("finish", 2.6, 2.7, receipt="first.1", chain="c1"),
        put(2.6, 2.7, tag="second", only_live=True, chain="c1"),
        finish(2.71, 2.8),
        deliver(2.72, 2.78, 2770, tag="second", receipt="second.1"),
        finish(2.79, 2.9, receipt="second.1"),
        put(3, 4, tag="third"),
        op("cancel", 9, 10, "ready"),
        gone(),
    ],
    "an id that stays taken": [
        *UNIQUE,
        put(3, 4, "exists", "second"),
        put(4, 5, "exists", "third", on_conflict="replace"),
        put(7.8, 8, tag="fourth"),
        op("cancel", 9, 10, "ready"),
        gone(),
    ],
    "an id that would stay taken, refused to the put of the finish that is not done": [
        *UNIQUE[:2],
        put(2.6, 2.7, "exists", "second", on_conflict="keep", chain="c1"),
        finish(2.8, 2.9),
        gone(),
    ],
    "a taken id that a cancel frees": [
        *UNIQUE,
        op("cancel", 3, 3.2, "finished"),
        put(3.3, 3.4, tag="second"),
        op("cancel", 9, 10, "ready"),
        gone(),
    ],
    "a taken id that is not in the way of one who minds live jobs only": [
        *UNIQUE,
        put(3.3, 3.4, tag="second", only_live=True),
        put(3.5, 3.6, "exists", "third", only_live=True),
        op("cancel", 9, 10, "ready"),
        gone(),
    ],
    "a dead job that is not in the way": [
        *DEAD,
        put(3, 3.2, "exists", "second"),
        put(3.3, 3.4, tag="third", only_live=True),
        deliver(3.5, 3.7, 3600, tag="third"),
        finish(4, 4.2, receipt="third.1"),
        gone(),
    ],
}

WRONG = {
    "an item that was lost": [ONE, TWO, deliver(3, 4, 3500, tag="[one]", receipt="both.1")],
    "an item that nobody appended": [ONE, deliver(3, 4, 3500, tag="[one,two]", receipt="both.1")],
    "items in another order": [ONE, TWO, deliver(3, 4, 3500, tag="[two,one]", receipt="both.1")],
    "an item that is delivered twice": [ONE, TWO, deliver(3, 4, 3500, tag="[one,two,two]", receipt="both.1")],
    "an item in two collections": [
        *(ONE, TWO, BOTH, finish(4, 4.2, receipt="both.1")),
        deliver(5, 6, 5500, tag="[two]", receipt="next.1"),
    ],
    "an append that counts other items": [ONE, append(1, 2, "appended", "two", items=3)],
    "an append to a collection that was handed out": [
        *(ONE, TWO, BOTH),
        append(4, 4.2, "appended", "three", items=3),
    ],
    "an append to a held job": [*HELD, append(2.6, 2.7, "appended", "two", items=2)],
    "an append that is refused though nobody held the job": [ONE, append(1, 2, "held", "two")],
    "an append to a dead job": [*DEAD, append(3, 3.2, "appended", "two", items=2)],
    "an append that was lost with its collection": [ONE, TWO, gone()],
    "a delivery before the grace period that an append began": [
        append(0, 1, "created", "one", items=1, at_ms=500, due_ms=2500, delay_ms=2000),
        append(2, 2.4, "appended", "two", items=2, due_ms=4300, delay_ms=2000, state="delayed"),
        BOTH,
    ],
    "an append beyond the longest wait": [
        append(0, 1, "created", "one", items=1, at_ms=500, due_ms=1500, delay_ms=1000, max_wait_ms=1500),
        append(1, 1.4, "appended", "two", items=2, due_ms=2300, delay_ms=1000, max_wait_ms=1500, state="delayed"),
    ],
    "a collection that waits though it has enough items": [
        append(0, 1, "created", "one", items=1, delay_ms=9000),
        append(1, 2, "appended", "two", items=2, delay_ms=9000, max_items=2, due_ms=10500, state="delayed"),
    ],
    "a put beyond the longest wait": [
        BOUNDED,
        put(
            *(1, 1.4, "stored", "second"),
            at_ms=1300,
            due_ms=2300,
            on_conflict="replace",
            delay_ms=1000,
            max_wait_ms=1500,
        ),
    ],
    "a follow-up that is delivered beside the job": [*HELD, NEXT, deliver(2.8, 3, 2900, tag="next")],
    "a follow-up that is delivered before a job that comes back": [
        *HELD,
        NEXT,
        op("release", 2.8, 2.9, receipt="first.1", at_ms=2850),
        deliver(3, 4, 3600, tag="next"),
    ],
    "a repeated finish that finds the follow-up in its way": [
        *HELD,
        NEXT,
        finish(2.8, 2.9),
        finish(3, 3.1, "stale"),
    ],
    "a finish by a delivery that buried the job before the follow-up": [
        *HELD,
        NEXT,
        op("bury", 2.8, 2.9, receipt="first.1"),
        finish(3, 3.1),
    ],
    "a follow-up that was lost": [*HELD, NEXT, finish(2.8, 2.9), gone()],
    "a follow-up that was lost when the job died": [
        *HELD,
        NEXT,
        op("bury", 2.8, 2.9, receipt="first.1"),
        look(3, 3.2, "dead"),
    ],
    "a follow-up that was replaced and is delivered": [
        *HELD,
        NEXT,
        follow(2.75, 2.8, "newest"),
        finish(2.9, 3),
        deliver(3, 4, 3500, tag="next"),
    ],
    "a follow-up of a job that nobody holds": [put(0, 1), follow(1, 2, "next")],
    "a follow-up before it is due": [
        *HELD,
        follow(2.6, 2.7, "next", delay_ms=3000),
        finish(2.8, 2.9),
        deliver(3, 4, 3500, tag="next"),
    ],
    "a follow-up that was cancelled and is delivered": [
        *HELD,
        NEXT,
        op("cancel", 2.8, 2.9, "reserved"),
        deliver(3, 4, 3600, tag="next"),
    ],
    "a follow-up that a cancel keeps, beside the holder": [
        *HELD,
        NEXT,
        op("cancel", 2.8, 2.9, "reserved", keeps_follow_up=True),
        deliver(3, 3.4, 3300, tag="next"),
    ],
    "a kept follow-up that is not there": [*HELD, follow(2.7, 2.8, "other", "follow-up kept", on_conflict="keep")],
    "a held job that is not kept": [*UNIQUE[:2], put(2.6, 2.7, "exists", "second", on_conflict="keep")],
    "a second job while the id is taken": [*UNIQUE, put(4, 5, tag="second")],
    "a job in the place of a finished one while the id is taken": [
        put(0, 1, unique_for_ms=5000, retain_ms=9000),
        deliver(2, 3, 2500),
        finish(2.6, 2.7),
        put(4, 5, "stored", "second", on_conflict="replace"),
    ],
    "an id that is taken though its job is dead": [
        put(0, 1, unique_for_ms=60_000, dead_retain_ms=0),
        deliver(2, 3, 2500),
        op("bury", 2.6, 2.7, receipt="first.1"),
        put(4, 5, "exists", "second"),
    ],
    "an id that is taken for one who minds live jobs only": [*UNIQUE, put(4, 5, "exists", "second", only_live=True)],
    "a dead job in the way of one who minds live jobs only": [*DEAD, put(3, 3.2, "exists", "second", only_live=True)],
    "a dead job kept by one who minds live jobs only": [
        *DEAD,
        put(3, 3.2, "kept", "second", on_conflict="keep", only_live=True),
    ],
    "a live job replaced as if it were dead": [put(0, 1, delay_ms=9000), put(2, 3, tag="second", only_live=True)],
}

"""Histories for the checker of the fault runs, from a job that is simulated step by step according to the rules.

Independent of the checker's model, and eager where that is lazy: leases end, and dead jobs are removed, at random
instants.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Literal

from tests.faults.history import UNKNOWN, Kind, Operation
from tests.faults.job_state import DEAD_RETENTION_MS

TTR_MS = 1000
State = Literal["gone", "waiting", "held", "dead", "finished"]


class SimulatedJob:
    """Simulates the jobs of one id over time, and records what its clients see.

    Its clients do not receive a share of `lost_responses`.
    """

    def __init__(self, chance: random.Random, *, lost_responses: float) -> None:
        self.chance = chance
        self.lost_responses = lost_responses
        self.now_ms = 10_000
        self.operations: list[Operation] = []
        self.pops_without_response_s: list[float] = []
        self.state: State = "gone"
        self.tag = ""
        self.since_ms = 0
        """When it is due, its lease ends or its retention ends."""
        self.attempt = 0
        """Deliveries that were begun."""
        self.deliveries = 0
        self.is_snoozed = False
        self.max_attempts = 0
        self.ttl_ms = 0
        self.retain_ms = 0
        self.result = ""
        self.finisher = ""
        self.finishes = 0
        self.is_known = False
        """Whether a client got the job that is held."""
        self.puts = 0
        self.old: list[tuple[str, bool]] = []
        """Receipts of deliveries that are over, and whether by a cancel."""
        self.was_cancelled_while_held = False
        """Whether the last job of this id was cancelled while it was held."""

    def step(self) -> None:
        """Let time pass, and make a random call."""
        self.now_ms += self.chance.randrange(1, 600)
        self.run_timer()
        choices = [self.put, self.put, self.cancel, self.finish_too_late, self.change, self.redrive, self.look]
        choices += [self.pop] * 4 + [self.finish_without_receipt]
        if self.state == "held" and self.is_known:
            choices += [self.finish, self.release, self.snooze, self.touch, self.bury] * 2
        self.chance.choice(choices)()

    def run_timer(self) -> None:
        """Do the work of the timer, or leave it for later."""
        if self.chance.random() < 0.2:
            return
        if self.state == "held" and self.now_ms >= self.since_ms:
            self.end_delivery(was_cancelled=False)
            self.wait_or_die(self.since_ms)
        elif self.state == "waiting" and self.is_expired:
            self.die()
        elif self.state in {"dead", "finished"} and self.now_ms >= self.since_ms:
            self.state = "gone"

    @property
    def is_expired(self) -> bool:
        return (
            bool(self.ttl_ms)
            and not self.attempt
            and not self.is_snoozed
            and self.now_ms >= self.since_ms + self.ttl_ms
        )

    @property
    def receipt(self) -> str:
        return f"{self.tag}.{self.deliveries}"

    def end_delivery(self, *, was_cancelled: bool) -> None:
        """End the delivery."""
        if self.is_known:
            self.old.append((self.receipt, was_cancelled))
        self.is_known = False

    def wait_or_die(self, due_ms: int) -> None:
        """Wait for the next delivery, or be dead after the last one."""
        if 0 < self.max_attempts <= self.attempt:
            self.die()
        else:
            self.state, self.since_ms = "waiting", due_ms

    def die(self) -> None:
        self.state, self.since_ms = "dead", self.now_ms + DEAD_RETENTION_MS

    def record(self, kind: Kind, outcome: str, *, known_ms: int | None = None, **facts: Any) -> None:
        """Record a call of a client that began at some time before now and ended at some time after."""
        call_s = (self.now_ms - self.chance.randrange(2, 900)) / 1000
        end_s = (self.now_ms + self.chance.randrange(2, 900)) / 1000
        seen = replace(Operation(kind, "t", "job", call_s, end_s, outcome), at_ms=known_ms, **facts)
        if kind != "deliver" and self.chance.random() < self.lost_responses:
            seen = replace(seen, end_s=None, outcome=UNKNOWN, at_ms=None, due_ms=0)
        self.operations.append(seen)

    def put(self) -> None:
        self.puts += 1
        on_conflict = self.chance.choice(("", "keep", "replace"))
        facts: dict[str, Any] = {
            "tag": f"put{self.puts}",
            "delay_ms": self.chance.choice((0, 300, 2000)),
            "ttr_ms": TTR_MS,
            "max_attempts": self.chance.choice((0, 0, 1, 2)),
            "ttl_ms": self.chance.choice((0, 0, 200)),
            "retain_ms": self.chance.choice((0, 400, 3000)),
            "on_conflict": on_conflict,
        }
        if self.state == "held" and on_conflict == "replace":
            self.record("put", "held", **facts)
        elif self.state != "gone" and on_conflict == "keep":
            self.record("put", "kept", **facts, **self.shown())
        elif self.state != "gone" and not on_conflict:
            self.record("put", "exists", **facts)
        else:
            due_ms = self.now_ms + facts["delay_ms"]
            outcome = "stored" if on_conflict == "replace" else "created"
            self.record("put", outcome, known_ms=self.now_ms, due_ms=due_ms, **facts)
            self.tag, self.state, self.since_ms = facts["tag"], "waiting", due_ms
            self.attempt = self.deliveries = 0
            self.is_snoozed = False
            self.max_attempts, self.ttl_ms, self.retain_ms = facts["max_attempts"], facts["ttl_ms"], facts["retain_ms"]
            self.was_cancelled_while_held = False

    def look(self) -> None:
        if self.state == "gone":
            self.record("look", "not found")
        else:
            self.record("look", "there", **self.shown())

    def shown(self) -> dict[str, Any]:
        """The fields of the job that a response shows."""
        shown = {"shown": self.tag, "state": self.name_of_state()}
        return shown | {"result": self.result} if self.state == "finished" else shown

    def name_of_state(self) -> str:
        """As the service names it."""
        if self.state == "waiting":
            return "ready" if self.since_ms <= self.now_ms else "delayed"
        return {"held": "reserved"}.get(self.state, self.state)

    def change(self) -> None:
        delay_ms = self.chance.choice((0, 700))
        if self.state == "waiting":
            self.record("change", "done", known_ms=self.now_ms, delay_ms=delay_ms)
            self.since_ms = self.now_ms + delay_ms
        else:
            self.record("change", "held" if self.state == "held" else "not found", delay_ms=delay_ms)

    def cancel(self) -> None:
        if self.state == "gone":
            self.record("cancel", "not found")
            return
        self.record("cancel", self.name_of_state())
        self.was_cancelled_while_held = self.state == "held"
        self.end_delivery(was_cancelled=True)
        self.state = "gone"

    def redrive(self) -> None:
        self.record("redrive", "done" if self.state == "dead" else "none")
        if self.state == "dead":
            self.state, self.since_ms, self.attempt, self.is_snoozed = "waiting", self.now_ms, 0, False

    def pop(self) -> None:
        if self.state != "waiting" or self.since_ms > self.now_ms:
            return
        if self.is_expired:
            self.die()
            return
        self.attempt += 1
        self.deliveries += 1
        self.state, self.since_ms = "held", self.now_ms + TTR_MS
        if self.chance.random() < 0.2:
            self.pops_without_response_s.append((self.now_ms - 5) / 1000)
            return
        self.is_known = True
        self.record(
            "deliver",
            "done",
            tag=self.tag,
            attempt=self.attempt,
            receipt=self.receipt,
            known_ms=self.now_ms,
            lease_end_ms=self.since_ms,
        )

    def finish(self) -> None:
        self.done(self.receipt)

    def finish_without_receipt(self) -> None:
        """Without a receipt."""
        if self.state == "held":
            self.done("")
        elif self.state == "gone":
            self.record("finish", "cancelled" if self.was_cancelled_while_held else "not found")
        else:
            self.record("finish", "stale")

    def done(self, receipt: str) -> None:
        self.finishes += 1
        result = f"result{self.finishes}"
        self.record("finish", "done", receipt=receipt, result=result)
        finisher = self.receipt if self.is_known else ""
        self.end_delivery(was_cancelled=False)
        self.state = "gone"
        if self.retain_ms:
            self.state, self.since_ms = "finished", self.now_ms + self.retain_ms
            self.result, self.finisher = result, finisher

    def bury(self) -> None:
        self.record("bury", "done", receipt=self.receipt)
        self.end_delivery(was_cancelled=False)
        self.die()

    def release(self) -> None:
        delay_ms = self.chance.choice((0, 500))
        receipt = self.receipt
        self.end_delivery(was_cancelled=False)
        self.wait_or_die(self.now_ms + delay_ms)
        if self.state == "dead":
            self.record("release", "dead", receipt=receipt, delay_ms=delay_ms)
        else:
            self.record("release", "done", receipt=receipt, known_ms=self.now_ms, delay_ms=delay_ms)

    def snooze(self) -> None:
        delay_ms, receipt = self.chance.choice((100, 500)), self.receipt
        self.end_delivery(was_cancelled=False)
        self.attempt -= 1
        self.is_snoozed = True
        self.state, self.since_ms = "waiting", self.now_ms + delay_ms
        self.record("snooze", "done", receipt=receipt, known_ms=self.now_ms, delay_ms=delay_ms)

    def touch(self) -> None:
        self.since_ms = self.now_ms + TTR_MS
        self.record("touch", "done", receipt=self.receipt, known_ms=self.now_ms, lease_end_ms=self.since_ms)

    def finish_too_late(self) -> None:
        """A finish by a consumer whose delivery is over."""
        if self.old:
            receipt, was_cancelled = self.chance.choice(self.old)
            outcome = "cancelled" if was_cancelled else "not found"
            if self.state == "finished" and receipt == self.finisher:
                outcome = "done"  # a repeated finish succeeds
            elif self.state != "gone":
                outcome = "stale"
            self.record("finish", outcome, receipt=receipt, result="another")

    def history(self) -> list[Operation]:
        """All recorded calls in random order, with a last one that shows whether the job is there."""
        at_s = self.now_ms / 1000 + 1
        outcome = "not found" if self.state == "gone" else "there"
        self.operations.append(Operation("look", "t", "job", at_s, at_s + 1, outcome))
        shuffled = list(self.operations)
        self.chance.shuffle(shuffled)
        return shuffled


def simulate(seed: int, steps: int, *, lost_responses: float) -> SimulatedJob:
    """A job simulated for so many steps."""
    job = SimulatedJob(random.Random(seed), lost_responses=lost_responses)
    for _ in range(steps):
        job.step()
    return job

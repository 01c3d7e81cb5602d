"""Histories for the checker of the fault runs, from a job that is simulated step by step according to the rules.

Independent of the checker's model, and eager where that is lazy: leases end, and dead jobs are removed, at random
instants.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Literal

from tests.faults.history import UNKNOWN, Kind, Operation, text_of
from tests.faults.job_state import DEAD_RETENTION_MS

TTR_MS = 1000
State = Literal["gone", "waiting", "held", "dead", "finished"]


class JobPut:
    """What a put has put: a job, or a follow-up. The longest wait counts from `first`, which it replaces."""

    def __init__(self, facts: dict[str, Any], now_ms: int, first: JobPut | None) -> None:
        self.facts = facts
        self.created_ms = now_ms
        self.items = [facts["tag"]] if facts["on_conflict"] == "append" else []
        self.is_open = bool(self.items)
        self.due_ms = now_ms + facts["delay_ms"]
        self.due_by_ms = 0
        wait_ms = facts.get("max_wait_ms", 0)
        if wait_ms:
            self.due_by_ms = now_ms + wait_ms if first is None else first.due_by_ms or first.created_ms + wait_ms
            self.due_ms = max(min(self.due_ms, self.due_by_ms), now_ms)

    @property
    def content(self) -> str:
        return text_of(self.items) if self.items else str(self.facts["tag"])

    @property
    def may_collect(self) -> bool:
        return self.is_open or not self.items

    def append(self, facts: dict[str, Any], now_ms: int, *, moves: bool) -> None:
        self.items = [*(self.items or [self.facts["tag"]]), facts["tag"]]
        self.is_open = True
        if facts["max_wait_ms"] and not self.due_by_ms:
            self.due_by_ms = self.created_ms + facts["max_wait_ms"]
        if moves:
            due_ms = now_ms + facts["delay_ms"]
            if self.due_by_ms:
                due_ms = max(min(due_ms, self.due_by_ms), now_ms)
            self.due_ms = now_ms if 0 < facts["max_items"] <= len(self.items) else due_ms


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
        self.job = JobPut({"tag": "", "delay_ms": 0, "on_conflict": ""}, 0, None)
        self.follow_up: JobPut | None = None
        self.taken_until_ms = 0
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
        self.succeeds = ""
        """The receipt of the delivery whose finish put this job, a follow-up, in the place of another."""
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
        choices = [*[self.put] * 5, self.cancel, self.finish_too_late, self.change, self.redrive, self.look]
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
        if self.start_follow_up(self.now_ms):
            return
        self.state, self.since_ms = "dead", self.now_ms + DEAD_RETENTION_MS

    def record(self, kind: Kind, outcome: str, *, known_ms: int | None = None, **facts: Any) -> None:
        """Record a call of a client that began at some time before now and ended at some time after."""
        call_s = (self.now_ms - self.chance.randrange(2, 900)) / 1000
        end_s = (self.now_ms + self.chance.randrange(2, 900)) / 1000
        seen = replace(Operation(kind, "t", "job", call_s, end_s, outcome), at_ms=known_ms, **facts)
        if kind != "deliver" and self.chance.random() < self.lost_responses:
            seen = replace(seen, end_s=None, outcome=UNKNOWN, at_ms=None, due_ms=0, items=0, state="")
        self.operations.append(seen)

    def put(self) -> None:
        self.puts += 1
        on_conflict = self.chance.choice(("", "keep", "replace", "append"))
        delay_ms = self.chance.choice((0, 300, 2000))
        facts: dict[str, Any] = {
            "tag": f"put{self.puts}",
            "delay_ms": delay_ms,
            "ttr_ms": TTR_MS,
            "max_attempts": self.chance.choice((0, 0, 1, 2)),
            "ttl_ms": self.chance.choice((0, 0, 200)),
            "retain_ms": self.chance.choice((0, 400, 3000)),
            "on_conflict": on_conflict,
            "unique_for_ms": self.chance.choice((0, 0, 1500)),
            "only_live": self.chance.random() < 0.3,
            "follows": bool(on_conflict) and self.chance.random() < 0.6,
        }
        if on_conflict in {"replace", "append"}:
            facts["max_wait_ms"] = self.chance.choice((0, delay_ms + 500))
        if on_conflict == "append":
            facts["max_items"] = self.chance.choice((0, 0, 2))
        waits = self.state == "held" and facts["follows"]
        if on_conflict == "append" and self.state == "held" and not waits:
            self.record("put", "held", **facts)
        elif on_conflict == "append" and self.state == "waiting" and self.may_collect:
            self.append(self.job, facts, "appended")
        elif waits or (on_conflict == "append" and self.state == "waiting"):
            self.follow(facts)
        elif (refusal := self.refusal(facts)) is not None:
            self.record("put", refusal, **facts, **(self.shown() if refusal == "kept" else {}))
        else:
            replaced = self.job if self.state == "waiting" and not self.was_delivered else None
            self.begin(JobPut(facts, self.now_ms, replaced))
            self.was_cancelled_while_held = False
            self.record(
                "put",
                "stored" if on_conflict == "replace" else "created",
                known_ms=self.now_ms,
                due_ms=self.since_ms,
                items=len(self.job.items),
                **facts,
            )

    @property
    def was_delivered(self) -> bool:
        return self.attempt > 0 or self.is_snoozed

    @property
    def may_collect(self) -> bool:
        return not self.was_delivered and self.follow_up is None and self.job.may_collect

    def refusal(self, facts: dict[str, Any]) -> str | None:
        """The outcome of a put that puts no job."""
        is_over = self.state in {"dead", "finished"}
        is_taken = not facts["only_live"] and self.now_ms < self.taken_until_ms
        if self.state == "gone" or (is_over and facts["only_live"]):
            return "exists" if is_taken else None
        if facts["on_conflict"] == "keep":
            return "kept"
        if facts["on_conflict"] != "replace" or is_taken:
            return "exists"
        return "held" if self.state == "held" else None

    def begin(self, job: JobPut, due_ms: int = 0) -> None:
        """Let a job wait under the id."""
        self.job, self.state, self.since_ms = job, "waiting", max(job.due_ms, due_ms)
        self.attempt = self.deliveries = 0
        self.is_snoozed = False
        self.tag, self.max_attempts = job.facts["tag"], job.facts["max_attempts"]
        self.ttl_ms, self.retain_ms = job.facts["ttl_ms"], job.facts["retain_ms"]
        self.taken_until_ms = 0
        self.follow_up = None
        self.succeeds = ""

    def follow(self, facts: dict[str, Any]) -> None:
        """Wait until the job has ended."""
        if self.follow_up is not None and facts["on_conflict"] == "append":
            self.append(self.follow_up, facts, "follow-up appended")
        elif self.follow_up is not None and facts["on_conflict"] == "keep":
            self.record("put", "follow-up kept", **facts, shown=self.follow_up.content, state="delayed")
        else:
            self.follow_up = JobPut(facts, self.now_ms, self.follow_up)
            due_ms, items = self.follow_up.due_ms, len(self.follow_up.items)
            self.record("put", "follows", known_ms=self.now_ms, due_ms=due_ms, items=items, **facts)

    def append(self, job: JobPut, facts: dict[str, Any], outcome: str) -> None:
        if job is self.job:
            job.due_ms = self.since_ms
        job.append(facts, self.now_ms, moves=job is self.follow_up or self.since_ms > self.now_ms)
        if job is self.job:
            self.since_ms = job.due_ms
        is_ready = job is self.job and job.due_ms <= self.now_ms
        state = "ready" if is_ready else "delayed"
        self.record("put", outcome, due_ms=job.due_ms, items=len(job.items), state=state, **facts)

    def start_follow_up(self, earliest_ms: int) -> bool:
        """Put the follow-up in the place of the job that has ended, if there is one."""
        if self.follow_up is None:
            return False
        self.was_cancelled_while_held = False
        self.begin(self.follow_up, earliest_ms)
        return True

    def look(self) -> None:
        if self.state == "gone":
            self.record("look", "not found")
        else:
            self.record("look", "there", **self.shown())

    def shown(self) -> dict[str, Any]:
        """The fields of the job that a response shows."""
        shown = {"shown": self.job.content, "state": self.name_of_state()}
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
        keeps = self.chance.random() < 0.5
        if self.state == "gone" and self.now_ms >= self.taken_until_ms:
            self.record("cancel", "not found")
            return
        self.record("cancel", "finished" if self.state == "gone" else self.name_of_state(), keeps_follow_up=keeps)
        self.was_cancelled_while_held = self.state == "held" or (self.state == "gone" and self.was_cancelled_while_held)
        ended_ms = max(self.since_ms, self.now_ms) if self.state == "held" else self.now_ms
        self.end_delivery(was_cancelled=True)
        self.state, self.taken_until_ms = "gone", 0
        if not (keeps and self.start_follow_up(ended_ms)):
            self.follow_up = None

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
        self.job.is_open = False
        self.state, self.since_ms = "held", self.now_ms + TTR_MS
        if self.chance.random() < 0.2:
            self.pops_without_response_s.append((self.now_ms - 5) / 1000)
            return
        self.is_known = True
        self.record(
            "deliver",
            "done",
            tag=self.job.content,
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
        if self.start_follow_up(self.now_ms):
            self.succeeds = finisher
            return
        self.state = "gone"
        unique_for_ms = self.job.facts["unique_for_ms"]
        self.taken_until_ms = self.now_ms + unique_for_ms if unique_for_ms else 0
        if self.retain_ms:
            self.state, self.since_ms = "finished", self.now_ms + self.retain_ms
            self.result, self.finisher = result, finisher

    def bury(self) -> None:
        self.record("bury", "done", receipt=self.receipt)
        self.end_delivery(was_cancelled=False)
        self.die()

    def release(self) -> None:
        delay_ms = self.chance.choice((0, 500))
        receipt, is_last = self.receipt, 0 < self.max_attempts <= self.attempt
        self.end_delivery(was_cancelled=False)
        self.wait_or_die(self.now_ms + delay_ms)
        if is_last:
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
            finished = {self.succeeds, self.finisher if self.state == "finished" else ""}
            if self.state != "gone" and receipt in finished:
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

"""The puts of the clients in a fault run: ids that several of them use at the same time, with every option."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

from deferd.engine.openings import spread_of
from tests.faults.flow_control import FAIR_TOPIC, GROUPS, LIMITED_TOPIC, LIMITS, RATED_TOPIC, STRICT_TOPIC

SPREAD_TOPIC = "faults.c"
"""It has partitions: two, and from the middle of a run on four."""
MAIN_TOPICS = (FAIR_TOPIC, "faults.b", SPREAD_TOPIC)
TOPICS = (*MAIN_TOPICS, LIMITED_TOPIC, STRICT_TOPIC, RATED_TOPIC)
WORKER_TOPIC = "faults.worker"
END_TOPIC = "faults.ended"
"""Here the ends of jobs put theirs."""
FAST_TOPIC, MIXED_TOPIC, BATCH_TOPIC, HANGING_TOPIC = (
    f"faults.push.{name}" for name in ("fast", "mixed", "batch", "hanging")
)
PUSHED_TOPICS = (FAST_TOPIC, MIXED_TOPIC, BATCH_TOPIC, HANGING_TOPIC)
"""Topics that are pushed, by how their targets behave; see `push_targets`."""
PATTERNS = ("*s.a", "*s.b", "*.c", "*.limited", "*.strict", "*.rated")
"""They match TOPICS together."""
IDS_A_SECOND = 6
"""Each second has new ids, each of which gets a few puts and cancels."""
TTRS_MS = (400, 800, 1500)
DELAYS_MS = (0, 0, 100, 400, 1500)
TTLS_MS = (1, 30, 500)
DEADLINES_MS = (30, 600, 2000)
SPREADS_MS = (50, 1000)
TIME_LIMITS_MS = (300, 1000)
DEAD_RETAINS_MS = (0, 1000)
RETAINS_MS = (300, 1500, 3000)
UNIQUES_MS = (300, 1500, 4000)
WAITS_MS = (100, 600, 2000)
BACKOFF_MS = 300
COLLECTING = "-0"
"""Ends the ids to which most puts append."""
FOLLOWED = "-1"
"""Ends the ids whose puts mostly wait for a holder, or replace the job."""
BURST = 8
"""Jobs of two groups that are put at the end of a run: enough to reach all limits."""
ABANDONED = ("burst-0", "burst-1")
"""Those whose first delivery is never finished."""

DrawnPut = tuple[str, dict[str, Any], dict[str, Any]]
"""A job's id, its options for the client, and the same for the history."""


def tag_of(job: str) -> str:
    """The tag of most jobs with this id."""
    return f"id:{job}"


class DrawnPuts:
    """The puts of one process. `began_s` is the start of the run, the same in all of its processes.

    `has_groups`: the services know groups, priorities and `on_end`.
    """

    def __init__(self, name: str, chance: random.Random, began_s: float, *, has_groups: bool) -> None:
        self._name = name
        self._chance = chance
        self._began_s = began_s
        self._has_groups = has_groups
        self._drawn = 0

    def job_id(self) -> str:
        second = int(time.monotonic() - self._began_s) - self._chance.choice((0, 0, 1))
        number = self._chance.choice((0, 0, 0, 1, 1, 1, *range(2, IDS_A_SECOND)))  # puts must meet to collapse
        return f"{max(second, 0)}-{number}"

    def of_burst(self, topic: str, number: int) -> DrawnPut:
        """A job of one of two groups that is ready at once."""
        flow = {"group": GROUPS[number % 2]} if topic in LIMITS and self._has_groups else {}
        known = {"tag": f"{self._name}/burst-{number}", "ttr_ms": TTRS_MS[0]}
        return f"burst-{number}", {"ttr": TTRS_MS[0] / 1000, **flow}, known

    def draw(self, topic: str, *, collapses: bool = True) -> DrawnPut:
        """Any job."""
        self._drawn += 1
        delay_ms, ttr_ms = self._chance.choice(DELAYS_MS), self._chance.choice(TTRS_MS)
        terms: dict[str, Any] = {"ttr": ttr_ms / 1000}
        known: dict[str, Any] = {"tag": f"{self._name}/{self._drawn}", "ttr_ms": ttr_ms}
        if self._chance.random() < 0.3:  # an instant must mean the same on all of the services' clocks
            known["run_at_ms"] = int(time.time() * 1000) + delay_ms
            terms["run_at"] = datetime.fromtimestamp(known["run_at_ms"] / 1000, UTC)
        else:
            known["delay_ms"] = delay_ms
            terms["delay"] = delay_ms / 1000
        if topic in TOPICS:
            self._draw_limits(terms, known)
        elif topic in PUSHED_TOPICS:
            terms["backoff"] = {"kind": "fixed", "seconds": BACKOFF_MS / 1000}
        if self._chance.random() < 0.3:
            known["retain_ms"] = self._chance.choice(RETAINS_MS)
            terms["retain"] = known["retain_ms"] / 1000
        if self._chance.random() < 0.2:
            terms["on_conflict"] = known["on_conflict"] = "keep"
        job = self.job_id()
        if self._chance.random() < 0.15:
            self._spread(job, terms, known)
        if topic in TOPICS:
            self._draw_id_terms(job, terms, known)
            terms |= self.draw_flow(topic)
            self._draw_on_end(terms, known)
            if collapses:
                self._draw_collapsing_terms(job, terms, known)
        return job, terms, known

    def draw_flow(self, topic: str) -> dict[str, Any]:
        """The group and priority of a job, in topics that have them; most jobs have neither or one of them."""
        flow: dict[str, Any] = {}
        if topic in LIMITS and self._has_groups:
            if self._chance.random() < 0.7:
                flow["group"] = self._chance.choice(GROUPS)
            if self._chance.random() < 0.3:
                flow["priority"] = self._chance.choice((1, 5, 9))
        return flow

    def _draw_on_end(self, terms: dict[str, Any], known: dict[str, Any]) -> None:
        if self._has_groups and self._chance.random() < 0.4:
            known["on_end"] = self._chance.choice(("new", "named"))
            named = {"id": "{topic}:{id}:{outcome}"} if known["on_end"] == "named" else {}
            terms["on_end"] = {"topic": END_TOPIC, "body": True, **named}

    def _draw_limits(self, terms: dict[str, Any], known: dict[str, Any]) -> None:
        """When the job dies at the latest, how long an attempt may run, and how long a dead job is kept."""
        what = self._chance.random()
        if what < 0.1:
            known["ttl_ms"] = self._chance.choice(TTLS_MS)
            terms["ttl"] = known["ttl_ms"] / 1000
        elif what < 0.3:
            known["max_attempts"] = terms["max_attempts"] = self._chance.choice((1, 2, 3))
            terms["backoff"] = {"kind": "fixed", "seconds": BACKOFF_MS / 1000}
        elif what < 0.4:
            known["deadline_ms"] = self._chance.choice(DEADLINES_MS)
            terms["deadline"] = known["deadline_ms"] / 1000
        elif what < 0.5:
            known["time_limit_ms"] = self._chance.choice(TIME_LIMITS_MS)
            terms["time_limit"] = known["time_limit_ms"] / 1000
        if self._chance.random() < 0.1:
            known["dead_retain_ms"] = self._chance.choice(DEAD_RETAINS_MS)
            terms["dead_retain"] = known["dead_retain_ms"] / 1000

    def _spread(self, job: str, terms: dict[str, Any], known: dict[str, Any]) -> None:
        """A spread moves the due time, by as much in each put of this id."""
        known["spread_ms"] = self._chance.choice(SPREADS_MS)
        terms["spread"] = known["spread_ms"] / 1000
        known["run_at_ms" if "run_at_ms" in known else "delay_ms"] += spread_of(job, known["spread_ms"])

    def _draw_id_terms(self, job: str, terms: dict[str, Any], known: dict[str, Any]) -> None:
        """For how long the id stays taken, which jobs are in the way, and the tag of all jobs with this id."""
        if self._chance.random() < 0.7:
            terms["tags"] = [tag_of(job)]
        if self._chance.random() < 0.1:
            known["unique_for_ms"] = self._chance.choice(UNIQUES_MS)
            terms["unique_for"] = known["unique_for_ms"] / 1000
        if self._chance.random() < 0.15:
            known["only_live"], terms["conflict_with"] = True, "live"

    def _draw_collapsing_terms(self, job: str, terms: dict[str, Any], known: dict[str, Any]) -> None:
        """Whether the put appends, replaces or follows, and how long its job waits at most."""
        what = self._chance.random()
        if what < (0.7 if job.endswith(COLLECTING) else 0.05):
            on_conflict = "append"
        elif what < (0.7 if job.endswith(FOLLOWED) else 0.15):
            on_conflict = self._chance.choice(("replace", "replace", "keep"))
        else:
            return
        terms["on_conflict"] = known["on_conflict"] = on_conflict
        if self._chance.random() < 0.7:
            terms["if_reserved"], known["follows"] = "after", True
        if on_conflict != "keep" and self._chance.random() < 0.5:
            known["max_wait_ms"] = known.get("delay_ms", 0) + self._chance.choice(WAITS_MS)
            terms["max_wait"] = known["max_wait_ms"] / 1000
        if on_conflict == "append" and self._chance.random() < 0.3:
            known["max_items"] = terms["max_items"] = self._chance.choice((1, 2, 4))

"""Topics used as sets: SADD and SPOP in a fault run, and the check of what became of each member.

A member is a body that is put once. SPOP delivers at most once: the members that a reply without a receiver had are
gone, so those are counted. Every other one must come back, once and not before it is due.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deferd import AsyncClient
from tests.faults.history import NOT_SENT, UNKNOWN, Recorder
from tests.faults.linearizability import StoreClock
from tests.faults.resp_client import RespClient
from tests.integration.store.store_contents import Contents

SET_TOPIC = "faults.set"
DELAYS_MS = (0, 0, 50, 400, 1500)
COUNTS = (1, 1, 5, 20)
EMPTY_PAUSE_S = 0.1


class Record(Protocol):
    """Waits for a call and records how it ended; returns its result, or None when it failed."""

    async def __call__(self, number: int, call: Awaitable[Any], facts: Callable[[Any], dict[str, Any]]) -> Any: ...


class SetClients:
    """The clients of one process that use a topic as a set; a few members are put over HTTP."""

    def __init__(
        self,
        name: str,
        seed: str,
        clients: tuple[Sequence[RespClient], Sequence[AsyncClient]],
        recorder: Recorder,
        record: Record,
    ) -> None:
        self._name = name
        self._chance = random.Random(f"{seed} set")
        self._resp_clients, self._http_clients = clients
        self._recorder = recorder
        self._record = record
        self._members = 0

    async def add(self) -> None:
        """Put some members."""
        delays_ms = {self._new_member(): self._chance.choice(DELAYS_MS) for _ in range(self._chance.choice((1, 1, 8)))}
        if len(delays_ms) == 1 and self._chance.random() < 0.3:
            [(body, delay_ms)] = delays_ms.items()
            number = self._recorder.begin("sadd", SET_TOPIC, members=delays_ms, via="http")
            put = self._chance.choice(self._http_clients).put(SET_TOPIC, body, delay=delay_ms / 1000)
            await self._record(number, put, lambda _: {"outcome": "stored"})
            return
        number = self._recorder.begin("sadd", SET_TOPIC, members=delays_ms)
        call = self._chance.choice(self._resp_clients).sadd(SET_TOPIC, delays_ms)
        await self._record(number, call, lambda count: {"outcome": "stored" if count == len(delays_ms) else "in part"})

    def _new_member(self) -> str:
        self._members += 1
        return f"{self._name}/{self._members}"

    async def take(self) -> int:
        """Take some members; returns how many."""
        count = self._chance.choice(COUNTS)
        number = self._recorder.begin("spop", SET_TOPIC, count=count)
        call = self._chance.choice(self._resp_clients).spop(SET_TOPIC, count)
        taken = await self._record(number, call, lambda members: {"outcome": "done", "members": members})
        if not taken:
            await asyncio.sleep(EMPTY_PAUSE_S)
        return len(taken or ())


@dataclass
class Members:
    """What became of the members; the lists must be empty."""

    acknowledged: int = 0
    taken: int = 0
    unknown: int = 0
    """Acknowledged, and finished by an SPOP whose reply nobody received."""
    lost: list[str] = field(default_factory=list)
    taken_twice: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    never_put: list[str] = field(default_factory=list)
    miscounted: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[list[str]]:
        """Everything that must be empty."""
        return [self.lost, self.taken_twice, self.early, self.never_put, self.miscounted]


def check_members(lines: Sequence[Mapping[str, Any]], contents: Contents, clock: StoreClock) -> Members:
    """Check all members of a run that ended with an empty topic."""
    adds = [line for line in lines if line["kind"] == "sadd" and line["outcome"] != NOT_SENT]
    pops = [line for line in lines if line["kind"] == "spop" and line["outcome"] != NOT_SENT]
    due_ms = {
        body: clock.earliest(line["call_s"]) + delay_ms for line in adds for body, delay_ms in line["members"].items()
    }
    acknowledged = {body for line in adds if line["outcome"] == "stored" for body in line["members"]}
    times_taken = Counter(body for line in pops for body in line.get("members", ()))
    missing = sorted(acknowledged - times_taken.keys())
    # An SPOP without a reply has taken as many as it asked for at most, and the store has counted how many all took.
    most_unseen = sum(line["count"] for line in pops if line["outcome"] == UNKNOWN)
    unseen = contents.tally.get("finished", 0) - times_taken.total()
    found = Members(len(acknowledged), times_taken.total(), min(len(missing), max(unseen, 0)))
    found.lost = missing if len(missing) > min(unseen, most_unseen) else []
    found.taken_twice = [body for body, times in times_taken.items() if times > 1]
    found.never_put = sorted(times_taken.keys() - due_ms.keys())
    found.early = [
        body for line in pops for body in line.get("members", ()) if clock.latest(line["end_s"]) < due_ms.get(body, 0)
    ]
    put, finished = contents.tally.get("put", 0), contents.tally.get("finished", 0)
    if not len(acknowledged) <= put <= len(due_ms) or put != finished + len(contents.pool):
        found.miscounted.append(f"of {len(acknowledged)} to {len(due_ms)} members {put} were put, {finished} finished")
    if not 0 <= unseen <= most_unseen:
        found.miscounted.append(f"{unseen} members were finished unseen, by calls for at most {most_unseen}")
    found.miscounted += [f"{line} was stored in part" for line in adds if line["outcome"] == "in part"]
    return found

"""Which faults a run brings, in what order and for how long: drawn by a seed, so that a run can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What is done to the deployment."""

    KILL_SERVICE = "a service is killed (SIGKILL)"
    STOP_SERVICE = "a service stands still (SIGSTOP, SIGCONT)"
    KILL_TIMER_HOLDER = "the service whose timer works is killed"
    STOP_TIMER_HOLDER = "the service whose timer works stands still"
    KILL_CLIENT = "a process of clients is killed"
    STOP_CLIENT = "a process of clients stands still beyond its leases"
    KILL_WORKER = "a worker is killed"
    STOP_WORKER = "a worker stands still beyond its leases"
    KILL_STORE = "the store is killed"
    STOP_STORE = "the store stands still"
    RESTART_STORE = "the store is restarted (SIGTERM)"
    FILL_DISK = "no room for the append-only file: the store ends itself"
    FILL_MEMORY = "the store's memory limit is reached"
    CUT_STORE_ANSWERS = "connections to the store break in mid-reply"
    CUT_SERVICE_ANSWERS = "connections to a service break in mid-reply"
    DELAY_STORE_ANSWERS = "the store's answers come late"
    BLOCK_STORE = "the store is busy (DEBUG SLEEP)"
    PAUSE_STORE = "the store lets clients wait (CLIENT PAUSE)"
    JUMP_CLOCK = "a service host's clock jumps"
    NARROW_RIGHTS = "the store's user lacks a right (ACL)"
    FLUSH_SCRIPTS = "the store forgets the scripts (SCRIPT FLUSH)"
    BREAK_KEYS = "the keys file is broken and all worker processes are killed"


SHORT_S = (0.2, 0.8)
BEYOND_LEASES_S = (1.6, 2.2)
BEYOND_STORE_TIMEOUT_S = 2.2
"""Longer than the services wait for the store."""
CLOCK_JUMPS_H = (1.0, 30.0)
_TROUBLES_STORE_CALLS = {
    FaultKind.STOP_STORE,
    FaultKind.DELAY_STORE_ANSWERS,
    FaultKind.BLOCK_STORE,
    FaultKind.PAUSE_STORE,
}


@dataclass(frozen=True)
class Fault:
    """One fault. `which` picks among the services or clients; `for_s` is how long it lasts, where it lasts.

    `jump_h` is by how much a clock is off after its jump, in hours.
    """

    kind: FaultKind
    which: int
    for_s: float
    jump_h: float


def draw_plan(seed: int, count: int) -> list[Fault]:
    """`count` faults in a random order: each kind comes once before any comes again."""
    chance = random.Random(seed)
    kinds: list[FaultKind] = []
    while len(kinds) < count:
        some = list(FaultKind)
        chance.shuffle(some)
        kinds += some
    return [_draw(kind, chance) for kind in kinds[:count]]


def _draw(kind: FaultKind, chance: random.Random) -> Fault:
    beyond_leases = kind in {FaultKind.STOP_CLIENT, FaultKind.STOP_WORKER}
    for_s = chance.uniform(*(BEYOND_LEASES_S if beyond_leases else SHORT_S))
    if chance.random() < (0.5 if kind in _TROUBLES_STORE_CALLS else 0.1):
        for_s = BEYOND_STORE_TIMEOUT_S
    return Fault(kind, chance.randrange(2), round(for_s, 2), round(chance.uniform(*CLOCK_JUMPS_H), 2))

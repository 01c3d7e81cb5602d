"""The faults of a run, their order and duration, drawn from a seed so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """A kind of fault; the value is its description in reports."""

    KILL_SERVICE = "a service is killed (SIGKILL)"
    FREEZE_SERVICE = "a service is frozen (SIGSTOP, SIGCONT)"
    KILL_TIMER_HOLDER = "the service that holds the timer lock is killed"
    FREEZE_TIMER_HOLDER = "the service that holds the timer lock is frozen"
    KILL_CLIENT = "a client process is killed"
    FREEZE_CLIENT = "a client process is frozen until its leases have expired"
    KILL_WORKER = "a worker is killed"
    FREEZE_WORKER = "a worker is frozen until its leases have expired"
    KILL_STORE = "the store is killed"
    FREEZE_STORE = "the store is frozen"
    RESTART_STORE = "the store is restarted (SIGTERM)"
    FILL_DISK = "the disk is full: the store cannot write its append-only file and exits"
    FILL_MEMORY = "the store has reached its memory limit"
    CUT_STORE_RESPONSES = "connections to the store break in the middle of a reply"
    CUT_SERVICE_RESPONSES = "connections to a service break in the middle of a response"
    CUT_RESP_CONNECTIONS = "connections of the Redis protocol break in the middle of commands and replies"
    KILL_PUSHER = "a service is killed while it pushes"
    DELAY_STORE_RESPONSES = "the store's replies are delayed"
    BLOCK_STORE = "the store is blocked (DEBUG SLEEP)"
    PAUSE_STORE = "the store makes clients wait (CLIENT PAUSE)"
    HOLD_PACKETS = "packets on their way to the store are held up"
    HOLD_REQUESTS = "packets on their way to a service are held up"
    JUMP_CLOCK = "the clock of a service's host jumps"
    REVOKE_PERMISSION = "the store's user loses a permission (ACL)"
    FLUSH_SCRIPTS = "the store drops all scripts (FUNCTION FLUSH)"
    BREAK_KEY_FILE = "the key file is invalid and all server processes are killed"
    KILL_SHELF = "the shelf is killed"
    FREEZE_SHELF = "the shelf is frozen"


OF_SHELF = frozenset({FaultKind.KILL_SHELF, FaultKind.FREEZE_SHELF})
WITHOUT_SHELF = tuple(kind for kind in FaultKind if kind not in OF_SHELF)
OF_SERVICES = frozenset(
    {
        FaultKind.KILL_SERVICE,
        FaultKind.FREEZE_SERVICE,
        FaultKind.KILL_TIMER_HOLDER,
        FaultKind.FREEZE_TIMER_HOLDER,
        FaultKind.KILL_PUSHER,
        FaultKind.CUT_SERVICE_RESPONSES,
        FaultKind.CUT_RESP_CONNECTIONS,
        FaultKind.HOLD_REQUESTS,
        FaultKind.JUMP_CLOCK,
        FaultKind.BREAK_KEY_FILE,
        FaultKind.KILL_STORE,
        FaultKind.FLUSH_SCRIPTS,
    }
)
"""What happens to a service, and what lets all services load their scripts again."""
SHORT_S = (0.2, 0.8)
BEYOND_LEASES_S = (1.6, 2.2)
BEYOND_STORE_TIMEOUT_S = 2.2
"""Longer than the services' time-out for the store."""
BEYOND_RESPONSE_S = 3.2
"""Longer than the clients' time-out for a response."""
NEED_PRIVATE_NETWORK = {FaultKind.HOLD_PACKETS, FaultKind.HOLD_REQUESTS}
CLOCK_JUMPS_H = (1.0, 30.0)
_SLOWS_STORE_CALLS = {
    FaultKind.FREEZE_STORE,
    FaultKind.DELAY_STORE_RESPONSES,
    FaultKind.BLOCK_STORE,
    FaultKind.PAUSE_STORE,
}


@dataclass(frozen=True)
class Fault:
    """One fault. `which` selects the service or client; `for_s` is its duration, if it has one.

    `jump_h` is the error of a clock after its jump, in hours.
    """

    kind: FaultKind
    which: int
    for_s: float
    jump_h: float


def draw_plan(seed: int, count: int, *, kinds: Collection[FaultKind] = WITHOUT_SHELF) -> list[Fault]:
    """`count` faults of these kinds in random order; every kind comes once before any comes again."""
    chance = random.Random(seed)
    drawn: list[FaultKind] = []
    while len(drawn) < count:
        shuffled = [kind for kind in FaultKind if kind in kinds]
        chance.shuffle(shuffled)
        drawn += shuffled
    return [_draw(kind, chance) for kind in drawn[:count]]


def _draw(kind: FaultKind, chance: random.Random) -> Fault:
    beyond_leases = kind in {FaultKind.FREEZE_CLIENT, FaultKind.FREEZE_WORKER}
    for_s = chance.uniform(*(BEYOND_LEASES_S if beyond_leases else SHORT_S))
    if kind is FaultKind.HOLD_PACKETS or chance.random() < (0.5 if kind in _SLOWS_STORE_CALLS else 0.1):
        for_s = BEYOND_STORE_TIMEOUT_S
    if kind is FaultKind.HOLD_REQUESTS:
        for_s = BEYOND_RESPONSE_S
    return Fault(kind, chance.randrange(2), round(for_s, 2), round(chance.uniform(*CLOCK_JUMPS_H), 2))

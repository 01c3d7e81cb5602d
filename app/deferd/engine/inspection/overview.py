"""All topics in a requested order, from what `attention_reader.py` reads for the alerts anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from deferd.contract.push import CircuitState
from deferd.engine.inspection.attention_reader import Attention
from deferd.engine.inspection.standing import Pause

SORTS: Final = ("topic", "delayed", "ready", "reserved", "dead", "oldest", "due", "rate")
STATES: Final = ("delayed", "ready", "reserved", "dead")
_CIRCUITS: Final[tuple[CircuitState | None, ...]] = (None, "closed", "open", "half_open")
"""By `TopicState.circuit`."""
_NEVER: Final = 1 << 62


class OverviewRow(NamedTuple):
    """One topic. `oldest_ready_ms` is when its first ready job was due, `next_due_ms` when the first delayed one is.

    `rate`: jobs handed out per second; None when that is not known. `circuit`: that of a pushed topic with jobs.
    """

    topic: str
    counts: tuple[int, int, int, int]
    oldest_ready_ms: int | None
    next_due_ms: int | None
    rate: float | None
    pause: Pause | None
    circuit: CircuitState | None = None


class Overview(NamedTuple):
    """Some topics of `matching`, and the sums of jobs by state over all that match."""

    now_ms: int
    rows: list[OverviewRow]
    matching: int
    totals: tuple[int, ...]
    is_complete: bool


def overview_of(found: Attention, is_wanted: Callable[[str], bool], *, sort: str, offset: int, limit: int) -> Overview:
    """The topics that are wanted, most (or soonest, or oldest) first, and by name where they are equal."""
    names = sorted(filter(is_wanted, found.names))
    if sort != "topic":
        names.sort(key=lambda name: _place(found, name, sort))
    states = [state for name in names if (state := found.topics.get(name)) is not None]
    totals = tuple(sum(getattr(state, name) for state in states) for name in STATES)
    rows = [_row(found, name) for name in names[offset : offset + limit]]
    return Overview(found.now_ms, rows, len(names), totals, found.is_complete and not found.unreadable)


def _row(found: Attention, name: str) -> OverviewRow:
    state = found.topics.get(name)
    rate = None if found.popped is None else found.popped.get(name, 0.0)
    if state is None:
        return OverviewRow(name, (0, 0, 0, 0), None, None, rate, None)
    return OverviewRow(
        name,
        (state.delayed, state.ready, state.reserved, state.dead),
        _known(state.oldest_ready_due_ms),
        _known(state.first_due_ms),
        rate,
        state.pause,
        _CIRCUITS[state.circuit],
    )


def _known(at_ms: int) -> int | None:
    return None if at_ms < 0 else at_ms


def _place(found: Attention, name: str, sort: str) -> float:
    state = found.topics.get(name)
    if sort == "rate":
        return -(found.popped or {}).get(name, 0.0)
    if sort in {"oldest", "due"}:
        at_ms = -1 if state is None else state.oldest_ready_due_ms if sort == "oldest" else state.first_due_ms
        return _NEVER if at_ms < 0 else at_ms
    count: int = 0 if state is None else getattr(state, sort)
    return -count

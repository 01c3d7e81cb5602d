"""Strategies for the arguments of calls that Hypothesis chooses.

All times are even numbers of seconds. There are few ids and values, so that calls hit the same job often; a value that
is listed twice is drawn twice as often.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from hypothesis import strategies as st

from deferd.contract.model import JobState

TOPICS = ("busy", "other")
JOB_IDS = ("a", "b", "c", "d", "e")
REQUEST_IDS = ("r1", "r2")

PATTERNS = ("*", "*", "b*", "*er", "none*")

topics = st.sampled_from([TOPICS[0]] * 7 + [TOPICS[1]])
job_ids = st.sampled_from(JOB_IDS)
delays = st.sampled_from([0, 0, 0, 10, 60])
waits = st.sampled_from([None, None, 0, 10])
moves = st.sampled_from([10, 2, 30, 10, 60, 120])
delays_of_timer = st.sampled_from([0, 10])
"""How late the timer is, in seconds: a pop then finds ended leases, and jobs past their ttl."""
backoffs = st.sampled_from(
    [
        {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0},
        {"kind": "exponential", "base": 10, "cap": 50, "jitter": 0},
        {"kind": "fixed", "seconds": 10, "jitter": 0},
        {"kind": "fixed", "seconds": 0, "jitter": 0},
        {"kind": "schedule", "seconds": [10], "then": "dead", "jitter": 0},
        {"kind": "schedule", "seconds": [10, 60], "then": "repeat_last", "jitter": 0},
    ]
)
ENDS = "ends"
"""The topic into which ends put their jobs."""
_on_ends: tuple[dict[str, Any], ...] = (
    {"topic": ENDS},
    {"topic": ENDS, "body": True},
    {"topic": ENDS, "on": ["finished", "cancelled"]},
    {"topic": ENDS, "on": ["dead"], "id": "{topic}.{id}:{outcome}"},
)
_policy_fields: dict[str, st.SearchStrategy[Any]] = {
    "ttr": st.sampled_from([10, 30]),
    "max_attempts": st.sampled_from([None, 2, None, 1]),
    "backoff": backoffs,
    "ttl": st.sampled_from([10, None, 10, 60]),
    "retain": st.sampled_from([0, 30]),
    "dead_retain": st.sampled_from([20, 0, 200]),
    "time_limit": st.sampled_from([20, None, 40]),
    "deadline": st.sampled_from([60, None, 20, 200]),
    "on_end": st.sampled_from([*_on_ends, None]),
}
TAGS = ("x", "y")
tags = st.sampled_from([["x"], ["y", "x"], []])
GROUPS = ("g", "h")
of_flow: dict[str, st.SearchStrategy[Any]] = {
    "group": st.sampled_from([*GROUPS, None]),
    "priority": st.sampled_from([0, 0, 3, 9]),
}
policies = st.fixed_dictionaries({}, optional={**_policy_fields, "tags": tags, **of_flow})
_of_group: dict[str, st.SearchStrategy[Any]] = {
    "max_in_flight": st.sampled_from([1, 1, 2]),
    "rate": st.sampled_from([{"count": count, "per": 15} for count in (1, 2)]),
}
_of_one_group = st.fixed_dictionaries({}, optional={**_of_group, "weight": st.sampled_from([1, 3])})
limits = st.fixed_dictionaries(
    {},
    optional={
        "max_in_flight": st.integers(1, 3),
        "rate": st.sampled_from([{"count": count, "per": 5} for count in (1, 3)]),
        "per_group": st.fixed_dictionaries({}, optional=_of_group).filter(bool),
        "groups": st.fixed_dictionaries({GROUPS[0]: _of_one_group.filter(bool)}),
    },
)
"""Rates are over an odd number of seconds, so that no move of the clock ends where their spans do."""


FLOW_FIELDS = frozenset({*of_flow, "limits"})


def without(fields: Container[str], drawn: Any) -> Any:
    """Drawn arguments without these fields."""
    if isinstance(drawn, dict):
        return {name: without(fields, value) for name, value in drawn.items() if name not in fields}
    if isinstance(drawn, list | tuple):
        return type(drawn)(without(fields, value) for value in drawn)
    return drawn


selections = st.one_of(
    st.tuples(st.sampled_from(TAGS), st.none()),
    st.tuples(st.none(), st.sampled_from([JobState.DELAYED, JobState.READY])),
)
"""Of a call on many jobs: a tag or a state."""


def _as_allowed(put: dict[str, Any]) -> dict[str, Any]:
    """Without the options that the others do not allow."""
    on_conflict, max_wait = put["on_conflict"], put["max_wait"]
    may_move = on_conflict in {"replace", "append"}
    return put | {
        "if_reserved": "refuse" if on_conflict == "reject" else put["if_reserved"],
        "max_wait": max_wait if may_move and max_wait is not None and max_wait >= put["delay_s"] else None,
        "max_items": put["max_items"] if on_conflict == "append" else None,
    }


puts = st.fixed_dictionaries(
    {
        "job_id": job_ids,
        "policy": policies,
        "delay_s": delays,
        "on_conflict": st.sampled_from(["replace", "reject", "append", "keep", "replace", "append"]),
        "conflict_with": st.sampled_from(["any", "any", "live"]),
        "unique_for": st.sampled_from([None, None, None, 20, 60]),
        "if_reserved": st.sampled_from(["after", "refuse", "after"]),
        "max_wait": st.sampled_from([None, 20, 60]),
        "max_items": st.sampled_from([None, None, 3, 2, 1]),
    }
).map(_as_allowed)
chained = st.lists(st.tuples(topics, puts), min_size=1, max_size=3)
"""Jobs that a finish puts, with their topics."""
topic_settings = st.fixed_dictionaries({}, optional={**_policy_fields, "max_jobs": st.integers(1, 4), "limits": limits})
leases_ms = st.sampled_from([None, None, 10_000, 120_000])
patterns = st.sampled_from(PATTERNS)
consumers = st.sampled_from(["worker-1", "worker-2", None])
request_ids = st.sampled_from([None, None, *REQUEST_IDS])
ERRORS = (None, "", "it went wrong")
errors = st.sampled_from(ERRORS)
are_attempts = st.sampled_from([True, True, False])
states = st.sampled_from([*JobState, None, None])
receipts = st.one_of(
    st.tuples(st.just("live"), st.integers(0, 3)),
    st.tuples(st.just("live"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["any", "none"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["old", "old", "another's"]), st.integers(0, 5)),
)
"""Which job a consumer's call names, and with which receipt; see `EngineAndModel.target_of`."""
jobs = st.one_of(receipts, st.tuples(st.just("ready"), st.integers(0, 3)), st.tuples(st.just("any"), st.integers(0, 4)))
"""Which job a producer's call names."""

_VERBS: dict[str, tuple[int, st.SearchStrategy[dict[str, Any]]]] = {}


def verb(weight: int = 1, **arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a call that an example may make next, `weight` times as often as others.

    The calls are not separate rules, because Hypothesis leaves out half of the rules in many examples, and without
    puts or pops hardly anything happens.
    """

    def note(method: Callable[..., None]) -> Callable[..., None]:
        _VERBS[method.__name__] = weight, st.fixed_dictionaries(arguments)
        return method

    return note


def any_verb(*, plus: Sequence[tuple[str, dict[str, Any]]] = ()) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Any registered call; also those of `plus`."""
    names = [name for name, (weight, _) in _VERBS.items() for _ in range(weight)]
    registered = st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), _VERBS[name][1]))
    return st.one_of(*[registered] * 12, st.sampled_from(plus)) if plus else registered

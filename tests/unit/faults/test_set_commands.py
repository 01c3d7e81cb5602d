"""The check of topics that are used as sets: wrong runs of each kind are found, right ones accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.history import NOT_SENT, UNKNOWN
from tests.faults.linearizability import StoreClock
from tests.faults.set_commands import Members, check_members
from tests.integration.store.store_contents import Contents

CLOCK = StoreClock(offset_ms=0, uncertainty_ms=0)
EMPTY = Contents({}, {}, [], {}, {}, {}, None, None, {}, {}, {}, {}, {}, {}, {}, {}, {})


def sadd(call_s: float, members: dict[str, int], outcome: str = "stored") -> dict[str, Any]:
    return {"kind": "sadd", "call_s": call_s, "end_s": call_s + 0.1, "outcome": outcome, "members": members}


def spop(call_s: float, *members: str, outcome: str = "done", count: int = 2) -> dict[str, Any]:
    line = {"kind": "spop", "call_s": call_s, "end_s": call_s + 0.1, "outcome": outcome, "count": count}
    return line if outcome == UNKNOWN else line | {"members": list(members)}


def check(*lines: dict[str, Any], put: int, finished: int) -> Members:
    return check_members(lines, replace(EMPTY, tally={"put": put, "finished": finished}), CLOCK)


def test_members_that_come_back_once_are_right() -> None:
    adds = [sadd(0, {"a": 0, "b": 500}), sadd(0, {"c": 0}, UNKNOWN), sadd(0, {"d": 0}, NOT_SENT)]
    found = check(*adds, spop(1, "a"), spop(2, "b", "c"), put=3, finished=3)
    assert (found.acknowledged, found.taken, found.unknown) == (2, 3, 0)
    assert not any(found.broken)


def test_a_reply_that_was_lost_explains_as_many_missing_members_as_it_could_have() -> None:
    def run(*missing: str) -> Members:
        adds = [sadd(0, {"a": 0}), sadd(0, dict.fromkeys(missing, 0))]
        return check(*adds, spop(1, "a"), spop(2, outcome=UNKNOWN), put=1 + len(missing), finished=1 + len(missing))

    assert run("b", "c").unknown == 2
    assert not any(run("b", "c").broken)
    assert run("b", "c", "d").lost == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("lines", "counted", "broken"),
    [
        ([sadd(0, {"a": 0}), spop(1, "a"), spop(2, "a")], (1, 2), "taken_twice"),
        ([sadd(0, {"a": 5000}), spop(1, "a")], (1, 1), "early"),
        ([sadd(0, {"a": 0}), spop(1, "a", "b")], (1, 2), "never_put"),
        ([sadd(0, {"a": 0}), spop(1)], (1, 0), "lost"),
        ([sadd(0, {"a": 0}), spop(1, outcome=UNKNOWN)], (1, 0), "lost"),
        ([sadd(0, {"a": 0}), spop(1, "a")], (2, 2), "miscounted"),
        ([sadd(0, {"a": 0}, "in part"), spop(1, "a")], (1, 1), "miscounted"),
    ],
)
def test_a_wrong_run_is_found(lines: list[dict[str, Any]], counted: tuple[int, int], broken: str) -> None:
    put, finished = counted
    assert vars(check(*lines, put=put, finished=finished))[broken]

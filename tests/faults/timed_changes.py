"""Changes of a job that time alone may have made when a response shows it, and from when on.

Those that need not have happened yet are left for later.
"""

from __future__ import annotations

from math import inf

from tests.faults.history import Operation
from tests.faults.job_state import HiddenFrom, Life, Place, Step

MOST_HIDDEN = 8
"""Most unseen deliveries of a job between one known state and a change."""


def if_there(life: Life) -> list[Step]:
    return [] if life.place is Place.GONE else [(life, -inf)]


def if_waiting(life: Life) -> list[Step]:
    if life.place is Place.WAITING:
        return [(life, -inf)]
    if life.place is Place.HELD and not life.is_last_attempt:
        return [(life.returned(life.since_ms), life.since_ms)]
    return []


def if_dead(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.DEAD:
        return [(life, -inf)]
    return [] if life.follow_up is not None else _deaths(life, hidden_from)


def if_followed(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    """The follow-up in the place of a job that has died."""
    return [] if life.follow_up is None else _deaths(life, hidden_from)


def _deaths(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.HELD and life.is_last_attempt:
        return [(life.dead(life.since_ms), life.since_ms)]
    steps: list[Step] = []
    if life.place in {Place.HELD, Place.WAITING} and life.deadline_at_ms < inf:
        ended_ms = max(life.deadline_at_ms, life.since_ms if life.place is Place.HELD else -inf)
        steps.append((life.dead(ended_ms), ended_ms))
    for waiting, _ in if_waiting(life):
        if waiting.terms.ttl_ms and not waiting.attempts and not waiting.snoozed:
            expired_ms = waiting.since_ms + waiting.terms.ttl_ms
            steps.append((waiting.dead(expired_ms), expired_ms))
        if waiting.terms.max_attempts:  # unseen deliveries until no attempt was left
            left = waiting.terms.max_attempts - waiting.attempts
            hidden = waiting.hidden + left
            ended_ms = _end_of_unseen(waiting, left, hidden_from)
            handed_out = waiting._replace(hidden=hidden, is_open=False)  # nothing is appended to it after a redrive
            steps.append((handed_out.dead(ended_ms), ended_ms))
    return steps


def if_returned(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    """Waiting again after unseen deliveries; for operations that change when the job is due."""
    steps = []
    for waiting, _ in if_waiting(life):
        for times in range(1, MOST_HIDDEN + 1):
            returned = waiting._replace(attempts=waiting.attempts + times, hidden=waiting.hidden + times)
            if 0 < waiting.terms.max_attempts <= returned.attempts:
                break
            ended_ms = _end_of_unseen(waiting, times, hidden_from)
            steps.append((returned.waiting(ended_ms), ended_ms))
    return steps


def _end_of_unseen(waiting: Life, times: int, hidden_from: HiddenFrom) -> float:
    """When the leases of so many unseen deliveries, one after the other, have ended at the earliest."""
    ended_ms = waiting.since_ms
    for number in range(1, times + 1):
        ended_ms = max(ended_ms, hidden_from(waiting.hidden + number)) + waiting.terms.unseen_lease_ms
    return ended_ms


def if_gone(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.GONE:
        return [(life, -inf)]
    ended = [*if_dead(life, hidden_from), *if_finished(life)]
    return [
        (was.gone()._replace(taken_until_ms=was.taken_until_ms), max(from_ms, was.since_ms)) for was, from_ms in ended
    ]


def if_finished(life: Life) -> list[Step]:
    return [(life, -inf)] if life.place is Place.FINISHED else []


def if_held(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    if life.place is Place.HELD:
        return [(life, -inf)]
    if life.place is Place.WAITING:  # an unseen delivery
        return [(life, max(life.since_ms, hidden_from(life.hidden + 1)))]
    return []


def if_held_unseen(life: Life, hidden_from: HiddenFrom) -> list[Step]:
    """Held by an unseen delivery; for operations that end it for good."""
    return [
        (was._replace(hidden=was.hidden + 1), max(from_ms, was.since_ms, hidden_from(was.hidden + 1)))
        for was, from_ms in if_waiting(life)
    ]


def if_in_state(life: Life, state: str, hidden_from: HiddenFrom) -> list[Step]:
    match state:
        case "delayed":
            return if_waiting(life) if life.place is Place.WAITING else []
        case "ready":
            return [(was, max(from_ms, was.since_ms)) for was, from_ms in if_waiting(life)]
        case "reserved":
            return if_held(life, hidden_from)
        case "dead":
            return if_dead(life, hidden_from)
        case "finished":
            return if_finished(life)
        case _:  # the response does not show it
            return if_there(life)


def if_shown(life: Life, response: Operation, hidden_from: HiddenFrom) -> list[Step]:
    """The job that a response shows."""
    return [
        (was, from_ms)
        for was, from_ms in if_in_state(life, response.state, hidden_from)
        if response.shown in {"", was.content} and (response.state != "finished" or response.result == was.result)
    ]

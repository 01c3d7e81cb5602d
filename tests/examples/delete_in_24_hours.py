"""A resource is deleted in 24 hours unless that is undone; a trial on day 30, with notices on day 23, 28 and 29.

All jobs of a resource have ids that begin with its name, so that one function can take all of them back without
anything having been kept: `undo`, for a deletion as for a trial with its notices.

``tests/acceptance/test_examples.py`` runs this against a real service.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, Protocol

from deferd import Client, JobNotFound

TOPIC = "resources"
DELETION = "delete"
NOTICE_DAYS = (23, 28, 29)
TRIAL_DAYS = 30
_STEPS = (DELETION, *(f"notice-{day}" for day in NOTICE_DAYS))


class Resources(Protocol):
    """What the jobs are about. Both calls may come twice, since a job may be delivered twice."""

    def delete(self, resource: str) -> None:
        """Delete it, if it is there."""

    def notify(self, resource: str, days_left: int) -> None:
        """Tell its owner in how many days it is deleted."""


def delete_in_24_hours(client: Client, resource: str) -> None:
    """The owner has deleted it; for a day that can be undone."""
    client.put(TOPIC, {"resource": resource, "do": DELETION}, id=_id(resource, DELETION), delay=timedelta(hours=24))


def start_trial(client: Client, resource: str) -> None:
    """All jobs of the trial in one call. Calling this again changes nothing: `keep` leaves jobs that are there."""
    steps: list[tuple[str, dict[str, Any], int]] = [(DELETION, {"do": DELETION}, TRIAL_DAYS)]
    steps += [(f"notice-{day}", {"do": "notify", "days_left": TRIAL_DAYS - day}, day) for day in NOTICE_DAYS]
    results = client.put_batch(
        [
            {
                "topic": TOPIC,
                "id": _id(resource, step),
                "body": {"resource": resource, **body},
                "delay": timedelta(days=day),
                "on_conflict": "keep",
            }
            for step, body, day in steps
        ]
    )
    refused = [result for result in results if result.code is not None]
    if refused:  # each job of a batch is answered on its own
        raise RuntimeError(f"the trial of {resource} is not set up: {refused}")


def undo(client: Client, resource: str) -> int:
    """Take back whatever is still to happen to a resource, and return how many jobs that were.

    The deletion goes first, so that dying half-way leaves a notice too many and not a resource too few.

    Raises:
        JobReserved: too late, it is being deleted at this moment.
    """
    cancelled = 0
    for step in _STEPS:
        with contextlib.suppress(JobNotFound):  # done already, or never planned
            client.cancel(TOPIC, _id(resource, step), if_reserved="refuse" if step == DELETION else "cancel")
            cancelled += 1
    return cancelled


def do_what_is_due(client: Client, resources: Resources, *, wait: float = 20) -> int:
    """A consumer's turn: carry out one job, waiting for it; returns how many there were, 0 or 1."""
    jobs = client.pop(TOPIC, wait=wait)
    for job in jobs:
        if job.body["do"] == DELETION:
            resources.delete(job.body["resource"])
        else:
            resources.notify(job.body["resource"], job.body["days_left"])
        client.finish(job)
    return len(jobs)


def _id(resource: str, step: str) -> str:
    return f"{resource}:{step}"

"""A resource is deleted after 24 hours unless that is undone; a trial on day 30, with notices on days 23, 28 and 29.

All jobs of a resource are tagged with its name, so that `undo` is one call, without storing anything.

``tests/acceptance/project/test_examples.py`` runs this against a real service.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from deferd import Client

TOPIC = "resources"
DELETION = "delete"
NOTICE_DAYS = (23, 28, 29)
TRIAL_DAYS = 30


class UnderWay(Exception):
    """The resource is being deleted, or its owner notified, right now."""


class Resources(Protocol):
    """What the jobs act on. Both methods may be called twice, because a job may be delivered twice."""

    def delete(self, resource: str) -> None:
        """Delete the resource if it exists."""

    def notify(self, resource: str, days_left: int) -> None:
        """Notify the owner that the resource is deleted in `days_left` days."""


def delete_in_24_hours(client: Client, resource: str) -> None:
    """Delete a resource in 24 hours; until then that can be undone."""
    body = {"resource": resource, "do": DELETION}
    client.put(TOPIC, body, id=_id(resource, DELETION), delay=timedelta(hours=24), tags=[resource])


def start_trial(client: Client, resource: str) -> None:
    """Put all jobs of the trial in one batch. Calling this twice is harmless: `keep` leaves existing jobs unchanged."""
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
                "tags": [resource],
            }
            for step, body, day in steps
        ]
    )
    refused = [result for result in results if result.code is not None]
    if refused:  # each job of a batch has its own result
        raise RuntimeError(f"the trial of {resource} is not set up: {refused}")


def undo(client: Client, resource: str) -> int:
    """Cancel the remaining jobs of a resource, in one call, and return how many there were.

    Raises:
        UnderWay: one of them is being executed right now; the others are cancelled.
    """
    cancelled = client.cancel_all(tag=resource, if_reserved="refuse")
    if cancelled.done < cancelled.matched:
        raise UnderWay(resource)
    return cancelled.done


def run_due_job(client: Client, resources: Resources, *, wait: float = 20) -> int:
    """Wait for one job and execute it. Returns the number of jobs, 0 or 1."""
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

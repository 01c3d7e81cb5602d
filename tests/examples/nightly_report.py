"""A report on each day, made at 3 o'clock in the following night in Berlin; those of an outage are made up for.

One schedule puts a job each night. The id of the job has the instant for which it was planned, so a report is always on
the right day, however late it is made. With `catch_up` `all` the service makes up for the runs that were missed while
everything was down, one for each night, and each becomes its own report.

``tests/acceptance/project/test_examples.py`` runs this against a real service.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from deferd import Client, Job

NAME = "nightly-report"
TOPIC = "reports"
ZONE = "Europe/Berlin"


def schedule_reports(client: Client) -> None:
    """Make reports from now on. Safe to repeat, for example at each start of the program."""
    client.put_schedule(NAME, TOPIC, cron="0 3 * * *", zone=ZONE, catch_up="all", job={"ttr": 600, "max_attempts": 5})


def day_of(job: Job) -> date:
    """The day that the report of this run is on: the one before the night for which it was planned."""
    planned = datetime.fromisoformat(job.id.removeprefix(f"{NAME}:"))
    return planned.astimezone(ZoneInfo(ZONE)).date() - timedelta(days=1)


def make_due_report(client: Client, make: Callable[[date], None], *, wait: float = 20) -> int:
    """Wait until a report is due and make it. Returns the number of reports, 0 or 1.

    `make(day)` has 10 minutes, the lease of the job. If it raises an exception, the report is tried again later.
    """
    jobs = client.pop(TOPIC, wait=wait)
    for job in jobs:
        try:
            make(day_of(job))
        except Exception as error:
            client.release(job, error=str(error))
            raise
        client.finish(job)
    return len(jobs)


def skip_next_report(client: Client) -> date | None:
    """Make no report in the coming night. Returns the day that it would have been on, None if there is no next run."""
    next_job = client.schedule(NAME).next_job
    if next_job is None:
        return None
    day = day_of(client.get(TOPIC, next_job))
    client.cancel(TOPIC, next_job)
    return day

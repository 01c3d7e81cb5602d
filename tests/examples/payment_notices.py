"""A merchant is notified of a payment until it confirms: at once, then after 2, 10 and 10 min, 1, 2, 6 and 15 h.

Each payment has one job, whose `backoff` is the list of waits. The consumer sends the notice and finishes the job if
the merchant confirms; otherwise it releases the job, and the service waits according to the backoff. After the last
notice the job is dead: it is kept with its last error, and can be redriven when the merchant is back.

``tests/acceptance/project/test_examples.py`` runs this against a real service.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from deferd import Client, ScheduleBackoff

TOPIC = "payments.notify"
WAITS = (
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=10),
    timedelta(hours=1),
    timedelta(hours=2),
    timedelta(hours=6),
    timedelta(hours=15),
)
_BACKOFF = ScheduleBackoff(seconds=[wait.total_seconds() for wait in WAITS], then="dead")


class NoResponseFromMerchant(Exception):
    """The merchant's server is unreachable or does not confirm."""


def announce(client: Client, payment: str, merchant_url: str) -> None:
    """Notify the merchant of a payment."""
    client.put(TOPIC, {"payment": payment, "url": merchant_url}, id=payment, backoff=_BACKOFF, on_conflict="keep")


def send_due_notice(client: Client, send: Callable[[str, str], None], *, wait: float = 20) -> int:
    """Wait until a notice is due and send it. Returns the number of notices, 0 or 1.

    `send(merchant_url, payment)` posts it, or raises NoResponseFromMerchant, within 60 seconds, the job's lease. If the
    consumer dies, another one gets the job after that time.
    """
    jobs = client.pop(TOPIC, wait=wait)
    for job in jobs:
        try:
            send(job.body["url"], job.body["payment"])
        except NoResponseFromMerchant as error:
            client.release(job, error=str(error))
        else:
            client.finish(job)
    return len(jobs)

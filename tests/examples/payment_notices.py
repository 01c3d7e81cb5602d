"""A merchant is told of a payment until it answers: at once, then after 2 min, 10 min, 10 min, 1 h, 2 h, 6 h and 15 h.

One job for each payment. Its `backoff` is the list of waits: the consumer sends the notice and finishes the job when
the merchant has answered; else it gives the job back, and the service knows how long to wait. After the last notice
without an answer the job is dead: it is kept, shows the last error, and can be redriven when the merchant is back.

``tests/acceptance/test_examples.py`` runs this against a real service.
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


class NoAnswerFromMerchant(Exception):
    """The merchant's server cannot be reached, or does not say that it has understood."""


def announce(client: Client, payment: str, merchant_url: str) -> None:
    """A payment has come in: see to it that its merchant knows."""
    client.put(TOPIC, {"payment": payment, "url": merchant_url}, id=payment, backoff=_BACKOFF, on_conflict="keep")


def send_what_is_due(client: Client, send: Callable[[str, str], None], *, wait: float = 20) -> int:
    """A consumer's turn: send one notice, waiting until one is due; returns how many there were, 0 or 1.

    `send(merchant_url, payment)` posts it and raises NoAnswerFromMerchant. It has 60 seconds, the job's lease; a
    consumer that dies meanwhile is followed by another one after that.
    """
    jobs = client.pop(TOPIC, wait=wait)
    for job in jobs:
        try:
            send(job.body["url"], job.body["payment"])
        except NoAnswerFromMerchant as error:
            client.release(job, error=str(error))
        else:
            client.finish(job)
    return len(jobs)

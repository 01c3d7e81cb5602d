"""An order is closed 30 minutes after it was placed, unless it is paid by then.

One job for each order, with the order's number as its id, so that whoever takes the payment can cancel it without
having kept anything. The job only says "look now": what is true of an order stands in the shop's own records, and the
closer asks them. So a payment that comes at the very moment of closing is decided in one place, whatever the order of
events.

``tests/acceptance/test_examples.py`` runs this against a real service.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Literal

from deferd import Client, JobCancelled, JobNotFound

TOPIC = "orders.close"
TIME_TO_PAY = timedelta(minutes=30)

Orders = dict[str, Literal["unpaid", "paid", "closed"]]
"""The shop's records: a table of a database in real life."""


def place(client: Client, orders: Orders, order: str) -> None:
    """Take an order. The job comes first: one for an order that then was not placed does no harm, none would."""
    client.put(TOPIC, {"order": order}, id=order, delay=TIME_TO_PAY, on_conflict="keep")
    orders[order] = "unpaid"


def pay(client: Client, orders: Orders, order: str) -> bool:
    """Take the payment, unless the order is closed; returns whether it was taken."""
    if orders[order] == "closed":
        return False
    orders[order] = "paid"
    with contextlib.suppress(JobNotFound):  # the closer has just been there, and found it paid
        client.cancel(TOPIC, order)
    return True


def close_what_is_unpaid(client: Client, orders: Orders, *, wait: float = 20) -> list[str]:
    """The closer's turn: close up to 100 orders whose time is over, waiting for the first; returns which.

    It runs in an endless loop, in as many processes as are needed. One that dies before it has finished a job leaves
    it to be handed out again when its lease ends.
    """
    closed = []
    for job in client.pop(TOPIC, count=100, wait=wait):
        order = job.body["order"]
        if orders.get(order) == "unpaid":  # "UPDATE ... WHERE status = 'unpaid'"
            orders[order] = "closed"
            closed.append(order)
        with contextlib.suppress(JobCancelled):  # it was paid since the pop
            client.finish(job)
    return closed

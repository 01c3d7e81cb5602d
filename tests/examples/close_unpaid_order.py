"""An order is closed 30 minutes after it was placed, unless it is paid by then.

Each order has one job, with the order's number as its id, so that the code that takes the payment can cancel it
without storing anything. The job only triggers a check: the state of an order is in the shop's own records, and the
closer reads them. A payment at the moment of closing is therefore decided in one place, in any order of events.

``tests/acceptance/project/test_examples.py`` runs this against a real service.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Literal

from deferd import Client, JobCancelled, JobNotFound

TOPIC = "orders.close"
TIME_TO_PAY = timedelta(minutes=30)

Orders = dict[str, Literal["unpaid", "paid", "closed"]]
"""The shop's records: in a real shop, a database table."""


def place(client: Client, orders: Orders, order: str) -> None:
    """Place an order. The job is put first: a job without an order is harmless, an order without a job is not."""
    client.put(TOPIC, {"order": order}, id=order, delay=TIME_TO_PAY, on_conflict="keep")
    orders[order] = "unpaid"


def pay(client: Client, orders: Orders, order: str) -> bool:
    """Take the payment unless the order is closed. Returns whether it was taken."""
    if orders[order] == "closed":
        return False
    orders[order] = "paid"
    with contextlib.suppress(JobNotFound):  # the closer has just seen that it is paid
        client.cancel(TOPIC, order)
    return True


def close_unpaid_orders(client: Client, orders: Orders, *, wait: float = 20) -> list[str]:
    """Close up to 100 orders whose time is over, waiting for the first. Returns the closed orders.

    Runs in a loop, in any number of processes. If one dies before it has finished a job, the job is delivered again
    when its lease ends.
    """
    closed = []
    for job in client.pop(TOPIC, count=100, wait=wait):
        order = job.body["order"]
        if orders.get(order) == "unpaid":  # "UPDATE ... WHERE status = 'unpaid'"
            orders[order] = "closed"
            closed.append(order)
        with contextlib.suppress(JobCancelled):  # it was paid after the pop
            client.finish(job)
    return closed

"""The shapes of docs/transactions.md lose no job when the program ends between the database and the service."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deferd import StoreUnavailable
from deferd.testing import ServiceForTests
from tests.acceptance.project.test_readme import blocks, module_of


class Crash(BaseException):
    """The program ends here."""


@pytest.fixture
def shop(service: ServiceForTests, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The code of the page, against the service and an empty database."""
    names = module_of("\n".join(blocks("transactions", "python")), service)
    names["DATABASE"] = str(tmp_path / "shop.db")
    with names["jobs"]:
        yield SimpleNamespace(names=names, **names)


def state_of(shop: SimpleNamespace, number: str) -> str | None:
    with shop.database() as db:
        row = db.execute("SELECT state FROM orders WHERE number = ?", (number,)).fetchone()
    return None if row is None else str(row[0])


def failing(error: BaseException) -> Any:
    def call(*_arguments: Any, **_fields: Any) -> Any:
        raise error

    return call


def half_an_hour_later(service: ServiceForTests, shop: SimpleNamespace) -> None:
    service.clock.advance(timedelta(minutes=31))
    service.run_until_idle(shop.worker)


def test_a_job_that_was_put_first_and_has_no_order_does_nothing(
    service: ServiceForTests, shop: SimpleNamespace
) -> None:
    shop.names["database"] = failing(Crash())
    with pytest.raises(Crash):
        shop.place_after_put("1")
    shop.names["database"] = shop.database
    half_an_hour_later(service, shop)
    assert state_of(shop, "1") is None
    shop.place_after_put("2")
    half_an_hour_later(service, shop)
    assert state_of(shop, "2") == "closed"


def test_a_sweep_puts_the_job_that_is_missing_after_a_commit(service: ServiceForTests, shop: SimpleNamespace) -> None:
    put = shop.jobs.put
    shop.jobs.put = failing(Crash())
    with pytest.raises(Crash):
        shop.place("1")
    shop.jobs.put = failing(StoreUnavailable("away"))
    shop.place("2")
    shop.jobs.put = put
    shop.place("3")
    assert [shop.sweep(), shop.sweep()] == [2, 0]
    half_an_hour_later(service, shop)
    assert [state_of(shop, number) for number in "123"] == ["closed"] * 3


def test_the_outbox_does_what_was_committed_and_nothing_else(service: ServiceForTests, shop: SimpleNamespace) -> None:
    shop.place_with_outbox("1")
    with pytest.raises(sqlite3.IntegrityError):
        shop.place_with_outbox("1")
    assert [shop.relay(), shop.relay()] == [1, 0]
    assert [job.id for job in shop.jobs.jobs("orders.close")] == ["1"]
    shop.place_with_outbox("2")
    shop.pay("2")
    assert shop.relay() == 2
    half_an_hour_later(service, shop)
    assert (state_of(shop, "1"), state_of(shop, "2")) == ("closed", "paid")


def test_a_relay_that_ends_before_its_delete_puts_nothing_twice(
    service: ServiceForTests, shop: SimpleNamespace
) -> None:
    shop.place_with_outbox("1")
    with shop.database() as db:
        [(row, _, fields)] = db.execute("SELECT id, call, fields FROM outbox").fetchall()
    shop.relay()
    half_an_hour_later(service, shop)
    with shop.database() as db:
        db.execute("INSERT INTO outbox VALUES (?, 'put', ?)", (row, fields))
    assert shop.relay() == 1
    assert [job.id for job in shop.jobs.jobs("orders.close")] == []

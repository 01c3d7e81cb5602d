"""Which relays are known, which of them works, and since when none does."""

from __future__ import annotations

import pytest

from deferd.engine.inspection import relays
from deferd.engine.inspection.relays import Relays, Report
from tests.integration.engine.engine_driver import EngineDriver

SHOP, MAIL = "db:5432/shop", "db:5432/mail"
KEY = "deferd:{0}:relays"


async def report(driver: EngineDriver, name: str, *, works: bool = False, database: str = SHOP) -> int:
    return await driver.engine.relays.report(name, Report(database, works, rows=3, refused=1, lag_s=0.5))


async def read(driver: EngineDriver) -> Relays:
    driver.engine.relays._reads.forget(None)
    return await driver.engine.relays.read()


async def states(driver: EngineDriver) -> dict[str, str]:
    return {one.name: one.state for one in (await read(driver)).relays}


async def test_one_relay_works_for_each_database(driver: EngineDriver) -> None:
    await report(driver, "b", works=True)
    await report(driver, "a")
    await report(driver, "m", works=True, database=MAIL)
    assert await states(driver) == {"m": "works", "b": "works", "a": "waits"}
    driver.move_clock(1)
    await report(driver, "a", works=True)  # b was killed
    assert await states(driver) == {"m": "works", "a": "works", "b": "silent"}
    mail, shop = (await read(driver)).outboxes()
    assert (mail.worker, shop.worker) == (mail.last, shop.last)
    assert (shop.last.name, shop.last.report.rows, shop.database) == ("a", 3, SHOP)


async def test_an_outbox_is_stopped_since_its_relay_last_worked(driver: EngineDriver) -> None:
    began_ms = await report(driver, "a")
    driver.move_clock(5)
    await report(driver, "a")
    [outbox] = (await read(driver)).outboxes()
    assert (outbox.worker, outbox.stopped_ms) == (None, began_ms)
    worked_ms = await report(driver, "a", works=True)
    driver.move_clock(5)
    await report(driver, "a")
    [outbox] = (await read(driver)).outboxes()
    assert (outbox.worker, outbox.stopped_ms) == (None, worked_ms)
    worked_ms = await report(driver, "a", works=True)
    driver.move_clock(31)
    [outbox] = (await read(driver)).outboxes()
    assert (outbox.worker, outbox.stopped_ms, outbox.last.state) == (None, worked_ms, "silent")


async def test_a_silent_relay_is_left_out_unless_it_is_the_last_of_its_database(driver: EngineDriver) -> None:
    await report(driver, "old", works=True)
    await report(driver, "m", works=True, database=MAIL)
    driver.move_clock(301)
    assert await states(driver) == {"old": "silent", "m": "silent"}
    await report(driver, "new", works=True)
    assert await states(driver) == {"new": "works", "m": "silent"}
    driver.move_clock(86_400 - 301)
    await report(driver, "new", works=True)
    assert driver.server.command("HKEYS", KEY) == [b"new"]
    assert 0 < driver.server.command("PTTL", KEY) <= 86_400_000


async def test_the_relays_that_reported_last_are_kept(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "RELAYS_MAX", 3)
    for name in ("a", "b", "c", "a", "d", "e"):
        await report(driver, name)
        driver.move_clock(1)
    assert set(await states(driver)) == {"a", "d", "e"}


@pytest.mark.parametrize("damage", [("SET", KEY, "x"), ("HSET", KEY, "x", "y", "z", "1 2 3 {}", "v", "\x00")])
async def test_what_another_program_has_written_is_no_relay(driver: EngineDriver, damage: tuple[str, ...]) -> None:
    driver.server.command(*damage)
    assert (await read(driver)).relays == []
    await report(driver, "a", works=True)
    assert await states(driver) == {"a": "works"}

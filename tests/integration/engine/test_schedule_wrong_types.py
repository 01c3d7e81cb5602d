"""Keys of schedules that are of the wrong type: the check of the store finds and repairs them, and raises nothing."""

from __future__ import annotations

import pytest

from tests.integration.engine.schedule_driver import ScheduleDriver


@pytest.mark.parametrize("key", ["schedules", "schedule_due", "due"])
async def test_a_key_of_the_wrong_type_is_found_and_repaired(schedules: ScheduleDriver, key: str) -> None:
    await schedules.schedule()
    schedules.server.command("SET", f"deferd:{{0}}:{key}", "x")
    found = await schedules.engine.consistency.audit_store()
    assert not found.clean
    assert (await schedules.engine.consistency.audit_store(repair=True)).repaired
    assert (await schedules.engine.consistency.audit_store()).clean

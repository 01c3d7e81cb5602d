"""Windows and instants for tests of opening hours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from deferd.contract.model import TopicSettings
from deferd.engine.record import JobRecord
from tests.integration.engine.engine_driver import TOPIC, EngineDriver

OFFICE: dict[str, Any] = {"zone": "Europe/Berlin", "from": "09:00", "to": "17:00"}
NIGHT: dict[str, Any] = {"zone": "UTC", "from": "22:00", "to": "06:00"}
MONDAY_NOON = "2030-01-14T12:00:00+00:00"
MONDAY_EVENING = "2030-01-14T20:00:00+00:00"
TUESDAY_OPENING = "2030-01-15T08:00:00+00:00"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def instant(at_ms: int | None) -> str:
    assert at_ms is not None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


async def now_ms(driver: EngineDriver) -> int:
    return int(await driver.engine.placer._clock.now_ms(0))


async def move_to(driver: EngineDriver, at: str) -> None:
    driver.move_clock((ms(at) - await now_ms(driver)) / 1000)


def asked(record: JobRecord) -> str:
    return instant(record.due_at_ms - record.placement.moved_ms)


async def set_topic(driver: EngineDriver, **settings: Any) -> None:
    await driver.topics.set(TOPIC, TopicSettings.model_validate(settings))


def as_stored(window: dict[str, Any]) -> str:
    """The JSON that is stored for a window."""
    shown = {name: value for name, value in window.items() if value != "UTC"}
    return "{" + ",".join(f'"{name}":"{value}"' for name, value in shown.items()) + "}"

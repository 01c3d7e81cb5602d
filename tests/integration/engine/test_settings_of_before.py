"""Settings that version 0.1 has stored are read as what they were: by puts, by the view, and by what rewrites them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.fields import PLACING, POLICY
from deferd.contract.model import TopicSettings
from deferd.contract.push import SetPush
from deferd.engine.topic_settings import UNREADABLE_SETTINGS, read_settings
from tests.integration.engine.engine_driver import TOPIC, EngineDriver

SETTINGS = {
    "t": 7000,
    "m": 3,
    "b": {"kind": "fixed", "seconds": 5.0, "jitter": 0.0},
    "x": 9000,
    "r": 1000,
    "q": 2000,
    "i": 8000,
    "d": 60000,
    "w": '["{\\"from\\":\\"09:00\\"}",4000]',
    "j": 100,
    "l": 0,
    "ev": 10,
}
"""Written by the commit 4f871363 for all of these."""
READ = TopicSettings.model_validate(
    {
        "ttr": 7,
        "max_attempts": 3,
        "backoff": {"kind": "fixed", "seconds": 5},
        "ttl": 9,
        "retain": 1,
        "dead_retain": 2,
        "time_limit": 8,
        "deadline": 60,
        "window": {"from": "09:00"},
        "spread": 4,
        "max_jobs": 100,
        "durability": "memory",
        "events": 10,
    }
)


@pytest.fixture
def before(driver: EngineDriver) -> EngineDriver:
    driver.server.command("HSET", "deferd:{0}:settings", TOPIC, orjson.dumps(SETTINGS))
    driver.server.command("ZADD", "deferd:{0}:topics", 0, TOPIC)
    return driver


async def test_the_view_shows_them(before: EngineDriver) -> None:
    assert (await before.topics.get(TOPIC)).settings == READ


async def test_a_put_takes_its_defaults_from_them(before: EngineDriver) -> None:
    job = await before.put("a")
    assert [job.stored(field.name) for field in POLICY if field.name not in PLACING] == [
        *(7000, 3, SETTINGS["b"], 9000, 1000, 2000, 8000, 60000)
    ]
    assert (job.placement.window, job.placement.spread_ms) == ('{"from":"09:00"}', 4000)


async def test_a_default_of_zero_is_none(driver: EngineDriver) -> None:
    driver.server.command("HSET", "deferd:{0}:settings", TOPIC, '{"m":0,"x":0,"i":0,"d":0}')
    driver.server.command("ZADD", "deferd:{0}:topics", 0, TOPIC)
    job = await driver.put("a")
    assert [job.stored(name) for name in ("max_attempts", "ttl", "time_limit", "deadline")] == [0, 0, 0, 0]
    assert (await driver.topics.get(TOPIC)).settings.model_dump(exclude_unset=True) == dict.fromkeys(
        ("max_attempts", "ttl", "time_limit", "deadline")
    )


async def test_a_pause_and_a_push_keep_them(before: EngineDriver) -> None:
    await before.topics.pause(TOPIC)
    await before.engine.push.set(
        TOPIC, SetPush(url="http://localhost/", secrets=["whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    )
    view = await before.topics.resume(TOPIC)
    assert view.settings == READ
    assert (await before.put("a", delay=1)).stored("deadline") == 60000


async def test_new_ones_replace_them(before: EngineDriver) -> None:
    await before.topics.set(TOPIC, TopicSettings(deadline=30, durability="memory"))
    stored = before.server.command("HGET", "deferd:{0}:settings", TOPIC)
    assert orjson.loads(stored) == {"po": {"l": 30000}, "du": 0}
    assert (await before.put("a")).stored("deadline") == 30000


async def test_their_durability_is_that_of_puts_that_name_none(driver: EngineDriver) -> None:
    for settings in ('{"l":3}', '{"du":3}'):
        driver.server.command("HSET", "deferd:{0}:settings", TOPIC, settings)
        view = await driver.topics.get(TOPIC)
        assert view.settings.durability == "replicated:2"
        with pytest.raises(StoreUnavailable, match="replicated:2"):
            await driver.put("a", run_at=datetime.now(UTC))


@pytest.mark.parametrize(
    "damaged",
    [
        *({"j": {}}, {"m": []}, {"l": None}, {"l": -5}, {"du": None}, {"du": 99}, {"pl": "[1]"}, {"d": ""}),
        *({"po": None}, {"po": 5}, {"po": {"x": {}}}, {"po": {"b": 1}}),
    ],
    ids=str,
)
def test_what_another_program_has_damaged_is_not_taken_for_none(damaged: dict[str, Any]) -> None:
    with pytest.raises(UNREADABLE_SETTINGS):
        read_settings(damaged)

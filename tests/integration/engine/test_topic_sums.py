"""The sums over all topics without metrics of their own: complete, shared, and read in steps that send few bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from deferd.api import metrics
from deferd.api.metrics import exposition
from tests.integration.engine.engine_driver import EngineDriver
from tests.integration.store.store_servers import StoreServer

TOPICS = 1000
OWN_LABELS = 100
MAKE_TOPICS = """
for number = 1, ARGV[1] do
  local topic = string.format('t%05d', number)
  local key = 'deferd:{0}:' .. topic
  redis.call('ZADD', 'deferd:{0}:topics', 0, topic)
  redis.call('HSET', 'deferd:{0}:settings', topic, '')
  redis.call('HSET', key .. ':pool', 'a', 'record')
  redis.call('ZADD', key .. ':dead', 9000000000000, 'a')
end
"""


@pytest.fixture
def topics(server: StoreServer) -> None:
    """Topics with one dead job each, as they are stored."""
    server.command("EVAL", MAKE_TOPICS, 0, TOPICS)


@pytest.fixture
def sent(driver: EngineDriver) -> list[int]:
    """How many keys and arguments each page of the sums was asked for with, as the test goes on."""
    sent: list[int] = []
    run = driver.engine._scripts.run

    async def run_and_count(verb: str, keys: Sequence[str], args: Sequence[Any], **options: Any) -> Any:
        if verb.endswith("totals"):
            sent.append(len(keys) + len(args))
        return await run(verb, keys, args, **options)

    driver.engine._scripts.run = run_and_count  # type: ignore[method-assign]
    return sent


def dead_of_others(text: bytes) -> list[bytes]:
    """The lines with the dead jobs of the topics without metrics of their own."""
    return [line for line in text.splitlines() if b'state="dead",topic="_other"' in line]


@pytest.mark.usefixtures("topics")
async def test_scrapes_at_the_same_time_read_all_other_topics_once(driver: EngineDriver, sent: list[int]) -> None:
    texts = await asyncio.gather(*(exposition(driver.engine, OWN_LABELS) for _ in range(5)))
    texts.append(await exposition(driver.engine, OWN_LABELS))  # kept for 200 times as long as it took
    line = b'deferd_jobs{state="dead",topic="_other"} %.1f' % (TOPICS - OWN_LABELS)
    assert [dead_of_others(text) for text in texts] == [[line]] * 6
    assert len(sent) == TOPICS // 250 + 1
    assert sum(sent) <= OWN_LABELS + 3 * len(sent), "no names and keys of topics are sent but those with metrics"


@pytest.mark.usefixtures("topics")
async def test_a_scrape_does_not_wait_for_long_for_the_other_topics(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(metrics, "OTHERS_TIMEOUT_S", 0)
        text = await exposition(driver.engine, OWN_LABELS)
    assert b"deferd_store_up 1.0" in text
    assert b'deferd_jobs{state="dead",topic="t00001"} 1.0' in text
    assert dead_of_others(text) == []
    assert len(dead_of_others(await exposition(driver.engine, OWN_LABELS))) == 1

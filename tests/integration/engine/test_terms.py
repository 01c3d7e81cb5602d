"""What a call takes for granted of its topics: if that is outdated, nothing is stored, and the next call does it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import chain, combinations, cycle
from typing import Any

import pytest

from deferd.contract.errors import DurabilityUnavailable, JobExists, StoreUnavailable
from deferd.contract.model import ChangeJob, JobState, PutJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.partitions import Layout, names_of
from deferd.engine.placement import ANY_DEFAULT, Terms
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, json_bytes
from deferd.engine.script_arguments import encode_put, receipt_bytes
from deferd.engine.shelf import NOT_ASKED
from deferd.store.durability_levels import FSYNC, MEMORY
from tests.integration.engine.durable_puts import TOPIC, engine_on, job, put_when_in_step
from tests.integration.store.store_servers import Pair

SHARDS = 8
COUNT = 4
WINDOW = '{"from":"09:00","to":"17:00"}'
OTHER_WINDOW = {"from": "22:00", "to": "06:00"}
REPLICATED = FSYNC + 1
OUTDATED: dict[str, dict[str, Any]] = {
    "durability": {"durability": "replicated:1"},
    "partitions": {"partitions": COUNT},
    "due_defaults": {"window": {"from": "09:00", "to": "17:00"}},
}
KINDS = [kinds for count in (1, 2, 3) for kinds in combinations(OUTDATED, count)]
"""Each of the terms alone, two, and all of them."""
ALONE_OR_ALL = [kinds for kinds in KINDS if len(kinds) != 2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
async def engines(pair: Pair) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two processes on one store; neither learns anything by messages."""
    pair.clear()
    async with engine_on(pair.primary.url, shards=SHARDS) as first, engine_on(pair.primary.url, shards=SHARDS) as stale:
        await put_when_in_step(stale, "warm-up", "replicated:1", topic="warm-up")
        yield first, stale


@pytest.fixture
def first(engines: tuple[Engine, Engine]) -> Engine:
    return engines[0]


@pytest.fixture
def stale(engines: tuple[Engine, Engine]) -> Engine:
    """What this one knows is outdated once `first` has changed a topic."""
    return engines[1]


def settings_of(kinds: Sequence[str], **more: Any) -> TopicSettings:
    settings = chain.from_iterable(OUTDATED[kind].items() for kind in kinds)
    return TopicSettings.model_validate({**dict(settings), **more})


def before_each(engine: Engine, do: Callable[[str], Awaitable[Any]]) -> None:
    """Let something happen before each call of a script, which gets its name."""
    scripts, run = engine._scripts, engine._scripts.run

    async def run_after(verb: str, *args: Any, **options: Any) -> Any:
        await do(verb)
        return await run(verb, *args, **options)

    scripts.run = run_after  # type: ignore[method-assign]


def counted(engine: Engine) -> Counter[str]:
    """How often each script is called from now on."""
    calls: Counter[str] = Counter()

    async def count(verb: str) -> None:
        calls[verb] += 1

    before_each(engine, count)
    return calls


def id_of_partition(number: int) -> str:
    """An id that belongs into this partition of four."""
    ids = (f"job-{each}" for each in range(1000))
    return next(one for one in ids if Layout((COUNT,)).home(TOPIC, one) == names_of(TOPIC, COUNT)[number])


def ids_in(pair: Pair, engine: Engine, partition: str = TOPIC) -> set[str]:
    return {key.decode() for key in pair.primary.command("HKEYS", engine._keys.named(partition, "pool"))}


async def check_window(engine: Engine, topic: str, job_id: str, kinds: Sequence[str]) -> None:
    record = await engine.queue.get(topic, job_id)
    assert (record.placement.window or "") == (WINDOW if "due_defaults" in kinds else "")


# What the scripts compare


@pytest.mark.parametrize("verb", ["put", "check_puts", "finish_and_put"])
async def test_a_script_returns_all_terms_when_some_are_others_and_stores_nothing(
    pair: Pair, first: Engine, verb: str
) -> None:
    await first.puts.put(job("held", delay=0))
    await first.queue.pop(TOPIC, [PopRequest(1)])
    await first.topics.set(TOPIC, settings_of(tuple(OUTDATED)))
    due_defaults = json_bytes([WINDOW, 0]).decode()
    current = Terms(REPLICATED, COUNT, due_defaults)
    terms = [REPLICATED, COUNT, due_defaults.encode(), NOT_ASKED]
    outdated: dict[str, Any] = {"durability": MEMORY, "partitions": 1, "due_defaults": ""}
    put, keys = encode_put(job("a")), first._keys.of_topic(TOPIC)
    for kinds in (*KINDS, ()):
        sent = current._replace(**{kind: outdated[kind] for kind in kinds}).argument()
        args: dict[str, tuple[Any, ...]] = {
            "put": (TOPIC, 0, sent, put.id, put.job),
            "check_puts": (TOPIC, sent, "", put.id, put.job),
            "finish_and_put": (TOPIC, "held", receipt_bytes(ANY_RECEIPT), TOPIC, sent, 1, put.id, put.job),
        }
        reply = await first._scripts.run(verb, keys * (2 if verb == "finish_and_put" else 1), args[verb])
        if kinds:
            assert reply == [b"terms", *([[1, *terms]] if verb == "finish_and_put" else terms)]
            assert ids_in(pair, first) == {"held"}
    assert reply[0] == b"done"
    stored = {"put": {"held", "a"}, "check_puts": {"held"}, "finish_and_put": {"a"}}
    assert ids_in(pair, first) == stored[verb]


async def test_jobs_that_name_their_durability_need_no_default(first: Engine) -> None:
    await first.topics.set(TOPIC, settings_of(["durability"]))
    put, keys = encode_put(job("a")), first._keys.of_topic(TOPIC)
    reply = await first._scripts.run("put", keys, (TOPIC, 0, Terms(ANY_DEFAULT, 1, "").argument(), put.id, put.job))
    assert reply == [b"done", 0, [1], REPLICATED]


async def test_a_put_above_the_default_is_sent_again_but_a_finish_may_be_above_it(first: Engine) -> None:
    await first.topics.set(TOPIC, settings_of(["durability"]))
    put, keys = encode_put(job("a")), first._keys.of_topic(TOPIC)
    above = Terms(REPLICATED + 1, 1, "").argument()
    assert await first._scripts.run("put", keys, (TOPIC, 0, above, put.id, put.job)) == [
        b"terms",
        REPLICATED,
        1,
        b"",
        NOT_ASKED,
    ]
    assert await first._scripts.run("check_puts", keys, (TOPIC, above, "", put.id, put.job)) == [b"done"]


# What callers correct


@pytest.mark.parametrize("number", [0, 1], ids=["first partition", "another"])
@pytest.mark.parametrize("kinds", ALONE_OR_ALL, ids="+".join)
async def test_a_put_corrects_all_terms_in_one_round(
    pair: Pair, first: Engine, stale: Engine, kinds: tuple[str, ...], number: int
) -> None:
    await stale.puts.put(job("before"))
    await first.topics.set(TOPIC, settings_of(kinds))
    job_id = id_of_partition(number)
    calls = counted(stale)
    put = await stale.puts.put(job(job_id))
    assert calls["put"] == 2
    assert put.durability == ("replicated:1" if "durability" in kinds else "memory")
    await check_window(first, TOPIC, job_id, kinds)
    home = names_of(TOPIC, COUNT)[number] if "partitions" in kinds else TOPIC
    assert job_id in ids_in(pair, first, home)
    assert (await stale.puts.put(job(f"{job_id}-again"))).durability == put.durability


@pytest.mark.parametrize("kinds", ALONE_OR_ALL, ids="+".join)
async def test_a_put_that_names_its_level_keeps_it(first: Engine, stale: Engine, kinds: tuple[str, ...]) -> None:
    await stale.puts.put(job("before"))
    await first.topics.set(TOPIC, settings_of(kinds))
    calls = counted(stale)
    put = await stale.puts.put(job(id_of_partition(1), "memory"))
    assert put.durability == "memory"
    assert calls["put"] == (1 if kinds == ("durability",) else 2)
    with pytest.raises(DurabilityUnavailable, match="appendonly is no"):
        await stale.puts.put(job(id_of_partition(2), "fsync"))
    await check_window(first, TOPIC, put.record.id, kinds)


@pytest.mark.parametrize("kinds", ALONE_OR_ALL, ids="+".join)
async def test_a_batch_corrects_all_terms(first: Engine, stale: Engine, kinds: tuple[str, ...]) -> None:
    ids = [f"j{number}" for number in range(40)]
    await stale.puts.put(job("before"))
    await first.topics.set(TOPIC, settings_of(kinds))
    results = await stale.puts.put_many([job(job_id) for job_id in ids])
    level = "replicated:1" if "durability" in kinds else "memory"
    assert [(one.id, one.status, one.durability) for one in results] == [(job_id, 201, level) for job_id in ids]
    for job_id in ids:
        await check_window(first, TOPIC, job_id, kinds)


@pytest.mark.parametrize("kinds", ALONE_OR_ALL, ids="+".join)
async def test_settings_that_are_removed_again_are_corrected_too(
    first: Engine, stale: Engine, kinds: tuple[str, ...]
) -> None:
    await first.topics.set(TOPIC, settings_of(kinds))
    await stale.puts.put(job("before"))
    await first.topics.set(TOPIC, TopicSettings())  # the partitions stay
    await stale.puts.put(job("a"))  # at the level that was the default, if there was one
    assert (await stale.puts.put(job("b"))).durability == "memory"
    await check_window(first, TOPIC, "a", ())


@pytest.mark.parametrize("kinds", ALONE_OR_ALL, ids="+".join)
async def test_a_put_goes_where_a_former_partition_holds_its_id(
    pair: Pair, first: Engine, stale: Engine, kinds: tuple[str, ...]
) -> None:
    job_id = id_of_partition(1)
    await stale.puts.put(job(job_id))
    await first.topics.set(TOPIC, settings_of([*kinds, "partitions"]))
    put = await stale.puts.put(job(job_id, on_conflict="replace", body=7))
    assert put.durability == ("replicated:1" if "durability" in kinds else "memory")
    record = await first.queue.get(TOPIC, job_id)
    assert record.body == b"7"
    await check_window(first, TOPIC, job_id, kinds)
    assert job_id in ids_in(pair, first)
    assert job_id not in ids_in(pair, first, names_of(TOPIC, COUNT)[1])


async def test_a_put_goes_home_when_the_former_partition_has_lost_the_job_meanwhile(
    pair: Pair, first: Engine, stale: Engine
) -> None:
    job_id = id_of_partition(1)
    await first.puts.put(job(job_id))
    await first.topics.set(TOPIC, settings_of(tuple(OUTDATED)))

    async def cancel(verb: str) -> None:
        if verb == "put_where_held" and job_id in ids_in(pair, first):
            await first.cancels.cancel(TOPIC, job_id)

    before_each(stale, cancel)
    calls = counted(stale)
    assert (await stale.puts.put(job(job_id))).durability == "replicated:1"
    assert calls["put_where_held"] == 1
    assert job_id in ids_in(pair, first, names_of(TOPIC, COUNT)[1])
    await check_window(first, TOPIC, job_id, ["due_defaults"])


async def test_puts_of_a_stale_process_are_stored_once_while_the_topic_grows(first: Engine, stale: Engine) -> None:
    ids = [f"j{number}" for number in range(80)]

    async def put_all() -> None:
        for job_id in ids:
            await stale.puts.put(job(job_id))

    async def change_all() -> None:
        for count in (2, 4, 8):
            for kinds in KINDS:
                await first.topics.set(TOPIC, settings_of(kinds, partitions=count))

    await asyncio.gather(put_all(), change_all())
    for job_id in ids:
        with pytest.raises(JobExists):
            await first.puts.put(job(job_id))
    assert (await first.topics.get(TOPIC)).counts[JobState.DELAYED] == len(ids)


async def test_an_outdated_default_that_is_not_available_any_more_is_corrected_with_the_rest(
    pair: Pair, first: Engine, stale: Engine
) -> None:
    await first.topics.set(TOPIC, TopicSettings(durability="replicated:2"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="1 of 2 replicas"):
            await stale.puts.put(job("a"))
    await first.topics.set(TOPIC, settings_of(["partitions", "due_defaults"]))
    job_id = id_of_partition(1)
    assert (await stale.puts.put(job(job_id))).durability == "memory"
    await check_window(first, TOPIC, job_id, ["due_defaults"])
    assert job_id in ids_in(pair, first, names_of(TOPIC, COUNT)[1])


# Finishes that put


def neighbours(engine: Engine, count: int) -> list[str]:
    """Topics of the shard of TOPIC."""
    names = (f"topic-{number}" for number in range(1000))
    found = [name for name in names if engine._keys.shard_of(name) == engine._keys.shard_of(TOPIC)]
    return found[:count]


@pytest.mark.parametrize("kinds", ALONE_OR_ALL, ids="+".join)
async def test_a_finish_corrects_the_terms_of_all_topics_in_one_round(
    first: Engine, stale: Engine, kinds: tuple[str, ...]
) -> None:
    topics = [TOPIC, *neighbours(first, 3)]
    job_id = id_of_partition(0)
    await stale.puts.put(job("held", delay=0))
    [[held]] = (await stale.queue.pop(TOPIC, [PopRequest(1)])).jobs
    for topic in topics:
        await stale.puts.put(job("before", topic=topic))
        await first.topics.set(topic, settings_of(kinds))
    calls = counted(stale)
    results = await stale.queue.finish_and_put(TOPIC, "held", held.receipt, [job(job_id, topic=one) for one in topics])
    assert calls["finish_and_put"] == 2
    level = "replicated:1" if "durability" in kinds else "memory"
    assert [(one.topic, one.status, one.durability) for one in results] == [(topic, 201, level) for topic in topics]
    for topic in topics:
        await check_window(first, topic, job_id, kinds)


async def test_a_default_does_not_count_for_puts_that_name_their_level(first: Engine, stale: Engine) -> None:
    await stale.puts.put(job("held", delay=0))
    [[held]] = (await stale.queue.pop(TOPIC, [PopRequest(1)])).jobs
    await first.topics.set(TOPIC, settings_of(tuple(OUTDATED)))
    [result] = await stale.queue.finish_and_put(TOPIC, "held", held.receipt, [job(id_of_partition(0), "memory")])
    assert (result.status, result.durability) == (201, "memory")
    await check_window(first, TOPIC, id_of_partition(0), ["due_defaults"])


async def test_the_first_topic_that_does_not_pass_decides(first: Engine, stale: Engine) -> None:
    [other] = neighbours(first, 1)
    for topic in (TOPIC, other):
        await stale.puts.put(job("taken", topic=topic))
    await first.topics.set(other, TopicSettings(durability="fsync"))
    await stale.puts.put(job("held", delay=0))
    [[held]] = (await stale.queue.pop(TOPIC, [PopRequest(1)])).jobs

    async def finish(*puts: PutJob) -> None:
        await stale.queue.finish_and_put(TOPIC, "held", held.receipt, puts)

    with pytest.raises(JobExists):
        await finish(job("taken"), job("a", topic=other))
    with pytest.raises(DurabilityUnavailable, match=f"the default of topic {other!r}"):
        await finish(job("a", topic=other), job("taken"))
    assert (await first.queue.get(TOPIC, "held")).state is JobState.RESERVED


# When they keep changing


def keep_changing(stale: Engine, verb: str, change: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Let another process change the window before each call of a script."""
    windows = cycle([OUTDATED["due_defaults"], {"window": OTHER_WINDOW}])

    async def change_before(called: str) -> None:
        if called == verb:
            await change(next(windows))

    before_each(stale, change_before)


async def test_a_put_gives_up_when_the_settings_keep_changing(pair: Pair, first: Engine, stale: Engine) -> None:
    keep_changing(stale, "put", lambda window: first.topics.set(TOPIC, TopicSettings.model_validate(window)))
    calls = counted(stale)
    with pytest.raises(StoreUnavailable, match=f"^the settings of topic {TOPIC!r} kept changing during the put"):
        await stale.puts.put(job("a"))
    assert 4 <= calls["put"] <= 10
    assert ids_in(pair, first) == set()


async def test_a_finish_gives_up_when_the_settings_keep_changing(pair: Pair, first: Engine, stale: Engine) -> None:
    await stale.puts.put(job("held", delay=0))
    [[held]] = (await stale.queue.pop(TOPIC, [PopRequest(1)])).jobs
    keep_changing(stale, "finish_and_put", lambda window: first.topics.set(TOPIC, TopicSettings.model_validate(window)))
    with pytest.raises(StoreUnavailable, match=f"^the settings of topic {TOPIC!r} kept changing during the finish"):
        await stale.queue.finish_and_put(TOPIC, "held", held.receipt, [job("a")])
    assert (await first.queue.get(TOPIC, "held")).state is JobState.RESERVED
    assert ids_in(pair, first) == {"held"}


async def test_a_change_gives_up_when_the_window_keeps_changing(first: Engine, stale: Engine) -> None:
    before = (await first.puts.put(job("a", window=OTHER_WINDOW))).record
    keep_changing(stale, "change", lambda window: first.queue.change(TOPIC, "a", ChangeJob.model_validate(window)))
    with pytest.raises(StoreUnavailable, match=r"^the window of the job kept changing; nothing was done"):
        await stale.queue.change(TOPIC, "a", ChangeJob(delay=5 * 86_400))
    after = await first.queue.get(TOPIC, "a")
    assert after.due_at_ms - before.due_at_ms < 2 * 86_400_000

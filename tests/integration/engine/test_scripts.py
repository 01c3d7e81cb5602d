"""Running scripts: a store that has lost them, every kind of error, and a store that is out of memory."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import uuid
from importlib.resources import files
from pathlib import Path

import pytest
import uvloop
from redis import exceptions as redis_errors

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import CancelItem, ChangeJob, FinishItem, HeldJob, JobState, PutJob, TopicSettings
from deferd.contract.operations.batches import PutBatchOfJobs
from deferd.contract.operations.push import SetPush
from deferd.contract.operations.schedules_and_calendars import PutCalendar, PutSchedule
from deferd.contract.windows import Window
from deferd.engine import console_store
from deferd.engine.activity_list import Change
from deferd.engine.engine import Engine
from deferd.engine.history import COUNTS
from deferd.engine.inspection.acknowledgements import Acknowledgement
from deferd.engine.inspection.consumers import Sample, SeenConsumer
from deferd.engine.inspection.failing import FailingTopics
from deferd.engine.inspection.relays import Report
from deferd.engine.placement import ANY_DEFAULT, Terms
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.scheduler import ScheduleFilter
from deferd.engine.script_arguments import NO_BOUNDS
from deferd.engine.scripts import translate
from deferd.engine.store_copy import split_key
from deferd.engine.topic_search import TopicSelection
from deferd.engine.topic_sweeps import Pace, Sweep
from deferd.engine.topics import JobFilter
from deferd.shelf.moving import Mover
from deferd.shelf.rows import Rows
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs
from tests.key_kinds import SHARD_KINDS, TOPIC_KINDS, kind_of

SCRIPTS = {
    script.name.removesuffix(".lua"): script.read_text()
    for script in (files("deferd.engine") / "lua").iterdir()
    if script.name.endswith(".lua")
}


async def inspect_everything(engine: Engine) -> None:
    """Run the scripts of operators' reads, whose results are kept for some seconds."""
    for kept in (engine.forecasts, engine.dead_jobs, engine.consumers, engine.consumer_registry, engine.alerts):
        kept._reads._values.clear()
    await engine.forecasts.forecast(None, lambda _: True)
    await engine.dead_jobs.by_error(None, lambda _: True)
    await engine.consumer_registry.publish(Sample([]))
    await engine.consumers.all(lambda _: True)
    engine.histories._reads._values.clear()
    await engine.history_publisher.publish()
    await engine.histories.of_topic(TOPIC, 60)
    engine.finish_rates._reads._values.clear()
    await engine.finish_rates.read([TOPIC], None, lambda _: True)
    engine.finish_rates._best._values.clear()
    await engine.finish_rates.best_of([TOPIC])
    engine.ready_histories._reads._values.clear()
    await engine.ready_histories.of_topics([TOPIC])
    await FailingTopics(engine._scripts, engine._keys).retrying([TOPIC])
    await engine.alerts.now(lambda _: True)
    await engine.groups.pause(TOPIC, "g")
    await engine.groups.page(TOPIC, "ready")
    await engine.groups.resume(TOPIC, "g")
    await engine.alerts._acknowledgements.add({("late", TOPIC): Acknowledgement("warning", "moved", None, 1)}, 0)
    await engine.held_jobs.check_many(TOPIC, [HeldJob(id="a", receipt="0.1")])
    engine.activity.record(Change(operation="pause_topic", by=None, via="api", outcome="done"))
    await engine.activity.page(lambda _: True, None, 10)
    await engine.event_reader.latest([TOPIC, "*"], None, 1)
    sweep = {"kind": "purge", "cutoff": 0, "limit": None, "sweep": {"topic": "gone"}, "change": {}}
    await engine.tasks.begin("t1", sweep, "me")
    await engine.tasks.end(await engine.tasks.get("t1"), "me", "done")
    await engine.tasks.stop("t1")
    await engine.tasks.claim("me")
    await use_session(engine)
    engine.system._reads._values.clear()
    await engine.system.read()
    await engine.request_clock._read()
    await engine.processes.announce()
    await engine.relays.report("r", Report("db:5432/shop", is_working=True, rows=0, refused=0, lag_s=0))
    await engine.relays.read()


async def use_session(engine: Engine) -> None:
    """Open, renew and close one in the store."""
    await engine.console_sessions.open(b"c" * 32, b"k" * 32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(console_store, "SESSION_S", 2 * console_store.SESSION_S)  # so that it is renewed
        assert await engine.console_sessions.key_of(b"c" * 32) == b"k" * 32
    await engine.console_sessions.close(b"c" * 32)


async def push_everything(engine: Engine) -> None:
    """Set, use and remove a push."""
    push = engine.push
    await push.set(
        TOPIC, SetPush(url="https://example.com/", secrets=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], rate=9)
    )
    assert (await push.get(TOPIC)).push.url == "https://example.com/"
    assert await push.take(TOPIC, under_way=0, most=1, timeout_ms=1000)
    await push.note_failure(TOPIC, "down", is_probe=False, pause_ms=0)
    await push.remove(TOPIC)


async def count_everything(engine: Engine) -> None:
    """Run the scripts by which quotas count."""
    await engine.usage.jobs(0, [TOPIC])
    await engine.usage.calls(0, "shop")
    assert [step async for step in engine.usage.record_bytes(TOPIC)]
    assert [page async for page in engine.usage.schedules(0)]


async def check_everything(driver: EngineDriver) -> None:
    """Audit and repair a store with a key that belongs to no job, and read keys as a copy does."""
    driver.server.command("RPUSH", f"{KEY}:items/ghost", "1")
    await driver.engine.consistency.audit_store(repair=True)
    await driver.engine.consistency.audit_topic(TOPIC, repair=True)
    await driver.engine._scripts.run("shard_keys", [f"{KEY}:due"], (0, 1000))
    await driver.engine._scripts.run("key_elements", [f"{KEY}:pool"], ("hash", 0, 1000))


async def shelve_everything(driver: EngineDriver) -> None:
    """Move a job to the shelf and back; the second batch has a number that was taken."""
    scripts, keys = driver.engine._scripts, driver.queue._keys
    await driver.put("far", delay=86_400)
    with tempfile.TemporaryDirectory() as folder, Rows(Path(folder)) as rows:
        mover = Mover(rows, scripts, keys)
        found = await scripts.run("shelve_topics", [keys.of_shard(0, "topics")], ("-", 250, 80_000_000))
        assert TOPIC.encode() in found
        assert await mover.move_out(TOPIC, 0, most=1) == (1, 1)
        await scripts.run("shelve_settle", keys.of_topic(TOPIC), (TOPIC, "in", 1, "none"))
        assert await mover.move_in(TOPIC, ["far"]) == ["far"]
        await mover.close()


async def use_partitions(engine: Engine) -> None:
    """Replace a job that is in the first partition and belongs in the second since its topic has two."""
    moved = PutJob(topic="parted", id="a", on_conflict="replace", delay=600)
    await engine.puts.put(moved)
    await engine.topics.set("parted", TopicSettings(partitions=2))
    assert engine.partitions.known.homes("parted", "a") == ("parted#1", "parted")
    assert (await engine.puts.put(moved)).outcome == "replaced"
    assert (await engine.consistency.audit_topic("parted")).clean


async def cancel_and_undo(engine: Engine) -> None:
    """Cancel the jobs with a tag, and put them back."""
    name = uuid.uuid4().hex
    call = {"select": {"tag": "x"}, "request_id": name, "undo": True}
    await engine.bulk.cancel(CancelSelected.model_validate(call))
    await engine.undos.undo_cancel(name, None)


async def call_everything(driver: EngineDriver) -> None:
    """Run every script at least once, in an order that works from any state."""
    await use_partitions(driver.engine)
    await call_all_of_a_topic(driver)


async def call_all_of_a_topic(driver: EngineDriver) -> None:
    """Run every script but those of partitions."""
    await driver.topics.set(TOPIC, TopicSettings(ttr=30))
    await driver.puts.put(job("a", on_conflict="replace"))
    await driver.puts.put_many([job(job_id, on_conflict="replace", delay=60) for job_id in ("b", "c")])
    await driver.queue.change(TOPIC, "b", ChangeJob(delay=0))
    await driver.held_jobs.return_popped(await driver.pop(2))
    await driver.engine.dispatcher.pop((), selection=TopicSelection(["*"]), request_id="r1")
    await driver.pop(2)
    await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT)
    await driver.deliveries.release(TOPIC, "a", ANY_RECEIPT)
    await driver.deliveries.bury(TOPIC, "b", ANY_RECEIPT)
    await inspect_everything(driver.engine)  # with a dead job
    await driver.engine.sweeps.run(Sweep(verb="redrive", topic=TOPIC), Pace(request="r", kept_ms=60_000))
    assert (await driver.engine.redriven_jobs.became(TOPIC, "r", 2**47)).waiting == 1
    await driver.pop()
    await inspect_everything(driver.engine)  # with a held one
    await driver.queue.finish_many(TOPIC, [FinishItem(id="b")])
    await driver.put("d", on_conflict="replace", window={"from": "01:00", "to": "00:59"})
    await driver.queue.finish_and_put(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT, [job("e", on_conflict="keep")])
    await driver.put("f", on_conflict="keep")
    await driver.queue.pops_and_finishes.pop(TOPIC, 1)
    keys = driver.queue._keys.of_topic(TOPIC)
    await driver.engine._scripts.run("check_puts", keys, (TOPIC, Terms(ANY_DEFAULT, 1, "").argument(), ""))
    for look in (driver.queue.get, driver.queue.watch, driver.topics.why):
        await look(TOPIC, "c")
    await driver.engine.waits._check(TOPIC, [(TOPIC, "c")])
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id="c")])
    await driver.puts.put(job("d", on_conflict="replace", delay=60, tags=["x"]))
    await driver.engine.bulk.reschedule(RescheduleSelected.model_validate({"select": {"tag": "x"}, "by": 1}))
    await cancel_and_undo(driver.engine)
    await driver.puts.put(job("e", on_conflict="replace", delay=60, tags=["x"], group="g"))
    await driver.topics.jobs(TOPIC)
    await driver.topics.search(TOPIC, JobFilter(id_prefix="e"))
    await driver.engine.topic_list.totals([TOPIC])
    await driver.engine.topic_list._sum_of_others(["other"], ())  # the public method keeps what it has read
    await count_everything(driver.engine)
    await check_everything(driver)
    schedules = driver.engine.schedules
    await schedules.put("s", PutSchedule(topic=TOPIC, every=2), NO_BOUNDS, lambda _: None)
    await schedules.page(ScheduleFilter(), None, 10, with_jobs=True)
    await driver.engine._scripts.run("withdraw_run", keys, (TOPIC, "none"))
    await driver.pass_time(2.1)  # runs are due in whole seconds: this one now, the next 3 s after the put or later
    await schedules.delete("s", lambda _: None)
    await use_what_has_a_name(driver.engine)
    assert driver.engine.clock is not None
    await driver.engine.clock.read()
    await shelve_everything(driver)
    await push_everything(driver.engine)
    await purge_jobs(driver.engine, TOPIC)
    await driver.engine.timers[0].resign()


async def use_what_has_a_name(engine: Engine) -> None:
    """Put and delete a calendar; complete a batch, and delete it."""
    await engine.calendars.put("c", PutCalendar(windows=[Window.model_validate({"from": "09:00"})]))
    await engine.calendars.delete("c")
    batch = PutBatchOfJobs.model_validate({"on_end": {"topic": TOPIC}, "expect": 1})
    stored, _ = await engine.batches.put("batch", batch, None)
    await engine.puts.put(job("of-a-batch", batch="batch", delay=60))
    await engine.cancels.cancel(TOPIC, "of-a-batch")
    await engine.batches.page(None, 10, None)
    await engine.consistency.audit_store()
    await engine.batches.delete(stored, None, "cancel")


async def test_every_script_is_sent_again_to_a_store_that_forgot_it(driver: EngineDriver) -> None:
    await call_everything(driver)
    called: set[str] = set()
    run = driver.engine._scripts.run

    async def run_on_a_store_that_forgets(verb: str, *arguments: object, **options: object) -> object:
        if verb not in called:
            called.add(verb)
            driver.server.command("FUNCTION", "FLUSH")
        return await run(verb, *arguments, **options)  # type: ignore[arg-type]

    driver.engine._scripts.run = run_on_a_store_that_forgets  # type: ignore[method-assign]
    await call_everything(driver)
    assert set(SCRIPTS) == called


EVERY_FIVE_MINUTES = {"history/5m"}
"""Kinds of keys that are written, or not, as the clock shows."""
OF_TOPICS_LATER = {"aside"}
OF_SHARDS_LATER = OF_TOPICS_LATER | {"idle", "schedules/missed", "earlier_runs", "tally", "activity/admin"}
"""Kinds of keys of repairs, of later, missed and postponed runs, and of changes by administrators."""


async def use_rare_options(driver: EngineDriver) -> None:
    """Use what leaves keys that most topics do not have."""
    await driver.topics.set(TOPIC, TopicSettings(events=10))
    await driver.put("a", ttl=60, on_end={"topic": TOPIC})
    held = await driver.pop_one()
    await driver.put("a", on_conflict="replace", if_reserved="after")
    await driver.put("b", on_conflict="append")
    await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.put("c", unique_for=60, retain=30)
    await driver.pop(3)
    await driver.queue.finish(TOPIC, "c", ANY_RECEIPT)
    await driver.engine.calendars.put("office", PutCalendar(windows=[Window.model_validate({"from": "09:00"})]))
    call = CancelSelected.model_validate({"select": {"tag": "x"}, "request_id": "r"})
    await driver.engine.bulk.cancel(call, None, "shop")
    await driver.topics.set(TOPIC, TopicSettings.model_validate({"limits": {"per_group": {"rate": {"count": 1}}}}))
    await driver.puts.put_many([job(job_id, group=job_id[0]) for job_id in ("g1", "g2", "h1")])
    await driver.cancels.cancel(TOPIC, "h1")
    assert [found.id for found in await driver.pop(3)] == ["g1"]


async def test_every_key_that_the_scripts_write_is_of_a_known_kind(driver: EngineDriver) -> None:
    seen: set[tuple[str, str]] = set()
    run = driver.engine._scripts.run

    def look() -> None:
        seen.update(split_key(key.decode()) for key in driver.server.command("KEYS", "deferd:{*"))

    async def run_and_look(verb: str, *arguments: object, **options: object) -> object:
        reply = await run(verb, *arguments, **options)  # type: ignore[arg-type]
        look()
        return reply

    driver.engine._scripts.run = run_and_look  # type: ignore[method-assign]
    await call_everything(driver)
    await use_rare_options(driver)
    look()
    assert [(topic, part) for topic, part in seen if kind_of(topic, part) is None] == []
    of_topics, of_shards = (
        {kind_of(topic, part) for topic, part in seen if bool(topic) is named} | EVERY_FIVE_MINUTES
        for named in (True, False)
    )
    assert TOPIC_KINDS - of_topics == OF_TOPICS_LATER
    assert SHARD_KINDS - of_shards == OF_SHARDS_LATER


def test_every_script_has_a_full_header() -> None:
    for verb, source in SCRIPTS.items():
        header = "\n".join(line for line in source.splitlines() if line.startswith("--"))
        assert [part for part in ("KEYS", "Returns", "Bound:") if part not in header] == [], f"{verb}.lua"


def redis_error_classes() -> list[type[Exception]]:
    return [
        found
        for _, found in inspect.getmembers(redis_errors, inspect.isclass)
        if issubclass(found, redis_errors.RedisError)
    ]


SCRIPT_ERRORS = {
    redis_errors.RedisError,
    redis_errors.ResponseError,
    redis_errors.AuthenticationWrongNumberOfArgsError,
    redis_errors.ClusterCrossSlotError,
    redis_errors.DataError,
    redis_errors.ExecAbortError,
    redis_errors.LockError,
    redis_errors.LockNotOwnedError,
    redis_errors.ModuleError,
    redis_errors.NoScriptError,
    redis_errors.NoSuchFieldsetError,
    redis_errors.PubSubError,
    redis_errors.WatchError,
}
"""Errors of incorrect use of the client: these must show as bugs, not as an unavailable store."""


def test_every_error_of_the_client_is_mapped() -> None:
    mapped = {}
    for error in redis_error_classes():
        exception = error.__new__(error)
        Exception.__init__(exception, "text")
        mapped[error] = type(translate(exception))
    assert mapped == {error: type(None) if error in SCRIPT_ERRORS else StoreUnavailable for error in mapped}
    assert mapped.keys() >= SCRIPT_ERRORS


@pytest.mark.parametrize("error", [OSError("x"), ConnectionResetError(), TimeoutError()])
def test_errors_of_the_network_are_mapped(error: Exception) -> None:
    assert isinstance(translate(error), StoreUnavailable)


def test_a_write_to_a_connection_that_was_closed_is_mapped() -> None:
    async def write() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.transport.abort()
            await asyncio.sleep(0.05)
            writer.write(b"x")

    with pytest.raises(RuntimeError) as raised:
        uvloop.run(write())
    assert isinstance(translate(raised.value), StoreUnavailable)
    assert translate(RuntimeError("a bug")) is None


@pytest.mark.parametrize(
    "text",
    [
        "Error running script (call to f_0123): @user_script:5: @user_script: 5: -READONLY You can't write",
        "MISCONF Errors writing to the AOF file: No space left on device script: 0a1b, on @user_script:5.",
        "BUSY Redis is busy",
        "CLUSTERDOWN Hash slot not served",
        "Attempted to access a non local key in a cluster node script: on @user_script:24.",
        "Error running script (call to f_0123): @user_script:5: -OOM command not allowed",
    ],
)
def test_refusals_of_the_store_are_mapped(text: str) -> None:
    assert isinstance(translate(redis_errors.ResponseError(text)), StoreUnavailable)


async def test_without_memory_only_puts_are_refused(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(job_id, retain=600, ttl=3000) for job_id in "abcdefgh"])
    await driver.put("delayed", delay=5)
    await driver.put("lease", ttr=5)
    held = {popped.id: popped for popped in await driver.pop(4, request_id="r1")}
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="memory"):
            await driver.put("new")
        with pytest.raises(StoreUnavailable, match="memory"):
            await driver.put("a", on_conflict="replace")
        with pytest.raises(StoreUnavailable, match="memory"):
            await driver.puts.put_many([job("new2"), job("new3", delay=3)])
        assert {popped.id for popped in await driver.pop(4, request_id="r1")} == set(held)
        await driver.deliveries.touch(TOPIC, "a", held["a"].receipt, ttr_ms=50_000)
        await driver.queue.finish(TOPIC, "a", held["a"].receipt, result={"x": "y" * 100})
        await driver.deliveries.release(TOPIC, "b", held["b"].receipt, error="later")
        await driver.deliveries.bury(TOPIC, "c", held["c"].receipt, error="poison")
        assert await redrive_jobs(driver.engine, TOPIC) == 1
        await driver.cancels.cancel(TOPIC, "d")
        await driver.queue.change(TOPIC, "e", ChangeJob(delay=2, body="x" * 100))
        await driver.topics.pause(TOPIC)
        await driver.topics.resume(TOPIC)
        popped = await driver.pop(5, consumer="worker-1", request_id="r2")
        assert len(popped) == 5
        assert await driver.queue.pops_and_finishes.pop(TOPIC, 1) == []
        await driver.held_jobs.return_popped(popped[:1])
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
        driver.move_clock(10)
        driver.server.command("CONFIG", "SET", "maxmemory", "1")
        await driver.run_timer()
        assert await driver.state("delayed") is JobState.READY
        assert {listed.id for listed in (await driver.topics.jobs(TOPIC))[0]} >= set("abcefgh")
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    await driver.put("new")
    assert sum((await driver.counts()).values()) == 10


async def test_without_memory_the_timer_still_makes_jobs_of_every_topic_ready(driver: EngineDriver) -> None:
    """A visit to a topic without due work only schedules the next one, which must not need memory."""
    topics = [f"t{number}" for number in range(8)]
    for topic in topics:
        await driver.puts.put(PutJob(topic=topic, id="gone"))
        await driver.queue.pop(topic, [PopRequest(1, ttr_ms=5000)])
        await driver.queue.finish(topic, "gone", ANY_RECEIPT)
        await driver.puts.put(PutJob(topic=topic, id="tomorrow", delay=86_400))
    await driver.put("due", delay=6)
    driver.move_clock(10)
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await driver.run_timer()
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    assert await driver.state("due") is JobState.READY


async def test_without_memory_a_job_of_an_unnamed_consumer_can_be_cancelled(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert await driver.cancels.cancel(TOPIC, "a") is JobState.RESERVED
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")


async def test_a_ready_list_of_another_type_fails_calls_before_they_change_anything(driver: EngineDriver) -> None:
    """As in a store filled by an earlier commit, until `deferd audit --repair` is run."""
    await driver.put("dead")
    await driver.pop_one()
    await driver.deliveries.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.put("delayed", delay=5)
    driver.server.command("DEL", f"{KEY}:ready")
    driver.server.command("RPUSH", f"{KEY}:ready", "old")
    driver.move_clock(6)
    before = driver.server.command("ZRANGE", f"{KEY}:delay", 0, -1)
    await driver.engine.timers[0].run_once()
    for call in (
        driver.put("new"),
        redrive_jobs(driver.engine, TOPIC),
        driver.queue.change(TOPIC, "delayed", ChangeJob()),
    ):
        with pytest.raises(redis_errors.ResponseError, match="WRONGTYPE"):
            await call
    assert driver.server.command("ZRANGE", f"{KEY}:delay", 0, -1) == before == [b"delayed"]
    assert driver.server.command("HEXISTS", f"{KEY}:pool", "new") == 0
    assert driver.server.command("ZRANGE", f"{KEY}:dead", 0, -1) == [b"dead"]


async def test_without_memory_operators_see_consumers_and_history_and_run_tasks(driver: EngineDriver) -> None:
    engine = driver.engine
    await driver.put("a")
    sweep = {"kind": "purge", "cutoff": 0, "limit": None, "sweep": {"topic": "gone"}, "change": {}}
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await use_session(engine)
        await driver.cancels.cancel(TOPIC, "a")
        await engine.history_publisher.publish()
        await engine.consumer_registry.publish(Sample([SeenConsumer("worker-1", None, TOPIC, None, 0, 0)]))
        assert await engine.tasks.begin("t1", sweep, "ended")
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
        driver.move_clock(60)
        driver.server.command("CONFIG", "SET", "maxmemory", "1")
        [task] = await engine.tasks.claim("me")
        await engine.tasks.stop("t1")
        assert await engine.tasks.extend(task, "me") == 2
        assert await engine.tasks.end(task, "me", "stopped")
        found = await engine.histories.of_topic(TOPIC, 60)
        assert sum(bucket.counts[COUNTS.index("cancelled")] for bucket in found.buckets) == 1
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    assert driver.server.command("HLEN", "deferd:{0}:consumers/reports") == 1

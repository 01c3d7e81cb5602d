"""The durability of puts: each level on stores that support it, and on those that do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deferd.contract.errors import DurabilityUnavailable, JobExists, JobNotFound, StoreUnavailable
from deferd.contract.model import TopicSettings
from deferd.engine.engine import Engine
from deferd.store.server_calls import IN_SYNC_WAIT_S
from tests.integration.engine.durable_puts import (
    CONFIRM_S,
    STORE_TIMEOUT_S,
    TOPIC,
    engine_on,
    job,
    put,
    put_when_in_step,
    stored_ids,
)
from tests.integration.store.store_servers import Pair, StoreServer
from tests.waiting import BUSY_S, until, wait_until

SLACK_S = BUSY_S
"""Added for a loaded machine."""


@pytest.fixture(scope="module")
def free_pairs() -> Iterator[list[Pair]]:
    """Pairs in their original state, for the next test: a new one takes a second."""
    pairs: list[Pair] = []
    yield pairs
    for pair in pairs:
        pair.stop()


@pytest.fixture
def pair(free_pairs: list[Pair], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = free_pairs.pop() if free_pairs else Pair(tmp_path_factory.mktemp("pair")).start()
    try:
        yield pair
    finally:
        if pair.is_healthy():
            pair.clear()
            free_pairs.append(pair)
        else:
            pair.stop()


@pytest.fixture
async def producer(pair: Pair) -> AsyncIterator[Engine]:
    async with engine_on(pair.primary.url) as engine:
        yield engine


@pytest.fixture
def fsyncing(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "v", appendonly="yes", appendfsync="always") as server:
        yield server


class TestReplicated:
    async def test_a_put_returns_when_the_replica_has_it(self, pair: Pair, producer: Engine) -> None:
        for number in range(20):
            assert await put(producer, f"j{number}", "replicated:1") == "replicated:1"
            assert f"j{number}" in stored_ids(pair.replica)

    async def test_puts_that_come_together_are_confirmed_together(self, pair: Pair, producer: Engine) -> None:
        await put(producer, "first", "replicated:1")
        before = pair.primary.command("INFO", "commandstats")["cmdstat_wait"]["calls"]

        reached = await asyncio.gather(
            *(put(producer, f"j{n}", "replicated:1", topic=f"t{n % 20}") for n in range(400))
        )

        assert {"replicated:1"} == set(reached)
        waits = pair.primary.command("INFO", "commandstats")["cmdstat_wait"]["calls"] - before
        assert waits < 100
        assert sum(len(stored_ids(pair.replica, f"t{n}")) for n in range(20)) == 400

    async def test_one_of_two_replicas_is_not_enough(self, pair: Pair, producer: Engine, tmp_path: Path) -> None:
        source = f"127.0.0.1 {pair.primary.port}"
        with StoreServer(tmp_path / "second", repl_diskless_sync_delay=0, replicaof=source) as second:
            await put_when_in_step(producer, "before", "replicated:2")
            second.pause()
            with pytest.raises(StoreUnavailable, match=r"may exist.*replicated:2"):
                await put(producer, "doubtful", "replicated:2")
            assert "doubtful" in stored_ids(pair.replica)

    @pytest.mark.slow
    async def test_a_replica_that_hangs_fails_the_put_in_time_and_a_repeat_is_safe(
        self, pair: Pair, producer: Engine
    ) -> None:
        await put(producer, "before", "replicated:1")
        pair.replica.pause()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"may exist.*replicated:1.*same id is safe"):
            await put(producer, "doubtful", "replicated:1")
        assert time.monotonic() - began < CONFIRM_S + SLACK_S
        assert "doubtful" in stored_ids(pair.primary)

        # In another process, whose connection has not written anything.
        async with engine_on(pair.primary.url) as other:
            with pytest.raises(StoreUnavailable, match="nothing was stored"):
                await put(other, "refused", "replicated:1")
            assert "refused" not in stored_ids(pair.primary)
            assert await put(other, "meanwhile") == "memory"

            pair.replica.unpause()
            assert await put_when_in_step(producer, "doubtful", "replicated:1") == "replicated:1"
            with pytest.raises(JobExists) as again:
                await put(other, "doubtful", "replicated:1")
        assert again.value.durability == "replicated:1"
        assert {"before", "doubtful", "meanwhile"} == stored_ids(pair.replica)

    async def test_a_repeated_put_that_changes_nothing_is_confirmed_no_sooner(
        self, pair: Pair, producer: Engine
    ) -> None:
        async with engine_on(pair.primary.url) as other:
            assert await put(other, "before", "replicated:1") == "replicated:1"
            pair.replica.pause()
            assert await put(producer, "a") == "memory"
            with pytest.raises(StoreUnavailable, match="may exist"):
                await put(other, "a", "replicated:1", on_conflict="keep")
            pair.replica.unpause()

    @pytest.mark.slow
    async def test_a_store_that_hangs_after_a_slow_confirmation_fails_the_put_in_time(self, pair: Pair) -> None:
        async with engine_on(pair.primary.url, confirm_s=8) as engine:
            await put(engine, "a", "replicated:1")
            pair.replica.pause()
            slow = asyncio.ensure_future(put(engine, "b", "replicated:1"))
            await asyncio.sleep(STORE_TIMEOUT_S + 0.3)  # from now on the store is watched only for the end of the WAIT
            pair.replica.unpause()
            assert await slow == "replicated:1"
            pair.primary.pause()
            began = time.monotonic()
            try:
                with pytest.raises(StoreUnavailable, match="did not respond in time"):
                    await put(engine, "c", "replicated:1")
            finally:
                pair.primary.unpause()
            assert time.monotonic() - began < STORE_TIMEOUT_S + IN_SYNC_WAIT_S + SLACK_S

    @pytest.mark.parametrize(
        "lacks", [("resetchannels", "&deferd:ready", "&deferd:due"), ("-wait",)], ids=["channel", "wait"]
    )
    async def test_a_user_without_the_permissions_stores_nothing_and_the_error_names_them(
        self, pair: Pair, lacks: tuple[str, ...]
    ) -> None:
        pair.primary.command("ACL", "SETUSER", "shop", "on", ">word", "~*", "&*", "+@all", *lacks)
        async with engine_on(pair.primary.url.replace("redis://", "redis://shop:word@")) as engine:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"WAIT.*PUBLISH on deferd:confirm; nothing was stored"):
                    await put(engine, "a", "replicated:1")
            assert stored_ids(pair.primary) == set()
            assert await put(engine, "a") == "memory"

    async def test_a_store_without_wait_refuses_levels_that_need_it(self, tmp_path: Path) -> None:
        with StoreServer(tmp_path / "v", lines=['rename-command WAIT ""']) as server:
            async with engine_on(server.url) as engine:
                for named in ("replicated:1", None):
                    with pytest.raises(DurabilityUnavailable, match=r"no command WAIT.*nothing was stored") as refused:
                        await put(engine, "a", named)
                    assert refused.value.available == ["memory"]
                    await engine.topics.set(TOPIC, TopicSettings(durability="replicated:1"))
                assert stored_ids(server) == set()
                assert await put(engine, "a", "memory") == "memory"

    async def test_without_enough_replicas_a_put_is_refused_and_nothing_stored(
        self, pair: Pair, producer: Engine
    ) -> None:
        with pytest.raises(StoreUnavailable, match=r"replicated:2.*1 of 2 replicas.*nothing was stored"):
            await put(producer, "a", "replicated:2")
        pair.replica.stop()
        wait_until(lambda: pair.primary.command("WAIT", 0, 0) == 0, 5, "the primary has seen the replica go")
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await put(producer, "a", "replicated:1")
        assert stored_ids(pair.primary) == set()
        pair.replica.start()
        assert await put_when_in_step(producer, "a", "replicated:1") == "replicated:1"

    async def test_a_store_that_forgot_the_script_is_sent_it_again(self, pair: Pair, producer: Engine) -> None:
        await put(producer, "a", "replicated:1")
        pair.primary.command("FUNCTION", "FLUSH")
        assert await put(producer, "b", "replicated:1") == "replicated:1"
        assert {"a", "b"} == stored_ids(pair.replica)

    async def test_a_primary_that_was_made_a_replica_is_disconnected(self, pair: Pair, producer: Engine) -> None:
        await put(producer, "a", "replicated:1")
        pair.primary.command("REPLICAOF", "127.0.0.1", pair.replica.port)
        with pytest.raises(StoreUnavailable):
            await put(producer, "b", "replicated:1")
        pair.primary.command("REPLICAOF", "NO", "ONE")
        assert await put_when_in_step(producer, "b", "replicated:1") == "replicated:1"

    async def test_a_cancelled_call_takes_no_other_calls_response(self, producer: Engine) -> None:
        await put(producer, "warm", "replicated:1")
        puts = [asyncio.ensure_future(put(producer, f"j{n}", "replicated:1", topic=f"t{n}")) for n in range(10)]
        await asyncio.sleep(0)
        for one in puts[::2]:
            one.cancel()
        responses = await asyncio.gather(*puts, return_exceptions=True)
        assert responses[1::2] == ["replicated:1"] * 5

    async def test_puts_that_wait_for_replicas_fail_when_the_service_closes(self, pair: Pair) -> None:
        async with engine_on(pair.primary.url, confirm_s=30) as engine:
            await put(engine, "a", "replicated:1")
            pair.replica.pause()
            waiting = asyncio.ensure_future(put(engine, "b", "replicated:1"))
            await until(lambda: "b" in stored_ids(pair.primary), "the job is stored")
        with pytest.raises(StoreUnavailable):
            await waiting

    async def test_levels_of_a_batch_are_kept_apart_and_ids_in_order(self, pair: Pair, producer: Engine) -> None:
        results = await producer.puts.put_many(
            [
                job("a"),
                job("b", "replicated:1"),
                job("a", "replicated:1"),
                job("c", "memory"),
                job("d", "fsync"),
                job("e", "replicated:2"),
                job("f", "replicated:1"),
                job("f"),
            ]
        )
        assert [(line.id, line.status, line.code, line.durability) for line in results] == [
            ("a", 201, None, "memory"),
            ("b", 201, None, "replicated:1"),
            ("a", 409, "job_exists", "replicated:1"),
            ("c", 201, None, "memory"),
            ("d", 422, "durability_unavailable", None),
            ("e", 503, "store_unavailable", None),
            ("f", 201, None, "replicated:1"),
            ("f", 409, "job_exists", "memory"),
        ]
        assert {"a", "b", "c", "f"} == stored_ids(pair.primary)

    async def test_levels_of_a_batch_that_alternate_are_confirmed_together(self, pair: Pair, producer: Engine) -> None:
        await put(producer, "warm", "replicated:1")
        before = pair.primary.command("INFO", "commandstats")["cmdstat_wait"]["calls"]
        jobs = [job(f"j{n}", "replicated:1" if n % 2 else None) for n in range(100)]
        results = await producer.puts.put_many(jobs)
        assert [(line.id, line.durability) for line in results] == [
            (one.id, one.durability or "memory") for one in jobs
        ]
        waits = pair.primary.command("INFO", "commandstats")["cmdstat_wait"]["calls"] - before
        assert waits == 2  # that the replica has caught up, and that it has the jobs

    async def test_levels_of_a_batch_that_alternate_wait_for_the_replica_once(
        self, pair: Pair, producer: Engine
    ) -> None:
        await put(producer, "warm", "replicated:1")
        pair.replica.stop()
        jobs = [job(f"j{n}", "replicated:1" if n % 2 else "memory") for n in range(100)]
        twice = [job("twice", level) for level in ("memory", "replicated:1")]
        for batch in (jobs, jobs + twice):
            began = time.monotonic()
            results = await producer.puts.put_many(batch)
            assert time.monotonic() - began < IN_SYNC_WAIT_S + SLACK_S
            assert [line.id for line in results] == [one.id for one in batch]
            assert {line.status for line in results[1:100:2]} == {503}
            assert 503 not in {line.status for line in results[0:100:2]}
        assert {line.id for line in results if line.status == 201} == {"twice"}
        assert stored_ids(pair.primary) == {"warm", "twice", *(f"j{n}" for n in range(0, 100, 2))}

    @pytest.mark.slow
    async def test_a_batch_with_jobs_that_may_be_stored_does_not_report_that_none_is(
        self, pair: Pair, producer: Engine
    ) -> None:
        await put(producer, "warm", "replicated:1")
        pair.replica.pause()
        for batch in (
            [job("a", "replicated:1"), job("b", "replicated:2")],
            [job("c", "replicated:2"), job("d", "fsync")],
        ):
            with pytest.raises(StoreUnavailable) as refused:
                await producer.puts.put_many(batch)
            reports_none = "nothing was stored" in str(refused.value)
            assert reports_none == (stored_ids(pair.primary).isdisjoint(one.id for one in batch))
        pair.replica.unpause()
        assert stored_ids(pair.primary) == {"warm", "a"}

    @pytest.mark.slow
    async def test_a_batch_is_refused_as_a_whole_when_no_job_can_be_stored(self, producer: Engine) -> None:
        with pytest.raises(DurabilityUnavailable, match="appendonly is no"):
            await producer.puts.put_many([job("a", "fsync"), job("b", "fsync")])
        with pytest.raises(StoreUnavailable, match="1 of 2 replicas"):
            await producer.puts.put_many([job("a", "replicated:2"), job("b", "fsync")])

    async def test_a_thousand_jobs_of_a_batch_reach_the_replica(self, pair: Pair, producer: Engine) -> None:
        results = await producer.puts.put_many([job(f"j{n}", "replicated:1") for n in range(1000)])
        assert {(201, "replicated:1")} == {(line.status, line.durability) for line in results}
        assert len(stored_ids(pair.replica)) == 1000


async def test_a_cancel_returns_when_the_replica_has_it(pair: Pair, producer: Engine) -> None:
    ids = [f"j{number}" for number in range(20)]
    await asyncio.gather(*(put(producer, job_id, "replicated:1") for job_id in ids))
    for job_id in ids[:5]:
        assert await producer.cancels.cancel_durably(TOPIC, job_id, "replicated:1") == ("delayed", "replicated:1")
        assert job_id not in stored_ids(pair.replica)
    before = pair.primary.command("INFO", "commandstats")["cmdstat_wait"]["calls"]
    await asyncio.gather(*(producer.cancels.cancel_durably(TOPIC, job_id, "replicated:1") for job_id in ids[5:]))
    assert stored_ids(pair.replica) == set()
    assert pair.primary.command("INFO", "commandstats")["cmdstat_wait"]["calls"] - before < 10
    with pytest.raises(JobNotFound):
        await producer.cancels.cancel_durably(TOPIC, "j0", "replicated:1")


class TestCancel:
    async def test_a_level_that_the_store_cannot_give_cancels_nothing(self, pair: Pair, producer: Engine) -> None:
        await put(producer, "a", "replicated:1")
        with pytest.raises(StoreUnavailable, match=r"1 of 2 replicas are in sync; nothing was cancelled"):
            await producer.cancels.cancel_durably(TOPIC, "a", "replicated:2")
        with pytest.raises(DurabilityUnavailable, match=r"appendonly is no.*nothing was cancelled") as refused:
            await producer.cancels.cancel_durably(TOPIC, "a", "fsync")
        assert refused.value.available == ["memory", "replicated:N"]
        assert stored_ids(pair.primary) == {"a"}
        assert await producer.cancels.cancel_durably(TOPIC, "a", "memory") == ("delayed", "memory")

    @pytest.mark.slow
    async def test_a_cancel_that_is_not_confirmed_may_be_done_and_its_repeat_is_confirmed(
        self, pair: Pair, producer: Engine
    ) -> None:
        for job_id in ("a", "b"):
            await put(producer, job_id, "replicated:1")
        await producer.cancels.cancel_durably(TOPIC, "b", "replicated:1")  # now the store knows the script
        pair.replica.pause()
        with pytest.raises(StoreUnavailable, match=r"may be cancelled.*replicated:1.*repeating the cancel is safe"):
            await producer.cancels.cancel_durably(TOPIC, "a", "replicated:1")
        assert stored_ids(pair.primary) == set()
        with pytest.raises(StoreUnavailable, match="nothing was cancelled"):
            await producer.cancels.cancel_durably(TOPIC, "a", "replicated:1")
        pair.replica.unpause()
        await put_when_in_step(producer, "b", "replicated:1")
        with pytest.raises(JobNotFound):
            await producer.cancels.cancel_durably(TOPIC, "a", "replicated:1")
        assert stored_ids(pair.replica) == {"b"}

    async def test_a_cancel_at_fsync_on_a_store_that_fsyncs(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine:
            await put(engine, "a")
            assert await engine.cancels.cancel_durably(TOPIC, "a", "fsync") == ("delayed", "fsync")


class TestTopicDefault:
    async def test_it_applies_only_to_puts_that_name_no_durability(self, pair: Pair, producer: Engine) -> None:
        await producer.topics.set(TOPIC, TopicSettings(durability="replicated:1", max_jobs=100))
        assert (await producer.topics.get(TOPIC)).settings.durability == "replicated:1"
        assert await put(producer, "a") == "replicated:1"
        assert "a" in stored_ids(pair.replica)
        assert await put(producer, "b", "memory") == "memory"
        assert await put(producer, "c", topic="other") == "memory"
        [line] = await producer.puts.put_many([job("d")])
        assert (line.status, line.durability) == (201, "replicated:1")

    async def test_it_applies_at_once_when_another_process_sets_or_clears_it(
        self, pair: Pair, producer: Engine
    ) -> None:
        async with engine_on(pair.primary.url) as other:
            assert await put(producer, "a") == "memory"
            for round_ in range(3):
                await other.topics.set(TOPIC, TopicSettings(durability="replicated:1"))
                assert await put(producer, f"b{round_}") == "replicated:1"
                assert f"b{round_}" in stored_ids(pair.replica)
                await other.topics.set(TOPIC, TopicSettings())
                await put(producer, f"c{round_}")  # waits for the replica once more
                assert await put(producer, f"d{round_}") == "memory"

    @pytest.mark.slow
    async def test_an_unsupported_one_refuses_the_puts_until_it_is_cleared(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine, engine_on(fsyncing.url) as other:
            await engine.topics.set(TOPIC, TopicSettings(durability="replicated:1"))
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                    await put(engine, "a")
            assert stored_ids(fsyncing) == set()
            await other.topics.set(TOPIC, TopicSettings())
            assert await put(engine, "a") == "fsync"

    async def test_fsync_as_default_is_refused_by_a_store_without_it(self, pair: Pair, producer: Engine) -> None:
        await producer.topics.set(TOPIC, TopicSettings(durability="fsync"))
        with pytest.raises(DurabilityUnavailable, match=f"the default of topic '{TOPIC}'"):
            await put(producer, "a")
        with pytest.raises(DurabilityUnavailable):
            await producer.puts.put_many([job("a"), job("b")])
        assert stored_ids(pair.primary) == set()
        assert await put(producer, "a", "replicated:1") == "replicated:1"

    async def test_fsync_as_default_costs_nothing_where_the_store_supports_it(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine:
            await engine.topics.set(TOPIC, TopicSettings(durability="fsync"))
            assert await put(engine, "a") == "fsync"
            before = fsyncing.command("INFO", "commandstats")["cmdstat_fcall"]["calls"]
            for number in range(5):
                assert await put(engine, f"b{number}") == "fsync"
            assert fsyncing.command("INFO", "commandstats")["cmdstat_fcall"]["calls"] == before + 5


class TestOtherStores:
    async def test_the_embedded_store_never_has_replicas(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url, embedded=True) as engine:
            assert await put(engine, "a") == "fsync"
            with pytest.raises(DurabilityUnavailable, match="embedded store has no replicas") as refused:
                await put(engine, "b", "replicated:1")
            assert refused.value.available == ["memory", "fsync"]
            await engine.topics.set(TOPIC, TopicSettings(durability="replicated:3"))
            for _ in range(2):
                with pytest.raises(DurabilityUnavailable, match="default of topic"):
                    await put(engine, "b")
            assert {"a"} == stored_ids(fsyncing)

    @pytest.mark.usefixtures("older_redis")
    async def test_an_older_redis_supports_the_same_levels(self, tmp_path: Path) -> None:
        with Pair(tmp_path) as pair:
            assert "redis_version" in pair.primary.command("INFO", "server")
            async with engine_on(pair.primary.url) as engine:
                assert await put(engine, "a", "replicated:1") == "replicated:1"
                assert {"a"} == stored_ids(pair.replica)
                with pytest.raises(DurabilityUnavailable):
                    await put(engine, "b", "fsync")
                pair.replica.pause()
                with pytest.raises(StoreUnavailable, match="may exist"):
                    await put(engine, "c", "replicated:1")
                pair.replica.unpause()
                assert await put_when_in_step(engine, "c", "replicated:1") == "replicated:1"
                pair.primary.command("CONFIG", "SET", "appendonly", "yes")
                pair.primary.command("CONFIG", "SET", "appendfsync", "always")
                assert await put_when_in_step(engine, "d", "fsync") == "fsync"

"""Records, receipts and cursors on a real store: Lua reads what Python writes, and vice versa."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
from collections.abc import Callable, Coroutine, Iterator
from importlib.resources import files
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.errors import DeferdError, InvalidInput, JobNotFound, ReceiptStale, TopicNotFound
from deferd.contract.fields import POLICY
from deferd.contract.model import JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import Receipt, read_record
from deferd.store.connection import Store, connect
from tests.drawn_input import drawn, json_values, plain_texts, texts
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs
from tests.integration.store.store_servers import StoreServer
from tests.random_draws import Draw, all_of, between, by_number, either, lists, one_of, plain_text, some_of, tuples

RECORD_LUA = (files("deferd.engine") / "lua" / "lib" / "record.lua").read_text()
REWRITE = f"{RECORD_LUA}\nreturn write_record(read_record(ARGV[1]))"
HEADER = struct.Struct("<IHIHIHII")
Run = Callable[[Coroutine[Any, Any, Any]], Any]

LONGEST_MS = 315_576_000_000
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
instants_ms = between(0, 10**14 - 1)  # to the year 5138; Lua writes 14 digits of a number in JSON
durations_ms = between(0, LONGEST_MS)


def seconds(chance: Random) -> float:
    return durations_ms(chance) / 1000


backoffs = either(
    all_of({"kind": one_of("exponential"), "base": between(1, 1000), "cap": seconds}),
    all_of({"kind": one_of("fixed"), "seconds": seconds, "jitter": one_of(0, 0.5, 1)}),
    all_of({"kind": one_of("schedule"), "seconds": lists(seconds, 1, 4)}),
)
attempts = tuples(between(1, 1000), instants_ms, one_of("released"), one_of("worker-1"), plain_text)
extras = some_of(
    {
        "t": between(100, 86_400_000),
        "m": between(0, 1_000_000),
        "b": backoffs,
        "c": one_of(TRACEPARENT),
        "e": plain_text,
        "d": one_of("expired", "buried"),
        "gr": one_of("customer:7", "1"),
        "pr": between(1, 9),
        "n": between(0, 10),
        "s": between(1, 1_000_000),
        "a": lists(attempts, 1, 3),
        **dict.fromkeys(("x", "r", "q", "i", "l"), durations_ms),
        **dict.fromkeys(("f", "v"), instants_ms),
    }
)


def packed(*, created: int, due: int, nonce: int, attempts: int, extra: bytes, rest: bytes) -> bytes:
    """A record in the layout that the docstring of engine/record.py documents."""
    halves = (half for value in (created, due, nonce) for half in (value & 0xFFFFFFFF, value >> 32))
    return HEADER.pack(*halves, attempts, len(extra)) + extra + rest


@drawn(150)
@given(
    created=by_number(instants_ms),
    due=by_number(instants_ms),
    nonce=by_number(between(0, 2**47 - 1)),
    attempts=by_number(between(0, 2**32 - 1)),
    extra=st.just({}) | by_number(extras) | by_number(extras),
    rest=st.binary(max_size=50),
)
def test_a_record_that_lua_has_read_and_written_is_the_same(
    running_server: StoreServer,
    *,
    created: int,
    due: int,
    nonce: int,
    attempts: int,
    extra: dict[str, Any],
    rest: bytes,
) -> None:
    raw_extra = json.dumps(extra, ensure_ascii=False).encode() if extra else b""
    raw = packed(created=created, due=due, nonce=nonce, attempts=attempts, extra=raw_extra, rest=rest)
    rewritten = running_server.command("EVAL", REWRITE, 0, raw)
    before, after = (read_record("t", "a", JobState.DEAD, one) for one in (raw, rewritten))
    assert before == after
    assert (created, due, nonce, attempts) == (after.created_at_ms, after.due_at_ms, after.nonce, after.attempts)
    assert rest == (after.result or b"") + after.body


# Through the engine. All examples share one loop and one engine: connecting takes longer than the calls.


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def engine_of_examples(server: StoreServer, run: Run) -> Iterator[Engine]:
    store: Store = run(connect(server.url, timeout_s=5))

    async def begin() -> Engine:
        return Engine(store)

    engine: Engine = run(begin())
    yield engine
    run(engine.close())
    run(store.close())


def seconds_from(least_ms: int) -> Draw[float]:
    return lambda chance: chance.randint(least_ms, LONGEST_MS) / 1000


MINUTE_MS = 60_000
policies = some_of(
    {
        "ttr": lambda chance: chance.randint(100, 86_400_000) / 1000,
        "max_attempts": either(one_of(None), between(1, 1_000_000)),
        "backoff": backoffs,
        "retain": seconds_from(1),
        "traceparent": one_of(TRACEPARENT),
        "group": one_of("customer:7", "1"),
        "priority": between(0, 9),
        "dead_retain": seconds_from(MINUTE_MS),
        **dict.fromkeys(("ttl", "time_limit", "deadline"), either(one_of(None), seconds_from(MINUTE_MS))),
    }
)


@drawn(75)
@given(policy=by_number(policies), body=json_values, result=json_values, error=plain_texts)
def test_a_job_is_unchanged_after_all_transitions(
    engine_of_examples: Engine, run: Run, *, policy: dict[str, Any], body: Any, result: Any, error: str
) -> None:
    queue = engine_of_examples.queue
    put = PutJob.model_validate({"topic": "t", "id": "a", "body": body, **policy, "on_conflict": "replace"})

    async def through_life() -> None:
        with contextlib.suppress(TopicNotFound):
            await purge_jobs(engine_of_examples, "t")
        first = (await engine_of_examples.puts.put(put)).record
        [[popped]] = (await queue.pop("t", [PopRequest(1)])).jobs
        await engine_of_examples.deliveries.bury("t", "a", popped.receipt, error=error)
        dead = await queue.get("t", "a")
        assert error == dead.last_error
        await redrive_jobs(engine_of_examples, "t", ["a"])
        [[again]] = (await queue.pop("t", [PopRequest(1)])).jobs
        for record in (first, popped, dead, again):
            assert body == json.loads(record.body)
            assert [first.stored(field.name) for field in POLICY] == [record.stored(field.name) for field in POLICY]
            assert first.traceparent == record.traceparent
            assert (record.group, record.priority) == (put.group, put.priority or 0)
            assert first.endings == msgspec.structs.replace(record.endings, attempts_log=())
        assert [(error_shown, how) for _, _, how, _, error_shown in dead.endings.attempts_log] == [
            (error.encode()[:500].decode(errors="ignore"), "buried")
        ]
        await queue.finish("t", "a", again.receipt, result)
        if put.retain:
            finished = await queue.get("t", "a")
            assert (body, result) == (json.loads(finished.body), json.loads(finished.result or b"null"))

    run(through_life())


receipts = st.one_of(
    texts,
    st.from_regex(r"-?[0-9a-f]{11,14}\.-?[0-9]{1,25}", fullmatch=True),
    st.integers(-3, 3).map(lambda off: f"near{off}"),
)


@drawn(100)
@given(text=receipts)
def test_only_the_live_receipt_changes_a_job(engine_of_examples: Engine, run: Run, text: str) -> None:
    queue = engine_of_examples.queue

    async def check() -> None:
        await engine_of_examples.puts.put(PutJob(topic="t", id="a", on_conflict="keep"))
        await queue.pop("t", [PopRequest(1)])
        live = (await queue.get("t", "a")).receipt
        near = text.removeprefix("near")
        text_sent = str(Receipt(live.nonce + int(near), live.attempt)) if near != text else text
        if text_sent == str(live):
            return
        receipt = Receipt.of(text_sent)
        for change in (
            queue.finish("t", "a", receipt, None),
            engine_of_examples.deliveries.release("t", "a", receipt),
            engine_of_examples.deliveries.touch("t", "a", receipt),
            engine_of_examples.deliveries.bury("t", "a", receipt),
        ):
            with pytest.raises(ReceiptStale):
                await change
        assert live == (await queue.get("t", "a")).receipt

    run(check())


def cursor_of(parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts, ensure_ascii=False).encode()).decode().rstrip("=")


digits = st.sampled_from(["", "0", "-1", "1.5", "nan", "1e5", "٣", "²", "9" * 16, "9" * 17, "1\n"])
parts = st.one_of(
    st.tuples(st.sampled_from([*JobState]), digits, st.just("a")),
    st.tuples(st.sampled_from([*JobState, "lost", "ready\0"]), digits | plain_texts, plain_texts | st.just("a" * 600)),
    st.tuples(st.integers(-2, 2) | st.sampled_from([2**63, 10**400]), plain_texts),
    json_values,
)


@drawn(150)
@given(cursor=parts.map(cursor_of) | texts, state=st.none() | st.none() | st.sampled_from(list(JobState)))
def test_a_cursor_leads_to_a_page_or_is_refused(
    engine_of_examples: Engine, run: Run, cursor: str, state: JobState | None
) -> None:
    topics = engine_of_examples.topics

    async def check() -> None:
        await engine_of_examples.puts.put(PutJob(topic="t", id="a", on_conflict="keep", delay=1000))
        for listing in (topics.jobs("t", state, cursor), engine_of_examples.topic_list.names(cursor)):
            with contextlib.suppress(InvalidInput):
                await listing

    run(check())


@drawn(50)
@given(ids=st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True), unique=True, max_size=8))
def test_pages_of_one_job_each_bring_every_job_once(engine_of_examples: Engine, run: Run, ids: list[str]) -> None:
    topics = engine_of_examples.topics

    async def page_through() -> list[str]:
        with contextlib.suppress(TopicNotFound):
            await purge_jobs(engine_of_examples, "t")
        for number, job_id in enumerate(ids):
            await engine_of_examples.puts.put(PutJob(topic="t", id=job_id, delay=float(number // 2 * 1000)))
        found: list[str] = []
        cursor: str | None = None
        while True:
            try:
                jobs, cursor = await topics.jobs("t", None, cursor, 1)
            except TopicNotFound:
                return found
            found += [job.id for job in jobs]
            if cursor is None:
                return found

    assert sorted(ids) == sorted(run(page_through()))


@drawn(50)
@given(job_id=texts, topic=texts)
def test_any_name_raises_job_not_found_and_no_other_error(
    engine_of_examples: Engine, run: Run, job_id: str, topic: str
) -> None:
    """The HTTP API refuses them earlier, but the engine must handle them too."""

    async def get_job() -> None:
        with pytest.raises((JobNotFound, DeferdError, UnicodeEncodeError)):
            await engine_of_examples.queue.get(topic or "t", job_id)

    run(get_job())

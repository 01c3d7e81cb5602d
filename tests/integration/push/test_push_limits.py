"""How much is sent at a time: requests under way, rate, batches, the circuit; and over several processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from yarl import URL

from deferd.contract import limits
from deferd.contract.errors import InvalidInput, PushNotFound
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.operations.push import SetPush
from deferd.contract.push_targets import AllowedTargets
from deferd.engine import push_store
from deferd.engine.engine import Engine
from deferd.push.http_sender import HttpSender, PushFailed, PushResponse
from tests.integration.engine.engine_driver import TOPIC, started_engine
from tests.integration.push.pushing_engine import PushingEngine, pushing_engine
from tests.integration.store.store_servers import StoreServer
from tests.push_receiver import Received, Receiver, Reply, json_reply, receiver
from tests.waiting import until

NEVER = {"kind": "fixed", "seconds": 600}
RATE = {"count": 1, "per": 0.15}
BESIDE_S = 0.1
"""By how much the time at which a request arrives may differ from that of its delivery."""


async def put_many(pushing: PushingEngine, number: int, topic: str = TOPIC) -> None:
    fields = {"topic": topic, "backoff": NEVER}
    jobs = [PutJob.model_validate({**fields, "id": f"j{at}", "body": at}) for at in range(number)]
    await pushing.engine.puts.put_many(jobs)


async def slowly(_request: Received) -> Reply:
    await asyncio.sleep(0.05)
    return Reply()


async def test_all_processes_together_keep_the_limit_and_each_job_is_sent_once(
    pushing: PushingEngine, server: StoreServer, target: Receiver
) -> None:
    target.respond = slowly
    async with started_engine(server.url) as other, pushing_engine(other, target):
        await pushing.push(max_in_flight=6)
        await put_many(pushing, 60)
        await pushing.until_received(60)
        await until(lambda: target.under_way == 0, "all responses were sent")
        assert target.most_under_way == 6
        assert Counter(Counter(target.ids).values()) == {1: 60}
        assert (await pushing.state()).in_flight <= 6


async def test_the_limits_of_the_topic_hold_for_its_pushes(
    pushing: PushingEngine, server: StoreServer, target: Receiver
) -> None:
    """Also when there is room for more requests, in several processes, and each time until there is room again."""
    target.respond = slowly
    limits_of_topic = {"max_in_flight": 2, "per_group": {"max_in_flight": 1}, "groups": {"c": {"rate": RATE}}}
    settings = TopicSettings.model_validate({"limits": limits_of_topic})
    async with started_engine(server.url) as other, pushing_engine(other, target):
        await pushing.engine.topics.set(TOPIC, settings)
        await pushing.push(max_in_flight=6)
        jobs = [{"topic": TOPIC, "id": f"{group}{at}", "group": group} for at in range(6) for group in "abc"]
        await pushing.engine.puts.put_many([PutJob.model_validate(job) for job in jobs])
        await pushing.until_received(len(jobs))
        await until(lambda: target.under_way == 0, "all responses were sent")
    assert target.most_under_way == 2
    assert Counter(Counter(target.ids).values()) == {1: len(jobs)}
    for group in "abc":
        assert [one for one in target.ids if one[0] == group] == [f"{group}{at}" for at in range(6)]
    of_c = [one.at_s for one in target.requests if one.job_id[0] == "c"]
    assert of_c[-1] - of_c[0] >= (len(of_c) - 1) * RATE["per"] - BESIDE_S


async def test_requests_of_this_and_of_other_processes_count(engine: Engine, server: StoreServer) -> None:
    push = {"url": "http://127.0.0.1:9/", "secrets": ["whsec_" + "A" * 32], "max_in_flight": 6}
    await engine.push.set(TOPIC, SetPush.model_validate(push))
    await engine.puts.put_many([PutJob(topic=TOPIC) for _ in range(9)])
    server.command("HSET", f"deferd:{{0}}:{TOPIC}:push/state", "in/other", f"2 {int(time.time() * 1000) + 5000}")
    taken = await engine.push.take(TOPIC, under_way=3, most=3, timeout_ms=1000)
    assert taken is not None
    assert len(taken.jobs) == 1


async def test_requests_of_a_process_that_is_gone_stop_counting(
    engine: Engine, server: StoreServer, target: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_store, "COUNTED_MS", 300)
    async with pushing_engine(engine, target) as pushing:
        await pushing.push(max_in_flight=1)
        server.command("HSET", f"deferd:{{0}}:{TOPIC}:push/state", "in/gone", f"1 {int(time.time() * 1000) + 400}")
        began_s = time.monotonic()
        await pushing.put()
        await pushing.until_gone()
        assert time.monotonic() - began_s >= 0.3
        fields = server.command("HKEYS", f"deferd:{{0}}:{TOPIC}:push/state")
        assert b"in/gone" not in fields


async def test_a_batch_is_one_request(pushing: PushingEngine) -> None:
    pushing.target.reply_with(json_reply({"failures": [{"id": "j3", "error": "no stock"}, {"id": "unknown"}, 7]}))
    await put_many(pushing, 150)
    await pushing.push(mode="batch", max_in_flight=10)
    await pushing.until_received(2)
    bodies = [one.json["jobs"] for one in pushing.target.requests]
    assert [len(jobs) for jobs in bodies] == [100, 50]
    assert bodies[0][0]["id"] == "j0"
    assert bodies[0][0]["receipt"]
    assert pushing.target.requests[0].headers["deferd-jobs"] == "100"
    failed = await pushing.until_state(JobState.DELAYED, "j3")
    assert failed.last_error == "no stock"
    for job_id in ("j0", "j99", "j149"):
        await pushing.until_gone(job_id)


async def test_a_cancelled_job_of_a_batch_stays_cancelled_and_the_others_finish(pushing: PushingEngine) -> None:
    responding = asyncio.Event()

    async def later(_request: Received) -> Reply:
        await responding.wait()
        return Reply()

    pushing.target.respond = later
    await put_many(pushing, 3)
    await pushing.push(mode="batch", timeout=30)
    await pushing.until_received(1)
    await pushing.engine.cancels.cancel(TOPIC, "j1")
    responding.set()
    await pushing.until_gone("j0")
    await pushing.until_gone("j2")
    assert pushing.target.closed == 0


async def test_the_circuit_opens_after_five_failures_and_one_request_closes_it(
    pushing: PushingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_store, "FIRST_PAUSE_MS", 300)
    pushing.target.reply_with(Reply(500, b"down"))
    await pushing.push(max_in_flight=1)
    await put_many(pushing, 20)
    await pushing.until_received(5)
    state = await pushing.until_circuit("open")
    assert state.failures == 5
    assert state.last_error == "the target responded with status 500: down"
    assert state.open_until_ms is not None
    await pushing.until_received(7)
    times = [one.at_s for one in pushing.target.requests]
    assert times[5] - times[4] >= 0.28
    assert times[6] - times[5] >= 0.58  # the pause has doubled
    pushing.target.reply_with(Reply())
    await pushing.until_received(20)
    assert (await pushing.until_circuit("closed")).failures == 0
    assert (await pushing.state()).last_error is None


async def test_all_processes_together_send_one_probe(
    pushing: PushingEngine, server: StoreServer, target: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_store, "FIRST_PAUSE_MS", 400)
    target.reply_with(Reply(500))
    async with started_engine(server.url) as other, pushing_engine(other, target):
        await pushing.push(max_in_flight=1)
        await put_many(pushing, 40)
        await pushing.until_circuit("open")
        before = len(target.requests)
        assert before in {5, 6}
        target.hang()
        await pushing.until_received(before + 1)
        assert (await pushing.state()).circuit == "half_open"
        await asyncio.sleep(1.0)  # real time: nothing else may be sent meanwhile
        assert len(target.requests) == before + 1


async def test_errors_of_jobs_do_not_open_the_circuit(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(422))
    await pushing.push(max_in_flight=1)
    await put_many(pushing, 12)
    await pushing.until_received(12)
    assert (await pushing.state()).circuit == "closed"


async def test_a_hanging_target_delays_no_other(pushing: PushingEngine) -> None:
    async with receiver() as hanging:
        hanging.hang()
        await pushing.engine.push.set(
            "slow", SetPush.model_validate({"url": hanging.url, "secrets": ["whsec_" + "A" * 32], "max_in_flight": 50})
        )
        await pushing.push(max_in_flight=10)
        await put_many(pushing, 200, "slow")
        await until(lambda: hanging.under_way == 50, "the target hangs")
        began_s = time.monotonic()
        await put_many(pushing, 200)
        await pushing.until_received(200)
        assert time.monotonic() - began_s < 5
        assert hanging.under_way == 50


async def test_a_push_that_does_not_exist_is_not_found(pushing: PushingEngine) -> None:
    for call in (pushing.engine.push.get, pushing.engine.push.remove):
        with pytest.raises(PushNotFound):
            await call("none")
    with pytest.raises(InvalidInput, match="is required"):
        await pushing.set_again("none")
    assert await pushing.engine.push.all() == {}
    assert (await pushing.engine.topic_list.page(None, 10)).views == []


async def test_settings_and_push_do_not_disturb_each_other(pushing: PushingEngine) -> None:
    await pushing.push()
    await pushing.engine.topics.set(TOPIC, TopicSettings(ttr=7))
    assert (await pushing.engine.push.get(TOPIC)).push.max_in_flight == 10
    await pushing.set_again(max_in_flight=3)
    assert (await pushing.engine.topics.get(TOPIC)).settings.ttr == 7
    await pushing.engine.push.remove(TOPIC)
    view = await pushing.engine.topics.get(TOPIC)
    assert (view.settings.ttr, view.target) == (7, None)


async def test_a_consistency_check_finds_nothing(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(), Reply(500), Reply(410), Reply())
    await pushing.push()
    await put_many(pushing, 20)
    await pushing.until_received(20)
    await until(lambda: pushing.target.under_way == 0, "all responses were sent")
    await pushing.until_gone("j19")
    report = await pushing.engine.consistency.audit_topic(TOPIC)
    assert report.clean
    store = await pushing.engine.consistency.audit_store()
    assert store.clean
    assert (store.stray_count, store.unlisted) == (0, [])


# What a target returns

INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def post(reply: Reply) -> PushResponse:
    """What the sender makes of the reply, twice on one connection if that is left open."""

    async def respond(_request: Received) -> Reply:
        return reply

    sender = HttpSender(AllowedTargets(("http://127.0.0.1:*",)))
    try:
        async with receiver() as target:
            target.respond = respond
            for _ in range(2):
                response = await sender.post(URL(target.url), {}, b"{}", 20.0)
            return response
    finally:
        await sender.close()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(raw=b"", endless=INTERIM), "more than 16 interim responses"),
        (Reply(raw=b"", endless=b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), "more than 16 interim responses"),
        (Reply(raw=CHUNKED + b"1;", endless=b"x=" * 500), "not valid"),
        (Reply(raw=CHUNKED + b"0\r\n", endless=b"trailer: x\r\n" * 100), "not valid"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\n", endless=b"field: x\r\n" * 100), "not valid"),
    ],
    ids=["interim", "interim-in-bulk", "chunk-extension", "trailers", "head"],
)
async def test_a_response_without_end_is_given_up(reply: Reply, reason: str) -> None:
    with pytest.raises(PushFailed, match=reason):
        await post(reply)


async def test_some_interim_responses_are_passed_over() -> None:
    response = await post(Reply(raw=INTERIM * 16 + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"))
    assert (response.status, response.body, response.is_whole) == (200, b"ok", True)


async def test_a_body_in_chunks_of_a_byte_is_read() -> None:
    body = b"1\r\nx\r\n" * limits.PUSH_RESULT_BYTES
    response = await post(Reply(raw=CHUNKED + body + b"0\r\n\r\n"))
    assert (len(response.body), response.is_whole) == (limits.PUSH_RESULT_BYTES, True)

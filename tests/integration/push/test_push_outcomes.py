"""What becomes of a job after each response of its target."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from deferd.contract.errors import TopicPushed
from deferd.contract.model import JobState, JobToReturn
from deferd.engine.queue import PopRequest
from deferd.engine.record import Receipt
from deferd.engine.topic_search import TopicSelection
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.push.pushing_engine import OTHER_SECRET, SECRET, PushingEngine
from tests.push_receiver import Received, Reply, json_reply
from tests.waiting import until


async def test_a_2xx_finishes_the_job_and_its_json_is_the_result(pushing: PushingEngine) -> None:
    result = b'{"closed": true, "big": 12345678901234567890123}'
    pushing.target.reply_with(Reply(201, result, {"content-type": "application/json; charset=utf-8"}))
    await pushing.push()
    await pushing.put(body={"order": 1042}, retain=60)
    job = await pushing.until_state(JobState.FINISHED)
    assert job.result == result
    (request,) = pushing.target.requests
    assert request.target == "/hook"
    assert request.json == {"order": 1042}
    assert request.headers["deferd-topic"] == TOPIC
    assert request.headers["deferd-attempt"] == "1"
    assert request.headers["content-type"] == "application/json"
    assert Receipt.of(request.headers["deferd-receipt"]).attempt == 1


async def test_a_delayed_job_is_pushed_when_it_is_due(pushing: PushingEngine) -> None:
    await pushing.push()
    began_s = asyncio.get_running_loop().time()
    await pushing.put(delay=0.3)
    await pushing.until_gone()
    assert pushing.target.requests[0].at_s - began_s >= 0.29


async def test_both_secrets_sign_while_they_are_rotated(pushing: PushingEngine) -> None:
    await pushing.push(secrets=[SECRET, OTHER_SECRET])
    await pushing.put(body={"text": "Grüße 👋"})
    await pushing.until_gone()
    (request,) = pushing.target.requests
    for secret in (SECRET, OTHER_SECRET):
        assert Webhook(secret).verify(request.body, request.headers) == {"text": "Grüße 👋"}
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "AAAA" * 8).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body + b" ", request.headers)


async def test_a_host_whose_clock_is_wrong_signs_and_reads_dates_by_the_stores_clock(
    pushing: PushingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    right_s = time.time
    at = datetime.now(UTC) + timedelta(seconds=120)
    pushing.target.reply_with(Reply(503, headers={"retry-after": format_datetime(at, usegmt=True)}))
    await pushing.push()
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: right_s() + 3 * 3600)
        await pushing.put()
        job = await pushing.until_state(JobState.DELAYED)
        definition = await pushing.engine.push.get(TOPIC)
        await pushing.pushers.test(definition)
    assert 100 < job.due_at_ms / 1000 - time.time() < 130
    for request in pushing.target.requests:
        assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60
    assert len(pushing.target.requests) == 2


async def test_a_new_secret_signs_from_then_on_and_none_keeps_the_old_one(pushing: PushingEngine) -> None:
    await pushing.push()
    await pushing.push(secrets=[OTHER_SECRET])
    await pushing.set_again(max_in_flight=3)
    await pushing.put(body=1)
    await pushing.until_gone()
    (request,) = pushing.target.requests
    assert Webhook(OTHER_SECRET).verify(request.body, request.headers) == 1
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body, request.headers)


async def test_an_error_releases_the_job_with_the_beginning_of_the_response(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(422, b"no such\n order" + b"x" * 500))
    await pushing.push()
    await pushing.put(backoff={"kind": "fixed", "seconds": 60})
    job = await pushing.until_state(JobState.DELAYED)
    assert job.attempts == 1
    assert job.last_error == "the target responded with status 422: no such order" + "x" * 186


async def test_a_retry_has_the_same_message_id_and_the_next_attempt(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(500), Reply(200))
    await pushing.push()
    await pushing.put(backoff={"kind": "fixed", "seconds": 0.1})
    await pushing.until_gone()
    first, second = pushing.target.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [one.headers["deferd-attempt"] for one in (first, second)] == ["1", "2"]
    await pushing.put()
    await pushing.until_received(3)
    assert pushing.target.requests[2].headers["webhook-id"] != first.headers["webhook-id"]


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_snoozes_the_job(pushing: PushingEngine, status: int) -> None:
    pushing.target.reply_with(Reply(status, headers={"retry-after": "40"}))
    await pushing.push()
    await pushing.put()
    job = await pushing.until_state(JobState.DELAYED)
    assert job.attempts == 0
    assert job.endings.snoozes == 1
    assert 30 < job.due_at_ms / 1000 - time.time() < 50
    assert (await pushing.state()).circuit == "open"


async def test_without_a_retry_after_that_can_be_read_a_503_counts_as_an_attempt(pushing: PushingEngine) -> None:
    await pushing.push()
    for job_id, value in (("a", None), ("b", "soon"), ("c", "-5")):
        pushing.target.reply_with(Reply(503, headers={} if value is None else {"retry-after": value}))
        await pushing.put(job_id, backoff={"kind": "fixed", "seconds": 60})
        job = await pushing.until_state(JobState.DELAYED, job_id)
        assert job.attempts == 1


async def test_a_410_buries_the_job(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(410, b"gone for good"))
    await pushing.push()
    await pushing.put()
    job = await pushing.until_state(JobState.DEAD)
    assert (job.reason, job.last_error) == ("buried", "the target responded with status 410: gone for good")


async def test_a_redirect_is_not_followed(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(307, headers={"location": f"{pushing.target.url}/other"}))
    await pushing.push()
    await pushing.put(backoff={"kind": "fixed", "seconds": 60})
    job = await pushing.until_state(JobState.DELAYED)
    assert job.last_error == "the target responded with status 307; redirects are not followed"
    assert [one.target for one in pushing.target.requests] == ["/hook"]


async def test_a_202_leaves_the_job_to_the_receiver(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(202))
    await pushing.push()
    await pushing.put(ttr=60, retain=60)
    await until(lambda: len(pushing.target.requests) == 1 and pushing.target.under_way == 0, "the response was sent")
    receipt = Receipt.of(pushing.target.requests[0].headers["deferd-receipt"])
    await pushing.engine.queue.finish(TOPIC, "a", receipt, {"done": 1})
    job = await pushing.until_state(JobState.FINISHED)
    assert job.result == b'{"done":1}'
    assert len(pushing.target.requests) == 1


async def test_a_job_that_was_accepted_comes_back_when_its_ttr_ends(pushing: PushingEngine) -> None:
    pushing.target.reply_with(Reply(202), Reply(200))
    await pushing.push(timeout=0.5)
    await pushing.put(ttr=1)
    await pushing.until_gone()
    first, second = pushing.target.requests
    assert second.at_s - first.at_s >= 0.95
    assert second.headers["deferd-attempt"] == "2"


async def test_a_target_that_does_not_respond_in_time_is_closed(pushing: PushingEngine) -> None:
    pushing.target.hang()
    await pushing.push(timeout=0.2)
    await pushing.put(backoff={"kind": "fixed", "seconds": 60})
    job = await pushing.until_state(JobState.DELAYED)
    assert job.last_error == "the target did not respond within 0.2 s"
    assert job.attempts == 1
    await until(lambda: pushing.target.closed == 1, "the connection was closed")


async def test_a_request_may_take_longer_than_the_ttr(pushing: PushingEngine) -> None:
    async def slow(_request: Received) -> Reply:
        await asyncio.sleep(1.5)
        return Reply(200)

    pushing.target.respond = slow
    await pushing.push(timeout=10)
    await pushing.put(ttr=0.5)
    await pushing.until_gone()
    assert len(pushing.target.requests) == 1


async def test_a_cancel_closes_the_request(pushing: PushingEngine) -> None:
    pushing.target.hang()
    await pushing.push(timeout=60)
    await pushing.put()
    await pushing.until_received(1)
    began_s = time.monotonic()
    assert await pushing.engine.cancels.cancel(TOPIC, "a") is JobState.RESERVED
    await until(lambda: pushing.target.closed == 1, "the request was closed")
    assert time.monotonic() - began_s < 5
    assert (await pushing.state()).failures == 0


async def test_a_job_that_is_taken_back_is_pushed_again_and_its_first_request_is_closed(pushing: PushingEngine) -> None:
    pushing.target.hang()
    await pushing.push(timeout=60, max_in_flight=1)
    await pushing.put()
    await pushing.until_received(1)
    began_s = time.monotonic()
    [result] = await pushing.engine.held_jobs.return_many(TOPIC, [JobToReturn(id="a")])
    assert result.status == 200
    await until(lambda: pushing.target.closed == 1, "the first request was closed")
    assert time.monotonic() - began_s < 5
    await pushing.until_received(2)
    assert (await pushing.state()).failures == 0


async def test_a_response_that_is_too_large_is_no_result(pushing: PushingEngine) -> None:
    large = json_reply("x" * 65_536)
    pushing.target.reply_with(large)
    await pushing.push()
    await pushing.put(retain=60)
    job = await pushing.until_state(JobState.FINISHED)
    assert job.result is None


async def test_a_response_of_64_kib_is_a_result(pushing: PushingEngine) -> None:
    reply = json_reply("x" * (65_536 - 2))
    pushing.target.reply_with(reply)
    await pushing.push()
    await pushing.put(retain=60)
    job = await pushing.until_state(JobState.FINISHED)
    assert job.result == reply.body


async def test_what_is_not_json_is_no_result(pushing: PushingEngine) -> None:
    await pushing.push()
    as_json = {"content-type": "application/json"}
    bodies = (b'{"a": ', b"NaN", b"[" * 191 + b"]" * 191, b"1e999")
    replies = [Reply(200, b'{"a": 1}', {"content-type": "text/plain"}), Reply(204)]
    for number, reply in enumerate([*replies, *(Reply(200, body, as_json) for body in bodies)]):
        pushing.target.reply_with(reply)
        await pushing.put(f"j{number}", retain=60)
        job = await pushing.until_state(JobState.FINISHED, f"j{number}")
        assert job.result is None


async def test_a_response_that_is_not_http_or_has_too_large_a_head_is_an_error(pushing: PushingEngine) -> None:
    many = b"".join(b"h%d: x\r\n" % number for number in range(500))
    heads = (b"nonsense", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000, b"HTTP/1.1 200 OK\r\n" + many)
    await pushing.push(timeout=0.5)
    for number, raw in enumerate([*(head + b"\r\n\r\n" for head in heads), b""]):
        pushing.target.reply_with(Reply(raw=raw))
        await pushing.put(f"j{number}", backoff={"kind": "fixed", "seconds": 60})
        job = await pushing.until_state(JobState.DELAYED, f"j{number}")
        assert job.attempts == 1
        assert job.last_error is not None
        assert len(job.last_error) < 700


async def test_nobody_can_pop_a_pushed_topic(pushing: PushingEngine) -> None:
    waiting = asyncio.create_task(pushing.engine.dispatcher.pop([TOPIC], wait_ms=60_000))
    await until(lambda: pushing.engine.dispatcher.waiting.count == 1, "the pop waits")
    await pushing.push()
    with pytest.raises(TopicPushed):
        await waiting
    with pytest.raises(TopicPushed):
        await pushing.engine.queue.pop(TOPIC, [PopRequest(1)])
    with pytest.raises(TopicPushed):
        await pushing.engine.dispatcher.pop(["other", TOPIC], wait_ms=60_000)
    with pytest.raises(TopicPushed):
        await pushing.engine.dispatcher.pop(["other", TOPIC], wait_ms=0, request_id="again")


async def test_patterns_leave_out_pushed_topics(pushing: PushingEngine) -> None:
    pushing.target.hang()
    await pushing.push(max_in_flight=1)
    waiting = asyncio.create_task(
        pushing.engine.dispatcher.pop([], selection=TopicSelection(["*"]), count=10, wait_ms=30_000)
    )
    await pushing.put("a")
    await pushing.put("b")
    await pushing.until_received(1)
    assert not waiting.done()
    await pushing.put("c", "other")
    assert [job.id for job in await waiting] == ["c"]


async def test_jobs_can_be_popped_again_when_the_push_was_removed(pushing: PushingEngine) -> None:
    await pushing.push()
    await pushing.engine.push.remove(TOPIC)
    await pushing.put()
    (job,) = await pushing.engine.dispatcher.pop([TOPIC], wait_ms=10_000)
    assert job.id == "a"
    assert pushing.target.requests == []


async def test_a_paused_topic_is_not_pushed(pushing: PushingEngine) -> None:
    await pushing.push()
    await pushing.engine.topics.pause(TOPIC)
    await pushing.put("a")
    await pushing.put("b", "other")
    await pushing.push("other")
    await pushing.until_gone("b", "other")
    assert pushing.target.ids == ["b"]
    await pushing.engine.topics.resume(TOPIC)
    await pushing.until_gone("a")

"""The client when responses are lost, gateways fail and services go away: no job is lost or put twice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from freezegun import freeze_time

from deferd import (
    AsyncClient,
    Client,
    ExponentialBackoff,
    FixedBackoff,
    InvalidInput,
    JobExists,
    JobRef,
    NoAnswer,
    ReceiptStale,
    ScheduleBackoff,
    TopicFull,
    Unreachable,
)
from deferd.client.errors import ClientClosed
from deferd.client.job_requests import matches_put
from tests.acceptance.client.lossy_proxy import LossyProxy, lossy_proxy
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def client(proxy: LossyProxy) -> Iterator[Client]:
    with Client(proxy.url, timeout=5) as client:
        yield client


@pytest.fixture
def direct(shared_service: ServiceProcess) -> Iterator[Client]:
    """A client without a proxy between itself and the service."""
    with Client(shared_service.url) as client:
        yield client


@pytest.mark.parametrize("own_id", [None, "a"])
def test_a_put_with_a_lost_response_is_reported_as_done(
    proxy: LossyProxy, client: Client, topic: str, own_id: str | None
) -> None:
    proxy.lose_responses(2)
    backoff = FixedBackoff(seconds=3)
    job = client.put(topic, {"n": [1.5, None]}, id=own_id, delay=60, ttr=7, max_attempts=3, backoff=backoff)
    assert (job.state, job.body) == ("delayed", {"n": [1.5, None]})
    assert client.topic(topic).counts["delayed"] == 1


@pytest.mark.parametrize(
    "backoff",
    [
        FixedBackoff(seconds=10 / 3, jitter=1 / 3),
        ExponentialBackoff(base=10 / 3, cap=86_400 - 1 / 3, jitter=2 / 3),
        ScheduleBackoff(seconds=[1 / 3, 200 / 3, 86_400 - 1 / 7]),
    ],
)
def test_a_backoff_of_many_digits_is_the_same_job_after_a_lost_response(
    proxy: LossyProxy, client: Client, topic: str, backoff: FixedBackoff | ExponentialBackoff | ScheduleBackoff
) -> None:
    client.set_topic(topic, {"ttr": 30})  # its default is written into each job
    proxy.lose_responses()
    job = client.put(topic, id="a", delay=60, backoff=backoff)
    assert job.backoff == backoff
    other = client.put(topic, id="b", delay=60, backoff=backoff)
    changed = client.change(topic, "b", ttr=31)
    assert job.fields["backoff"] == other.fields["backoff"] == changed.fields["backoff"]
    settings = client.set_topic(topic, {"backoff": backoff.model_dump()}).fields["settings"]
    assert settings["backoff"] == client.topic(topic).fields["settings"]["backoff"] == job.fields["backoff"]
    assert client.put(topic, id="c").fields["backoff"] == job.fields["backoff"]


@pytest.mark.parametrize(
    "other",
    [{"body": "other"}, {"delay": 61}, {"delay": 60, "ttr": 8}, {"delay": 60, "backoff": {"kind": "fixed"}}],
    ids=["body", "due time", "ttr", "backoff"],
)
def test_a_different_job_with_the_id_is_not_taken_for_the_put_after_a_lost_response(
    proxy: LossyProxy, client: Client, topic: str, other: dict[str, object]
) -> None:
    client.put_batch([{"topic": topic, "id": "a", "body": None, "delay": 60, **other}])
    proxy.lose_responses()
    with pytest.raises(JobExists):
        client.put(topic, id="a", delay=60, ttr=7, backoff={"kind": "exponential"})


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_put_with_a_lost_response_whose_job_is_gone_is_reported_as_unknown(
    proxy: LossyProxy, client: Client, direct: Client, topic: str, in_batch: bool
) -> None:
    def put() -> str | None:
        if in_batch:
            return client.put_batch([{"topic": topic, "id": "a"}])[0].code
        with pytest.raises(NoAnswer, match="was lost; a job of this id was there"):
            client.put(topic, id="a")
        return NoAnswer.code

    proxy.lose_responses()
    proxy.hold_response()
    with ThreadPoolExecutor(1) as threads:
        putting = threads.submit(put)
        wait_until(lambda: proxy.responded == 2, 10, "it is put again")
        [job] = direct.pop(topic, wait=5)
        direct.finish(job)
        proxy.release_responses()
        assert NoAnswer.code == putting.result(10)
    assert direct.topic(topic).counts["ready"] == 0


def test_a_batch_with_a_lost_response_succeeds_except_for_real_conflicts(
    proxy: LossyProxy, client: Client, topic: str
) -> None:
    client.put(topic, "theirs", id="taken")
    proxy.lose_responses()
    results = client.put_batch(
        [{"topic": topic, "id": "mine", "body": 1}, {"topic": topic, "id": "taken", "body": 2}, {"topic": topic}]
    )
    assert [None, "job_exists", None] == [result.code for result in results]
    assert client.topic(topic).counts["ready"] == 3


def test_a_pop_with_a_lost_response_returns_the_same_jobs(proxy: LossyProxy, client: Client, topic: str) -> None:
    client.put_batch([{"topic": topic, "id": name} for name in "abc"])
    proxy.lose_responses()
    assert ["a", "b"] == [job.id for job in client.pop(topic, count=2, wait=0)]
    assert ["c"] == [job.id for job in client.pop(topic, count=2, wait=0)]


@pytest.mark.parametrize("retain", [0, 60])
def test_a_finish_with_a_lost_response_succeeds(proxy: LossyProxy, client: Client, topic: str, retain: float) -> None:
    client.put_batch([{"topic": topic, "id": name, "retain": retain} for name in "abc"])
    first, *others = client.pop(topic, count=3)
    proxy.lose_responses()
    client.finish(first)
    proxy.lose_responses()
    assert [200, 200] == [result.status for result in client.finish_many(topic, others)]


def test_a_cancel_with_a_lost_response_is_reported_as_unknown(proxy: LossyProxy, client: Client, topic: str) -> None:
    client.put(topic, id="a")
    proxy.lose_responses()
    with pytest.raises(NoAnswer, match="lost"):
        client.cancel(topic, "a")


def test_only_repeatable_requests_are_retried_after_a_lost_response(
    proxy: LossyProxy, client: Client, topic: str
) -> None:
    client.put_batch([{"topic": topic, "id": name} for name in "ab"])
    client.pop(topic)
    proxy.lose_responses()
    with pytest.raises(NoAnswer):
        client.release(JobRef(topic, "a"), delay=0)  # without a receipt, a second one could affect the next delivery
    sent = len(proxy.heads)
    proxy.lose_responses()
    with pytest.raises(NoAnswer):
        client.purge(topic)
    assert len(proxy.heads) == sent + 1


def test_a_release_with_a_lost_response_is_a_stale_receipt(proxy: LossyProxy, client: Client, topic: str) -> None:
    client.put(topic)
    [delivery] = client.pop(topic)
    proxy.lose_responses()
    with pytest.raises(ReceiptStale):
        client.release(delivery, delay=60)


@pytest.mark.parametrize("sent", [True, False])
def test_transient_errors_of_a_gateway_are_retried(
    proxy: LossyProxy, client: Client, topic: str, *, sent: bool
) -> None:
    proxy.respond(502, sent=sent)
    assert client.put(topic, id="a").id == "a"
    assert client.topic(topic).counts["ready"] == 1


def test_retry_after_is_honoured(proxy: LossyProxy, client: Client, topic: str) -> None:
    problem = json.dumps({"code": "rate_limited", "detail": "slowly"}).encode()
    proxy.respond(429, "retry-after: 1", sent=False, body=problem)
    began_s = time.monotonic()
    client.put(topic)
    assert time.monotonic() - began_s >= 1


def test_a_put_into_a_full_topic_is_retried_for_retry_for(
    shared_service: ServiceProcess, direct: Client, topic: str
) -> None:
    direct.set_topic(topic, {"max_jobs": 1})
    direct.put(topic, id="a")
    with Client(shared_service.url, retry_for=0.3) as client, pytest.raises(TopicFull) as full:
        client.put(topic)
    assert (full.value.topic, full.value.max_jobs) == (topic, 1)


def test_each_url_is_tried_once_even_with_retry_for_0(shared_service: ServiceProcess, topic: str) -> None:
    with Client([NOBODY, shared_service.url], retry_for=0) as client:
        assert client.put(topic).topic == topic


def test_retries_end_after_retry_for_and_the_error_says_why() -> None:
    began_s = time.monotonic()
    with Client([NOBODY, "http://127.0.0.1:10"], retry_for=0.3) as client, pytest.raises(Unreachable, match="POST"):
        client.put("orders")
    assert time.monotonic() - began_s < 10


def test_a_response_that_takes_too_long_raises_no_answer(proxy: LossyProxy, topic: str) -> None:
    with Client(proxy.url, timeout=0.2, retry_for=0) as client:
        client.pop(topic, wait=0.3)  # the wait of a pop is not part of the time-out
        proxy.hang()
        with pytest.raises(NoAnswer):
            client.get(topic, "a")


def test_the_key_is_sent_with_each_request_and_never_shown(proxy: LossyProxy, topic: str) -> None:
    with Client(proxy.url, key="s3cret") as client:
        client.put(topic)
        assert "authorization: Bearer s3cret" in proxy.heads[-1]
        assert "s3cret" not in repr(client)
        assert "s3cret" not in repr(vars(client))


def test_a_client_without_a_url_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="URL"):
        Client([])


def test_a_closed_client_raises_at_once() -> None:
    client = Client(NOBODY, retry_for=3600)
    client.close()
    with pytest.raises(ClientClosed):
        client.put("orders")


@pytest.mark.parametrize("key", ["s3cr\u00e9t", "s3cret s3cret", "s3cret\ns3cret"])
def test_an_invalid_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII") as refused:
        Client(NOBODY, key=key)
    assert "s3c" not in str(refused.value)


def test_url_and_key_default_to_the_environment(proxy: LossyProxy, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFERD_URL", f"{NOBODY}, {proxy.url}")
    monkeypatch.setenv("DEFERD_KEY", "s3cret\n")
    with Client() as client:
        client.put(topic)
    assert "authorization: Bearer s3cret" in proxy.heads[-1].splitlines()


def test_an_unreachable_service_after_a_lost_response_raises_no_answer(proxy: LossyProxy, topic: str) -> None:
    proxy.lose_responses()
    with Client([proxy.url, NOBODY], retry_for=0) as client, pytest.raises(NoAnswer, match="may have been") as failed:
        client.put(topic)
    assert not isinstance(failed.value, Unreachable)


@pytest.mark.parametrize("value", [1 / 3, timedelta(seconds=1) / 3])
def test_a_stored_job_matches_its_put_after_rounding(
    proxy: LossyProxy, client: Client, topic: str, value: float | timedelta
) -> None:
    proxy.lose_responses()
    assert client.put(topic, id="a", ttr=value, ttl=value, retain=value, delay=value).id == "a"


@pytest.mark.parametrize("run_at", ["2030-06-30T23:59:60Z", "2030-06-30T12:00:00.1234567Z"])
def test_a_stored_job_matches_its_put_for_every_form_of_the_due_time(
    proxy: LossyProxy, client: Client, topic: str, run_at: str
) -> None:
    proxy.lose_responses()
    [result] = client.put_batch([{"topic": topic, "id": "a", "run_at": run_at}])
    assert (result.id, result.status) == ("a", 201)


def test_a_stored_job_matches_its_put_after_a_delivery_and_a_release(direct: Client, topic: str) -> None:
    fields = {"topic": topic, "id": "a", "delay": 0.05, "body": [1]}
    direct.put_batch([fields])
    [delivery] = direct.pop(topic, wait=5)
    assert matches_put(direct.get(topic, "a"), fields)
    direct.release(delivery, delay=60)
    assert matches_put(direct.get(topic, "a"), fields)


def test_a_call_from_another_event_loop_is_refused(shared_service: ServiceProcess, topic: str) -> None:
    client = AsyncClient(shared_service.url)

    async def put_and_close() -> None:
        async with client:
            await client.put(topic)

    asyncio.run(put_and_close())
    with pytest.raises(RuntimeError, match="one for each loop"):
        asyncio.run(client.get(topic, "a"))


def test_forked_processes_share_no_connection(shared_service: ServiceProcess, topic: str) -> None:
    program = """
import multiprocessing, sys
from deferd import Client
client = Client(sys.argv[1])
names = [f"j{number}" for number in range(4)]
for name in names:
    client.put(sys.argv[2], id=name)
def look(name):
    return {client.get(sys.argv[2], name).id for _ in range(50)} == {name}
processes = multiprocessing.get_context("fork")
with processes.Pool(4) as pool:
    sys.exit(0 if all(pool.map(look, names, chunksize=1)) else 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, shared_service.url, topic],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("bad", [object(), "\ud800", {"x": b"\xff"}], ids=["object", "lone", "bytes"])
def test_a_body_that_is_not_json_is_refused_before_it_is_sent(proxy: LossyProxy, client: Client, bad: object) -> None:
    with pytest.raises(InvalidInput, match="body"):
        client.put("orders", body=bad)
    assert proxy.heads == []


# A finish that puts jobs


# Under a wall clock that tests have frozen


def test_retries_end() -> None:
    with freeze_time("2020-02-02"), Client("http://127.0.0.1:9", retry_for=0.2) as client, pytest.raises(Unreachable):
        client.put("orders")


def test_calls_time_out_and_are_repeated(shared_service: ServiceProcess, topic: str) -> None:
    with lossy_proxy(shared_service.url) as proxy, freeze_time("2020-02-02"), Client(proxy.url, timeout=0.3) as client:
        proxy.hang()
        client.put(topic, 1, id="a")
        [job] = client.pop(topic, wait=0)
        client.finish(job)
        assert (job.id, time.time()) == ("a", 1580601600)

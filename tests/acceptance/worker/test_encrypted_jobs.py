"""Jobs that only the application can read, through a real service to a worker and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from deferd import AsyncClient, Cipher, Client, Context, FixedBackoff, JobExists, Undecryptable, Worker
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import in_state, serving
from tests.waiting import until

SECRET = "ada.lovelace@example.com"
SOON = FixedBackoff(seconds=0.01)
OLD, NEW = Cipher.new_key("old"), Cipher.new_key("new")
CIPHER = Cipher(NEW, OLD, headers=True, errors=True)


class Mail(BaseModel):
    to: int


@pytest.fixture
async def client(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared_service.url, cipher=CIPHER) as client:
        yield client


@pytest.fixture
def worker(shared_service: ServiceProcess) -> Worker:
    return Worker(shared_service.url, grace=5, cipher=CIPHER)


def in_store(service: ServiceProcess, text: str) -> bool:
    """Whether the store has ever written the text to its files."""
    return any(text.encode() in path.read_bytes() for path in service.data_dir.rglob("*") if path.is_file())


async def test_the_store_sees_nothing_of_what_producers_and_handlers_read(
    shared_service: ServiceProcess,
    client: AsyncClient,
    worker: Worker,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    kept: dict[str, Any] = {"retain": 60, "headers": {"to": SECRET}}
    ends: Any = {"topic": f"{topic}.ends", "body": True}
    seen: list[Any] = []

    @worker.handler(topic)
    async def send(body: Any, context: Context) -> Any:
        assert context.headers["to"] == SECRET
        if body == {"fails": SECRET} and context.job.attempt == 1:
            raise ValueError(f"not yet: {SECRET}")
        context.put(f"{topic}.next", [SECRET, context.job.id], id=f"next-{context.job.id}", **kept)
        return {"sent to": body}

    @worker.handler(f"{topic}.ends")
    def ended(body: Any) -> None:
        seen.append(body)

    async with serving(worker):
        puts = [client.put(topic, {"to": SECRET, "n": n}, id=f"n{n}", **kept) for n in range(5)]
        assert [job.body["to"] for job in await asyncio.gather(*puts)] == [SECRET] * 5  # they share requests
        results = await client.put_batch([{"topic": topic, "body": SECRET, "id": "batch", **kept}])
        await client.put(topic, {"fails": SECRET}, id="fails", backoff=SOON, on_end=ends, **kept)
        await client.put(topic, 1, id="changed", delay=600, **kept)
        await client.change(topic, "changed", body=[SECRET], delay=0)
        finished = await in_state(client, topic, "fails", "finished")
        for job_id in ("n0", "n4", "batch", "changed"):
            await in_state(client, topic, job_id, "finished")
        await until(lambda: len(seen) == 1, "the end of the job is handled")
    assert [result.status for result in results] == [201]
    assert finished.result == {"sent to": {"fails": SECRET}}
    assert [one.error for one in finished.attempts_log] == [f"ValueError: not yet: {SECRET}"]
    [end] = seen
    assert (end["body"], end["result"], end["headers"]) == ({"fails": SECRET}, finished.result, {"to": SECRET})
    [following] = [job async for job in client.jobs(f"{topic}.next", ids=["next-fails"])]
    assert (following.body, following.headers) == ([SECRET, "fails"], {"to": SECRET})

    for item in (SECRET, {"n": 2}):
        await client.put(f"{topic}.collected", item, id="a", on_conflict="append", delay=600)
    assert (await client.get(f"{topic}.collected", "a")).body == [SECRET, {"n": 2}]
    stored = [await client.put_schedule(topic, topic, every=3600, job={"body": SECRET}) for _ in range(2)]
    assert stored[0].job["body"] == SECRET
    assert stored[0].updated_at == stored[1].updated_at  # it was left alone
    with Client(shared_service.url) as plain:
        assert plain.get(topic, "n0").body.keys() == {"deferd:encrypted", "key", "data"}
        plain.put(topic, f"plain {SECRET[::-1]}", delay=600)
    assert in_store(shared_service, SECRET[::-1])
    assert not in_store(shared_service, SECRET)
    assert SECRET not in "".join(shared_service.lines)
    deferd_logs = [record for record in caplog.records if record.name.startswith("deferd") and record.levelno < 30]
    assert not any(SECRET in record.getMessage() for record in deferd_logs)


async def test_a_put_whose_response_was_lost_knows_its_own_job(proxy: LossyProxy, topic: str) -> None:
    """The job that is stored, and what a second attempt sends, differ in each byte that is encrypted."""
    async with AsyncClient(proxy.url, cipher=CIPHER) as client:
        proxy.lose_responses()
        assert (await client.put(topic, {"to": SECRET}, id="a", delay=600)).body == {"to": SECRET}
        proxy.lose_responses()
        with pytest.raises(JobExists):
            await client.put(topic, {"to": "bob"}, id="a", delay=600)
        async with AsyncClient(proxy.url, cipher=Cipher(Cipher.new_key("gone"))) as other:
            proxy.lose_responses()
            with pytest.raises(JobExists):  # which it cannot read, so it is none of its own
                await other.put(topic, {"to": SECRET}, id="a", delay=600)
        await client.put(topic, 1, id="held", retain=60)
        [held] = await client.pop(topic)
        proxy.lose_responses()
        await client.finish(held, {"sent to": SECRET}, put=[{"topic": topic, "body": SECRET, "id": "next"}])
        assert (await client.get(topic, "held")).result == {"sent to": SECRET}


async def test_a_job_that_the_worker_cannot_decrypt_fails_and_others_run(
    shared_service: ServiceProcess, client: AsyncClient, worker: Worker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[Any] = []

    @worker.handler(topic)
    async def handle(body: Any) -> None:
        done.append(body)

    gone = Cipher.new_key("gone")
    async with AsyncClient(shared_service.url, cipher=Cipher(gone)) as other:
        await other.put(topic, 1, id="foreign", max_attempts=2, backoff=SOON)
    async with AsyncClient(shared_service.url, cipher=Cipher(OLD)) as earlier:
        await earlier.put(topic, 2, id="earlier", retain=60)
    async with serving(worker):
        await in_state(client, topic, "earlier", "finished")
        dead = await in_state(client, topic, "foreign", "dead")
    assert done == [2]
    assert [(one.levelname, one.exc_info) for one in caplog.records if hasattr(one, "job_id")] == [
        ("WARNING", None)
    ] * 2
    assert (dead.attempts, dead.reason) == (2, "attempts_exhausted")
    assert "Undecryptable: the body" in str(dead.last_error)
    assert "'gone', which this cipher does not have (it has new, old)" in str(dead.last_error)
    with pytest.raises(Undecryptable, match="'gone'"):
        _ = dead.body


async def test_the_error_of_a_body_that_does_not_fit_quotes_nothing_of_it(
    shared_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors are readable by default, so that people can group them."""
    cipher = Cipher(NEW)
    worker = Worker(shared_service.url, cipher=cipher)
    worker.handler(topic)(handle_mail)
    async with AsyncClient(shared_service.url, cipher=cipher) as client:
        await client.put(topic, {"to": SECRET}, id="a")
        async with serving(worker):
            dead = await in_state(client, topic, "a", "dead")
    assert dead.last_error == "the body does not fit: int_parsing"
    assert SECRET not in caplog.text


async def test_a_batch_gets_the_bodies_that_can_be_read(
    shared_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    cipher = Cipher(NEW)
    worker = Worker(shared_service.url, cipher=cipher)
    calls: list[list[Mail]] = []

    @worker.handler(topic, batch=10, within=0.05)
    async def send(mails: list[Mail]) -> None:
        calls.append(mails)

    async with (
        AsyncClient(shared_service.url, cipher=Cipher(Cipher.new_key("gone"))) as other,
        AsyncClient(shared_service.url, cipher=cipher) as client,
    ):
        await other.put(topic, {"to": 1}, id="foreign", max_attempts=1)
        jobs = [{"topic": topic, "body": {"to": to}, "id": job_id} for job_id, to in (("ok", 2), ("invalid", SECRET))]
        await client.put_batch([{**job, "retain": 60} for job in jobs])
        async with serving(worker):
            await in_state(client, topic, "ok", "finished")
            foreign = await in_state(client, topic, "foreign", "dead")
            invalid = await in_state(client, topic, "invalid", "dead")
    assert calls == [[Mail(to=2)]]
    assert "'gone'" in str(foreign.last_error)
    assert invalid.last_error == "the body does not fit: int_parsing"
    assert SECRET not in caplog.text


async def handle_mail(_mail: Mail) -> None:
    raise AssertionError("it is not called")

"""Streams of events with keys: what a key sees, and what becomes of the stream when the key changes."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.api.test_http_events import begun, stream
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess


def client(service: ServiceProcess, keys: KeysFile, name: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {keys.tokens[name]}"}
    return httpx.AsyncClient(base_url=service.url, headers=headers, timeout=20, verify=NO_TLS)


async def put(admin: httpx.AsyncClient, topic: str) -> None:
    (await admin.put(f"/topics/{topic}", json={"events": 10})).raise_for_status()
    (await admin.post("/jobs", json={"topic": topic})).raise_for_status()


async def test_a_key_sees_its_topics_only(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    secret, *ours = f"secret.{topic}", f"shop.{topic}.a", f"shop.{topic}.b"
    async with client(service, keys, "admin") as admin, client(service, keys, "shop") as shop:
        await put(admin, secret)
        async with stream(shop, last=10) as reader:
            await begun(reader)
            for name in (secret, ours[0], secret, ours[1]):
                await put(admin, name)
            messages = await reader.events(2)
        assert [message.data["topic"] for message in messages if message.data] == ours
        latest = (await shop.get("/events/latest")).json()
        assert [event["topic"] for event in latest["events"]] == ours[::-1]
        assert (await shop.get("/events", params={"topics": secret})).status_code == 403
        assert (await shop.get("/events/latest", params={"topics": secret})).status_code == 403
    async with client(service, keys, "put") as producer:
        assert (await producer.get("/events")).status_code == 403


@pytest.mark.slow
async def test_the_stream_of_a_revoked_key_ends_and_a_changed_key_counts_at_once(
    service: ServiceProcess, keys: KeysFile
) -> None:
    async with (
        client(service, keys, "admin") as admin,
        client(service, keys, "revoked") as revoked,
        stream(revoked, topics="*") as reader,
    ):
        await begun(reader)
        keys.add("revoked", "read", topics=("own.*",))
        await asyncio.sleep(4)  # the keys are read again each second, and the key of a stream is looked up again
        await put(admin, "foreign.a")
        await put(admin, "own.a")
        (message,) = await reader.events(1)
        assert message.data is not None
        assert message.data["topic"] == "own.a"
        keys.remove("revoked")
        with pytest.raises(EOFError):
            await reader.next()


async def test_one_key_leaves_streams_to_the_others(service: ServiceProcess, keys: KeysFile) -> None:
    async with (
        client(service, keys, "admin") as admin,
        client(service, keys, "shop") as shop,
        contextlib.AsyncExitStack() as opened,
    ):
        for _ in range(20):
            await opened.enter_async_context(stream(shop))
        refused = await shop.get("/events")
        async with stream(admin) as reader:
            await begun(reader)
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (503, "too_many_streams")
    assert problem["detail"] == "this process serves 20 streams of events to key 'shop' already"

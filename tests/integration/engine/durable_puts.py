"""Puts by an engine on a store started by the test, and checks of what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.store.connection import connect
from tests.integration.store.store_servers import StoreServer

TOPIC = "orders.close"
STORE_TIMEOUT_S = 1.0
CONFIRM_S = 1.0


@asynccontextmanager
async def engine_on(
    url: str, *, embedded: bool = False, confirm_s: float = CONFIRM_S, shards: int = 1
) -> AsyncIterator[Engine]:
    """An engine with its own connection to the store; its timer does not run."""
    store = await connect(url, timeout_s=STORE_TIMEOUT_S, confirm_s=confirm_s)
    engine = Engine(store, embedded=embedded, shards=shards)
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()


def job(job_id: str, durability: str | None = None, **fields: Any) -> PutJob:
    named = {} if durability is None else {"durability": durability}
    return PutJob.model_validate({"topic": TOPIC, "id": job_id, "delay": 600, **named, **fields})


async def put(engine: Engine, job_id: str, durability: str | None = None, **fields: Any) -> str:
    """Put a job and return the durability that it has reached."""
    return (await engine.puts.put(job(job_id, durability, **fields))).durability


async def put_when_in_step(engine: Engine, job_id: str, durability: str, **fields: Any) -> str:
    """Put a job, and repeat that until the replica has caught up."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await put(engine, job_id, durability, on_conflict="keep", **fields)
            except StoreUnavailable:
                await asyncio.sleep(0.05)


def stored_ids(server: StoreServer, topic: str = TOPIC) -> set[str]:
    return {key.decode() for key in server.command("HKEYS", f"deferd:{{0}}:{topic}:pool")}

"""What do tasks, previews and the list of changes cost the store?

    python -m tests.benchmarks.tasks [--jobs 20000]

For each, the time of the store in all and in its longest call, as it measures it, and the time for the caller. Nothing
is written to disk, and nothing else runs on the store.

cancel, reschedule, purge: as many delayed jobs of one topic. redrive: as many dead ones, of one error.
activity: a page of 100 of 10,000 changes, for a key that sees all, and for one that sees none of them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import redis

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.model import PutJob
from deferd.engine.activity_list import Change
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.topic_sweeps import Sweep
from deferd.store.connection import connect
from tests.benchmarks.inspection import empty_store
from tests.benchmarks.measuring import end_in_order, new_event_loop, show_target
from tests.benchmarks.script_calls import forget_calls, script_calls

_TOPIC = "orders.close"
_BATCH = 1000
_LONGEST_MS = 5
_CHANGE: dict[str, Any] = {
    "operation": "cancel_selected_jobs",
    "by": "ops",
    "via": "api",
    "topic": _TOPIC,
    "filter": None,
}
_SELECT: dict[str, Any] = {"state": "delayed", "topics": [_TOPIC]}


async def measured(what: str, client: redis.Redis, work: Awaitable[Any]) -> None:
    """Await the work and print what it cost."""
    forget_calls(client)
    began = time.perf_counter()
    await work
    caller_s = time.perf_counter() - began
    calls, store_ms, longest_ms = script_calls(client)
    print(f"{what}: {calls} calls, {store_ms:.1f} ms of the store, {caller_s * 1000:.0f} ms")
    show_target("ms of the store in its longest call", longest_ms, at_most=_LONGEST_MS)


async def put(engine: Engine, jobs: int, **fields: Any) -> None:
    for start in range(0, jobs, _BATCH):
        batch = [PutJob(topic=_TOPIC, id=f"order-{start + n}", body={"order": n}, **fields) for n in range(_BATCH)]
        await engine.puts.put_many(batch)
    await asyncio.sleep(0.01)


async def bury(engine: Engine, jobs: int) -> None:
    await put(engine, jobs)
    for _ in range(jobs // 100):
        reply = await engine.queue.pop(_TOPIC, [PopRequest(100)])
        buried = (engine.queue.bury(_TOPIC, one.id, ANY_RECEIPT, error=f"no {one.id}") for one in reply.jobs[0])
        await asyncio.gather(*buried)
    await asyncio.sleep(0.01)


async def do_task(engine: Engine, kind: str, **fields: Any) -> None:
    now_ms = await engine.sweeps.now_ms(_TOPIC)
    base = {"kind": kind, "begun": now_ms, "cutoff": now_ms, "limit": None, "visible": None, "topic": _TOPIC}
    task = await engine.task_runner.begin(f"{kind}-{now_ms}", {**base, "change": _CHANGE, **fields})
    while task.state == "running":
        await asyncio.sleep(0.2)
        task = await engine.tasks.get(task.id)
    assert (task.state, task.done) == ("done", task.total)


async def run(url: str, client: redis.Redis, jobs: int) -> None:
    """Measure everything and print it."""
    store = await connect(url, timeout_s=30)
    engine = Engine(store)
    await put(engine, jobs, delay=3600)
    preview = CancelSelected.model_validate({"select": _SELECT, "dry_run": True, "samples": 10, "limit": 100_000})
    await measured(f"preview of {jobs:,} cancels", client, engine.bulk.cancel(preview))
    await measured("reschedule", client, do_task(engine, "reschedule", call={"select": _SELECT, "by": 60}))
    await measured("cancel", client, do_task(engine, "cancel", call={"select": _SELECT}))
    await put(engine, jobs, delay=3600)
    await measured("purge", client, do_task(engine, "purge", sweep={"topic": _TOPIC}))
    await bury(engine, jobs)
    sweep: dict[str, Any] = {"topic": _TOPIC, "error": "no order-*"}
    looking = engine.sweeps.preview(Sweep(verb="redrive", **sweep), 10)
    await measured(f"preview of {jobs:,} redrives", client, looking)
    await measured("redrive", client, do_task(engine, "redrive", sweep=sweep))
    for number in range(10_000):
        engine.activity.record(Change(**{**_CHANGE, "filter": "x" * 200, "subject": str(number)}, outcome="done"))
        if number % 500 == 499:
            await engine.activity.page(lambda _: True, None, 1)
    await measured("activity", client, engine.activity.page(lambda _: True, None, 100))
    await measured("activity of other topics", client, engine.activity.page(lambda _: False, None, 100))
    engine.activity.record(Change(**_CHANGE, outcome="done"))
    await measured("one change", client, engine.activity.close())
    await engine.close()
    await store.close()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    options = parser.parse_args()
    end_in_order()
    with empty_store() as (server, client), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run(server.url, client, options.jobs))


if __name__ == "__main__":
    main()

"""Runs a program's worker in a test, until it has nothing to do."""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deferd.client import Client
from deferd.contract.errors import TopicNotFound
from deferd.worker import Context, Worker
from deferd.worker.handlers import CallNext

_LOOK_EACH_S = 0.01
_GRACE_S = 1.0


def run_until_idle(worker: Worker, url: str, client: Client, timeout_s: float) -> None:
    """See `ServiceForTests.run_until_idle`; `client` is one of the service at `url`."""
    begun = 0

    async def count(_context: Context, call_next: CallNext) -> Any:
        nonlocal begun
        begun += 1
        return await call_next()

    running = copy.copy(worker)
    running._url = url
    running._key = ""
    running._grace_s = min(worker._grace_s, _GRACE_S)
    running._middleware = [count, *worker._middleware]
    running._running, running._stop_requested = None, False
    end_s = time.monotonic() + timeout_s
    with ThreadPoolExecutor(1, "deferd-testing-worker") as thread:
        run = thread.submit(running.run)
        try:
            while not run.done():
                begun_before = begun
                # Twice, and no handler began meanwhile: a job that a handler put into a topic which was looked at
                # before that is seen the second time.
                busy = _busy(running, client) or _busy(running, client)
                if not busy and begun == begun_before:
                    break
                if time.monotonic() > end_s:
                    raise TimeoutError(f"the worker is not idle after {timeout_s:g} s: {', '.join(busy) or 'it works'}")
                time.sleep(_LOOK_EACH_S)
        finally:
            running.stop()
    run.result()


def _busy(worker: Worker, client: Client) -> list[str]:
    """What keeps a worker busy: ``["orders.close has 2 ready, 1 reserved"]``."""
    busy = []
    for topic in worker.topics:
        try:
            view = client.topic(topic)
        except TopicNotFound:
            continue
        ready, reserved = 0 if view.paused else view.counts["ready"], view.counts["reserved"]
        if ready or reserved:
            busy.append(f"{topic} has {ready} ready, {reserved} reserved")
    return busy

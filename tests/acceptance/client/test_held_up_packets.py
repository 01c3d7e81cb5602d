"""Packets of a request that are held up on their way, and come to the service when its client has gone on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient, Client, NoAnswer
from tests.acceptance.service_process import ServiceProcess
from tests.private_network import in_private_network, packets_held_up
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow(seconds=6),
    pytest.mark.usefixtures("private_network"),
]
TIMEOUT_S = 0.3
"""Of the client that gives up; the other one has time for a machine that is busy."""
PATIENT_S = 30.0
HELD_UP_S = 1.0
RESENT_WITHIN_S = 2.5
"""The kernel sends a packet again after 0.2 s, 0.4 s more, and so on: at the latest this long after it may pass."""

Call = Callable[..., Any]


def with_async_clients(url: str, use: Callable[[Call, Call], None]) -> None:
    with asyncio.Runner() as runner:
        clients = [AsyncClient(url, timeout=timeout_s, retry_for=0) for timeout_s in (TIMEOUT_S, PATIENT_S)]

        def calls(client: AsyncClient) -> Call:
            return lambda name, *args, **more: runner.run(getattr(client, name)(*args, **more))

        use(*map(calls, clients))
        for client in clients:
            runner.run(client.close())


def with_clients(url: str, use: Callable[[Call, Call], None]) -> None:
    def calls(client: Client) -> Call:
        return lambda name, *args, **more: getattr(client, name)(*args, **more)

    with Client(url, timeout=TIMEOUT_S, retry_for=0) as hasty, Client(url, timeout=PATIENT_S, retry_for=0) as patient:
        use(calls(hasty), calls(patient))


def is_connected(hasty: Call) -> bool:
    """Whether the client has a connection that it will use."""
    try:
        hasty("is_ready")
    except NoAnswer:
        return False
    return True


@pytest.mark.parametrize("is_reset", [True, False])
def test_a_put_that_was_given_up_does_not_come_behind_its_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    """If the connection is not reset, the kernel delivers the request, and the service refuses it."""
    if not is_reset:
        for module in ("async_transport", "blocking_transport"):
            monkeypatch.setattr(f"deferd.client.{module}.reset_on_close", lambda _: None)

    def use_while_held_up(service: ServiceProcess, one: Call, other: Call, call: Call) -> None:
        hasty = {"to-cancel": one, "to-finish": other}
        for client in hasty.values():
            wait_until(partial(is_connected, client), PATIENT_S, "the client is connected")
        with packets_held_up(service.port) as held_up:
            began_s = time.monotonic()
            for job_id, client in hasty.items():
                with pytest.raises(NoAnswer):
                    client("put", "t", id=job_id)
            time.sleep(max(began_s + HELD_UP_S - time.monotonic(), 0))
        assert held_up.packets > 0
        call("put", "t", id="to-cancel")
        call("cancel", "t", "to-cancel")
        call("put", "t", id="to-finish")
        call("finish", *call("pop", "t", wait=0))
        time.sleep(RESENT_WITHIN_S)
        assert call("pop", "t", wait=0) == []
        refused = [line for line in call("metrics").splitlines() if "_count" in line and 'status="4xx"' in line]
        assert bool(refused) is not is_reset

    def run() -> None:
        service = ServiceProcess(tmp_path).start()

        def use_both(hasty: Call, call: Call) -> None:
            def use(blocking: Call, _: Call) -> None:
                use_while_held_up(service, *((hasty, blocking) if is_reset else (blocking, hasty)), call)

            with_clients(service.url, use)

        try:
            with_async_clients(service.url, use_both)
        finally:
            service.stop()

    in_private_network(run)

"""Thousands of clients that connect in the same moment do not keep the others waiting."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from deferd import Client
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import request

CLIENTS = 600
PROBE = request("GET", "/healthz")
READ_S = 20.0


def connected_socket(service: ServiceProcess, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=READ_S))


def test_a_client_that_is_known_is_served_before_most_of_those_that_begin(
    shared_service: ServiceProcess, topic: str
) -> None:
    put = request("POST", "/jobs", {"topic": topic})
    with ExitStack() as stack:
        known = connected_socket(shared_service, stack)
        known.sendall(PROBE)
        assert known.recv(4096).startswith(b"HTTP/1.1 200")
        new = [connected_socket(shared_service, stack) for _ in range(CLIENTS)]
        new[-1].sendall(PROBE)
        assert new[-1].recv(4096)  # so all have been accepted
        with shared_service.frozen():
            for each in new[:-1]:
                each.sendall(put)
            # The last of all, and it is there with all others when the service goes on.
            known.sendall(request("POST", "/jobs", {"topic": topic, "id": "known"}))
        for each in (known, *new[:-1]):
            assert each.recv(4096).startswith(b"HTTP/1.1 201")
    with Client(shared_service.url, key="") as client:
        order = [job.id for job in client.pop(topic, count=CLIENTS)]
    assert order.index("known") < CLIENTS / 2

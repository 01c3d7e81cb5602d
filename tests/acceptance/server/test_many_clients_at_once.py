"""Thousands of clients that connect in the same moment do not keep the others waiting."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

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
    look = request("GET", f"/topics/{topic}")
    with ExitStack() as stack:
        known = connected_socket(shared_service, stack)
        known.sendall(request("POST", "/jobs", {"topic": topic}))
        assert known.recv(4096).startswith(b"HTTP/1.1 201")
        new = [connected_socket(shared_service, stack) for _ in range(CLIENTS)]
        new[-1].sendall(PROBE)
        assert new[-1].recv(4096)  # so all have been accepted
        with shared_service.frozen():
            for each in new[:-1]:
                each.sendall(request("POST", "/jobs", {"topic": topic}))
            known.sendall(look)  # the last of all, and it is there with all others when the service goes on
        head, _, body = known.recv(4096).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert json.loads(body)["counts"]["ready"] < CLIENTS / 2
        for each in new[:-1]:
            assert each.recv(4096).startswith(b"HTTP/1.1 201")

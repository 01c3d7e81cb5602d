"""Clients in tests that have frozen the time of their program: time-outs and pauses end nevertheless."""

from __future__ import annotations

import time

import pytest
from freezegun import freeze_time

from deferd import Client, Unreachable
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess


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

"""`deferd system` and `deferd doctor`, and the reason of `deferd pause`."""

from __future__ import annotations

import json
import re
import time

import pytest

from deferd import Client
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.service_process import ServiceProcess


def test_system_shows_the_store_and_the_key(shell: Shell) -> None:
    lines = dict(line.split(maxsplit=1) for line in shell.good("system").splitlines())
    assert lines["durability"] == "fsync"
    assert lines["timers"].endswith(" of 1 shards")
    assert lines["scopes"] == "put, pop, cancel, read, admin"
    [found] = shell.json("system")
    assert found["store"]["embedded"] is True
    assert found["key"]["name"] is None


def test_doctor_has_a_line_for_each_check_and_each_replica(shell: Shell) -> None:
    lines = [line.split(maxsplit=2) for line in shell.good("doctor").splitlines()]
    assert [(status, check) for status, check, _ in lines] == [
        ("ok", check) for check in ("url", "key", "clock", "version", "store", "limits")
    ]
    texts = {check: text for _, check, text in lines}
    assert texts["key"] == "none is needed: the service has no keys"
    assert "durability fsync" in texts["store"]
    assert texts["limits"].startswith("max_body_bytes 1,048,576, ")
    both = shell.run("doctor", "--json", "--url", f"{shell.url},http://127.0.0.1:9")
    assert both.returncode == 1
    *_, unreachable = map(json.loads, both.stdout.splitlines())
    assert (unreachable["url"], unreachable["status"], unreachable["code"]) == ("http://127.0.0.1:9", "failed", 1)
    assert "Connection refused" in unreachable["text"]


def test_doctor_warns_of_another_clock_and_another_release(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the clock of this machine is so far behind that the service refuses what it sends."""
    monkeypatch.setattr("deferd.contract.clocks._CLOCKS", (time.monotonic, lambda: time.time() - 100))
    monkeypatch.setattr("deferd.cli.inspection.doctor.VERSION", "99.0.0")
    ran = shell.run("doctor", "--json")
    warnings = [one for one in map(json.loads, ran.stdout.splitlines()) if one["status"] == "warning"]
    assert [one["check"] for one in warnings] == ["clock", "version"]
    assert re.match(r"the store's clock is (99|100)\.\d+ s ahead of this machine's", warnings[0]["text"])
    assert ran.returncode == 6


def test_a_pause_says_why(shell: Shell, topic: str) -> None:
    shell.json("put", topic, "1")
    [paused] = shell.json("pause", topic, "--reason", "the bank is closed")
    assert paused["paused_reason"] == "the bank is closed"
    assert "the bank is closed" in shell.good("topic", topic)


def test_the_client_reads_topics_at_a_glance(shared_service: ServiceProcess, topic: str) -> None:
    with Client(shared_service.url) as client:
        found = client.overview(name=topic, sort="due", offset=0, limit=1)
        assert found.topics == []
        assert client.key().topics == ["*"]
        assert client.system().shard_count == 1

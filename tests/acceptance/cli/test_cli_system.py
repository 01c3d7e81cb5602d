"""`deferd system`, and the reason of `deferd pause`."""

from __future__ import annotations

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

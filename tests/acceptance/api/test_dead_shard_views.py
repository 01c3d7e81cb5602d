"""Views while a shard of a cluster is dead: they show what can be read and name what cannot."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from deferd import Client
from deferd.engine.redis_keys import Keys
from tests.acceptance.cli.preloaded_shell import PreloadedShell
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import running_service
from tests.integration.store.store_servers import ClusterSet

pytestmark = pytest.mark.slow

SHARDS = 6
KEYS = Keys(SHARDS)


def test_a_dead_shard_is_named_wherever_topics_are_shown(tmp_path: Path) -> None:
    with ClusterSet(tmp_path / "cluster") as cluster:
        cluster.mark_used(SHARDS)
        failing = cluster.holder_of(KEYS.of_shard(0, "due"))
        shards = [shard for shard in range(SHARDS) if cluster.holder_of(KEYS.of_shard(shard, "due")) is failing]
        names = [f"t{number}" for number in range(20)]
        dead = sorted(name for name in names if KEYS.shard_of(name) in shards)
        healthy = sorted(set(names) - set(dead))
        flags = ("--redis-url", cluster.url, "--shards", str(SHARDS))
        with running_service(*flags, data_dir=tmp_path / "service") as service, Client(service.url) as client:
            for name in names:
                client.put(name)
            failing.kill()
            shell = PreloadedShell(service.url)

            listed = shell.run("topics", "--json")
            assert sorted(json.loads(line)["topic"] for line in listed.stdout.splitlines()) == healthy
            assert f"shards {', '.join(map(str, shards))}" in listed.stderr
            assert f"unavailable: {', '.join(dead)}" in listed.stderr
            assert listed.returncode == 1

            audited = shell.run("audit")
            assert audited.returncode == 1
            assert "clean" not in audited.stdout

            metrics = httpx.get(f"{service.url}/metrics", verify=NO_TLS).text
            assert "\ndeferd_store_up 1.0\n" in metrics
            assert f"\ndeferd_store_unreadable_shards {float(len(shards))}\n" in metrics
            assert all((f'{{state="ready",topic="{name}"}}' in metrics) is (name in healthy) for name in names)
            assert httpx.get(f"{service.url}/readyz", verify=NO_TLS).status_code == 200

            for node in cluster.masters:
                node.kill()
            assert httpx.get(f"{service.url}/topics", timeout=10, verify=NO_TLS).status_code == 503
            assert httpx.get(f"{service.url}/readyz", timeout=10, verify=NO_TLS).status_code == 503

"""A rolling restart as Kubernetes makes it, under load from clients that repeat nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.server.rolling_restart import REPLICAS, restart_under_load

REQUESTS = 3000


@pytest.mark.slow(seconds=20)
async def test_no_request_fails_while_kubernetes_replaces_every_replica(tmp_path: Path) -> None:
    outcome, restarts = await restart_under_load(tmp_path, REQUESTS)

    assert outcome.is_clean, outcome.report()
    assert restarts >= REPLICAS
    assert outcome.responses["parked pop 200"] > 0

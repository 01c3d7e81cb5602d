"""A short run of cluster faults: each kind once, under load, and every promise is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.cluster_run import report_cluster, run_cluster_faults

pytestmark = pytest.mark.slow

SEED = 20_252


async def test_a_dead_shard_and_a_removed_node_affect_only_their_own_topics(tmp_path: Path) -> None:
    outcome = await run_cluster_faults(tmp_path, int(os.environ.get("DEFERD_FAULTS_SEED") or SEED), rounds=1)

    print(report_cluster(outcome))
    assert list(outcome.broken()) == []
    assert outcome.acknowledged > 100
    assert outcome.woken > 50

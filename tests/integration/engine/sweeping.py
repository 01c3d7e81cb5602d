"""Redrives and purges as sweeps."""

from __future__ import annotations

from collections.abc import Sequence

from deferd.contract.model import JobState
from deferd.engine.engine import Engine
from deferd.engine.topic_sweeps import Sweep


async def redrive_jobs(
    engine: Engine,
    topic: str,
    ids: Sequence[str] | None = None,
    limit: int = 1000,
    *,
    tag: str | None = None,
    reason: str | None = None,
) -> int:
    named = None if ids is None else tuple(ids)
    return await engine.sweeps.run(Sweep(verb="redrive", topic=topic, ids=named, limit=limit, tag=tag, reason=reason))


async def purge_jobs(
    engine: Engine, topic: str, state: JobState | None = None, *, tag: str | None = None, reason: str | None = None
) -> int:
    return await engine.sweeps.run(Sweep(verb="purge", topic=topic, state=state, tag=tag, reason=reason))

"""Rollouts: which release each of the two services is of, stage after stage, while a fault run goes on.

The clients, the worker and the push targets are of the present release in all stages. What they use must be in the
previous one too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple


class Release(StrEnum):
    """The release of a service; the value is its description in reports."""

    PRESENT = "the present release"
    PREVIOUS = "the previous release"


class Stage(NamedTuple):
    """The release of each service, and the share of the run's faults that come meanwhile."""

    releases: tuple[Release, Release]
    share: int


Rollout = Sequence[Stage]

_OLD, _NEW = Release.PREVIOUS, Release.PRESENT
NONE: Rollout = (Stage((_NEW, _NEW), 1),)
UPGRADE: Rollout = (Stage((_OLD, _OLD), 0), Stage((_NEW, _OLD), 1), Stage((_NEW, _NEW), 1))
ROLLBACK: Rollout = (Stage((_NEW, _NEW), 0), Stage((_OLD, _NEW), 1), Stage((_OLD, _OLD), 1))
BOTH: Rollout = (*UPGRADE[:2], *ROLLBACK[:2])
"""Each service is once the only one of the previous release, and all faults come while the releases differ."""
ROLLOUTS = {"upgrade": UPGRADE, "rollback": ROLLBACK}


def stages_until(rollout: Rollout, done: float) -> int:
    """How many of the stages have begun when this part of the run, from 0 to 1, is over."""
    shares = sum(stage.share for stage in rollout)
    begun, before = 0, 0
    for stage in rollout:
        if before > done * shares:
            break
        begun += 1
        before += stage.share
    return begun


def replacements(before: Stage, after: Stage) -> Iterator[tuple[int, Release]]:
    """The services whose release changes, and to which."""
    for number, (old, new) in enumerate(zip(before.releases, after.releases, strict=True)):
        if old is not new:
            yield number, new

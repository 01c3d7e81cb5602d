"""The stages of a rollout come when their share of the run begins, one service after the other."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.faults.rollout import BOTH, NONE, ROLLBACK, UPGRADE, Release, Rollout, replacements, stages_until

OLD, NEW = Release.PREVIOUS, Release.PRESENT


@pytest.mark.parametrize(
    ("rollout", "begun"),
    [(NONE, (1, 1, 1, 1)), (UPGRADE, (2, 2, 3, 3)), (ROLLBACK, (2, 2, 3, 3)), (BOTH, (2, 2, 4, 4))],
)
def test_a_stage_begins_when_the_shares_before_it_are_over(rollout: Rollout, begun: tuple[int, ...]) -> None:
    assert tuple(stages_until(rollout, done) for done in (0, 0.49, 0.5, 1)) == begun


@pytest.mark.parametrize("rollout", [UPGRADE, ROLLBACK, BOTH])
def test_one_service_is_replaced_at_a_time(rollout: Rollout) -> None:
    assert [len(list(replacements(*stages))) for stages in pairwise(rollout)] == [1] * (len(rollout) - 1)


def test_an_upgrade_ends_with_the_present_release_and_a_rollback_with_the_previous_one() -> None:
    assert (UPGRADE[0].releases, UPGRADE[-1].releases) == ((OLD, OLD), (NEW, NEW))
    assert (ROLLBACK[0].releases, ROLLBACK[-1].releases) == ((NEW, NEW), (OLD, OLD))

"""The model of the shelf: each job is in one place in every state, and each safeguard is needed."""

from __future__ import annotations

import pytest

from tests.unit.shelf.shelf_model import Model, Safeguard


@pytest.mark.slow
def test_each_job_is_in_one_place_in_every_state() -> None:
    states, wrong = Model(ends=2, batches=5).visit()
    assert wrong is None
    assert states > 50_000


@pytest.mark.parametrize(
    ("without", "wrong"),
    [
        ("late calls", "an acknowledged job is nowhere"),
        ("numbers taken", "an acknowledged job is nowhere"),
        ("held ids", "a job was created beside another one"),
        ("generation in puts", "a job was created beside another one"),
        ("second look", "a job was not found that was there all the time"),
    ],
)
def test_each_safeguard_is_needed(without: Safeguard, wrong: str) -> None:
    _, found = Model(ends=1, batches=4, without=[without]).visit()
    assert found is not None
    assert found.startswith(wrong)

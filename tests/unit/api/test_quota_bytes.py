"""What a quota of bytes counts of the options of a job, before the job is stored."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.api.auth.quota import _policy_bytes
from deferd.contract.model import PutJob

WINDOW = {"from": "09:00", "except": ["2026-12-24"] * 400}


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({}, 0, 0),
        ({"window": "office"}, 8, 8),
        ({"window": WINDOW}, 13 * 400, 13 * 400 + 40),
        ({"window": [WINDOW] * 20}, 20 * 13 * 400, 20 * (13 * 400 + 40)),
        ({"window": "office", "backoff": {"kind": "fixed"}}, 40, 80),
        ({"on_end": {"topic": "a" * 100}}, 100, 160),
    ],
)
def test_the_objects_of_a_policy_count_with_their_bytes(fields: dict[str, Any], least: int, most: int) -> None:
    assert least <= _policy_bytes(PutJob.model_validate({"topic": "t", **fields})) <= most

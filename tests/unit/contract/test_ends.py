"""`on_end`: what is wrong with it is named."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deferd.contract.ends import OnEnd
from deferd.contract.model import PutJob


@pytest.mark.parametrize(
    ("on_end", "field", "says"),
    [
        ({"on": ["finished"]}, "topic", "required"),
        ({"topic": "a b"}, "topic", "match pattern"),
        ({"topic": "t", "on": []}, "on", "at least 1"),
        ({"topic": "t", "on": ["dead", "dead"]}, "on", "must not repeat an outcome"),
        ({"topic": "t", "on": ["lost"]}, "on", "'finished', 'dead' or 'cancelled'"),
        ({"topic": "t", "id": "{name}"}, "id", "match pattern"),
        ({"topic": "t", "id": "a b"}, "id", r"\{(?:topic|id|outcome)\}"),
        ({"topic": "t", "id": "x" * 256}, "id", "at most 255"),
        ({"topic": "t", "body": 1}, "body", "boolean"),
        ({"topic": "t", "more": 1}, "more", "not permitted"),
    ],
)
def test_what_is_wrong_is_named(on_end: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PutJob.model_validate({"topic": "orders", "on_end": on_end})
    [error] = refused.value.errors()
    assert error["loc"][:2] == ("on_end", field)
    assert says in error["msg"]


def test_the_store_has_only_what_is_not_as_by_default() -> None:
    on_end = {"topic": "t", "on": ["cancelled", "dead"], "id": "{topic}-{id}.{outcome}", "body": True}
    assert OnEnd.model_validate(on_end).to_store() == {**on_end, "on": ["dead", "cancelled"]}
    assert OnEnd.model_validate({"topic": "t", "body": False, "id": None}).to_store() == {"topic": "t"}

"""Options that are about the jobs of one id: the client makes no id for them, which would be another one each time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import deferd
from deferd.client.idempotency import with_id
from deferd.contract.errors import InvalidInput

OPTIONS: list[dict[str, Any]] = [
    {"on_conflict": "append"},
    {"on_conflict": "append", "max_items": 3},
    {"on_conflict": "replace", "max_wait": timedelta(seconds=5)},
    {"on_conflict": "keep", "if_reserved": "after"},
    {"unique_for": 5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_client_refuses_such_a_put_without_an_id(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="needs an `id`"):
        with_id({"topic": "orders", "body": object(), **options})
    fields = {"topic": "orders", "body": 1, "id": "a", **options}
    assert with_id(dict(fields)) == fields


@pytest.mark.parametrize("options", [{}, {"on_conflict": "replace"}, {"on_conflict": "keep", "if_reserved": "refuse"}])
def test_the_client_makes_an_id_for_other_puts(options: dict[str, Any]) -> None:
    assert len(with_id({"topic": "orders", **options})["id"]) == 32


@pytest.mark.parametrize("options", OPTIONS)
def test_they_may_be_defaults_of_a_job_definition(options: dict[str, Any]) -> None:
    order = deferd.job("orders", int, **options)
    assert order.fields(1, id="a")["id"] == "a"


def test_a_default_that_is_out_of_its_bounds_is_refused_when_it_is_defined() -> None:
    with pytest.raises(InvalidInput, match="at least the `delay`, 6 seconds"):
        deferd.job("orders", int, on_conflict="replace", max_wait=5, delay=6)

"""The OpenAPI document of the repository. To read it takes a second, so all tests of a process share it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import NoneType
from typing import Any, get_args

import yaml

from deferd.api.openapi.__main__ import FILE
from deferd.contract.strict_model import StrictModel


@cache
def openapi_document() -> dict[str, Any]:
    """What openapi/openapi.yaml says. Whoever changes it copies it first."""
    document: dict[str, Any] = yaml.load(FILE.read_bytes(), yaml.CSafeLoader)
    return document


def fields_that_may_be_null(base: type[StrictModel] = StrictModel) -> Iterator[tuple[str, str]]:
    """The schema and the name of each field of requests for which the service reads null, also where it is not shown.

    Where null is as to leave the field out the document does not offer it: see `_leave_out_rather_than_null`.
    """
    for kind in base.__subclasses__():
        for name, field in kind.model_fields.items():
            if NoneType in get_args(field.annotation):
                yield kind.__name__, field.alias or name
        yield from fields_that_may_be_null(kind)

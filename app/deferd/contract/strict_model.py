"""The base of all models of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Refuses fields that it does not know, and does not change.

    `schema_examples`: its examples in OpenAPI, as JSON.
    """

    schema_examples: ClassVar[Sequence[dict[str, Any]]] = ()

    model_config = ConfigDict(extra="forbid", frozen=True)

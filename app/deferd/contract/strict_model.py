"""The base of all models of requests."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Refuses fields that it does not know, and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

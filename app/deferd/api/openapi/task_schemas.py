"""The responses of `deferd.api.routes.tasks` in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from deferd.api.response_models import model_of
from deferd.contract.responses.tasks import Task

ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": model_of(Task),
        "description": "With `as_task`: the task has begun.",
        "headers": {"Location": {"description": "The task's path.", "schema": {"type": "string"}}},
    }
}

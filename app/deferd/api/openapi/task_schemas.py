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
_TASK = {
    "id": "5f0c9a3be7d2481c",
    "kind": "redrive",
    "state": "running",
    "topic": "orders.close",
    "select": {"reason": "attempts_exhausted"},
    "cutoff": "2026-11-21T07:26:58.123Z",
    "by": "ops",
    "via": "console",
    "done": 180_000,
    "total": 312_402,
    "started_at": "2026-11-21T07:26:58.123Z",
}
EXAMPLES: dict[str, list[dict[str, Any]]] = {"Task": [_TASK], "Tasks": [{"tasks": [_TASK]}]}

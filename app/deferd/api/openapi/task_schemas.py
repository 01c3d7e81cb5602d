"""The schemas of the responses of `deferd.api.routes.tasks`, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field


class Task(BaseModel):
    """An action on many jobs that runs in the background."""

    id: str = Field(description="Name of the task.")
    kind: Literal["cancel", "reschedule", "redrive", "purge"] = Field(description="What it does.")
    state: Literal["running", "done", "stopped", "failed"] = Field(
        description="`failed`: because of a fault of the service, which its log describes. While the store is away it "
        "waits."
    )
    topic: str | None = Field(None, description="The topic, if it concerns one alone.")
    select: dict[str, Any] = Field(description="What selects the jobs, as it was given.")
    action: dict[str, Any] | None = Field(None, description="What happens to the jobs, as it was given, if anything.")
    cutoff: datetime = Field(
        description="It acts on jobs that were put until then, and on dead ones that died until then: when it began, "
        "without another `cutoff`."
    )
    by: str | None = Field(description="Who began it: see `GET /activity`.")
    via: Literal["console", "cli", "api"] = Field(description="By which way: see `GET /activity`.")
    done: int = Field(description="How many jobs it has changed, as of the last second.")
    of: int | None = Field(description="How many it found to change; `null` until they are counted.")
    started_at: datetime = Field(description="When it began.")
    ended_at: datetime | None = Field(None, description="When it ended.")


class Tasks(BaseModel):
    """The tasks that began last."""

    tasks: list[Task] = Field(description="The newest first.")


ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {
        "model": Task,
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
    "of": 312_402,
    "started_at": "2026-11-21T07:26:58.123Z",
}
EXAMPLES: dict[str, list[dict[str, Any]]] = {"Task": [_TASK], "Tasks": [{"tasks": [_TASK]}]}

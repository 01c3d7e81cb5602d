"""The schemas of the responses of `deferd.api.routes.activity`, for the OpenAPI document only."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field


class RecordedChange(BaseModel):
    """A change that a person or a key made. What does not apply is omitted."""

    at: datetime = Field(description="When it was recorded, just after it was made.")
    by: str | None = Field(
        description="Name of the key; on a service without keys the client's address, `null` if that is not known."
    )
    via: Literal["console", "cli", "api"] = Field(
        description="The way by which it came, as the request says: the console, the command line, or another program."
    )
    operation: str = Field(description="The operation, by its `operationId` in this document, such as `pause_topic`.")
    outcome: Literal["done", "unknown"] = Field(
        description="`unknown`: the store failed meanwhile, so that it may have been done, or a part of it."
    )
    topic: str | None = Field(None, description="The topic, if it concerns one.")
    subject: str | None = Field(None, description="The id of the job, or the name of the schedule or calendar.")
    filter: str | None = Field(
        None, description="What selected the jobs: the request's JSON, cut after 500 bytes; omitted for all."
    )
    count: int | None = Field(None, description="How many jobs it changed, where that is counted.")
    times: int | None = Field(
        None,
        description="How many calls the entry stands for, if several: calls on many jobs by a program, and commands "
        "with one job each, with the same operation, caller and topic within ten minutes. `count` is their sum; "
        "`subject` and `filter` are those of the last.",
    )
    last_at: datetime | None = Field(None, description="With `times`: when the last of them was recorded.")


class Activity(BaseModel):
    """One page of changes."""

    activity: list[RecordedChange] = Field(description="The newest first.")
    next_cursor: str | None = Field(description="Cursor of the next page; `null` on the last page.")


EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "Activity": [
        {
            "activity": [
                {
                    "at": "2026-11-21T07:26:58.123Z",
                    "by": "ops",
                    "via": "console",
                    "operation": "redrive_jobs",
                    "outcome": "done",
                    "topic": "orders.close",
                    "filter": '{"limit":1000,"reason":"attempts_exhausted"}',
                    "count": 312,
                },
                {
                    "at": "2026-11-21T07:20:01.402Z",
                    "by": "ops",
                    "via": "cli",
                    "operation": "pause_topic",
                    "outcome": "done",
                    "topic": "orders.close",
                },
            ],
            "next_cursor": None,
        }
    ],
}

"""The response about what people and keys changed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from deferd.contract.responses.response import Response, one_of


class Change(Response, frozen=True, kw_only=True):
    """A change that a person or a key made. What does not apply is omitted."""

    schema_name = "RecordedChange"

    at: Annotated[datetime, "When it was recorded, just after it was made."]
    by: Annotated[
        str | None, "Name of the key; on a service without keys the client's address, `null` if that is not known."
    ]
    via: Annotated[
        str,
        one_of("console", "cli", "api"),
        "The way by which it came, as the request says: the console, the command line, or another program.",
    ]
    operation: Annotated[str, "The operation, by its `operationId` in this document, such as `pause_topic`."]
    outcome: Annotated[
        str,
        one_of("done", "unknown"),
        "`unknown`: the store failed during the call, so it may have been done, or a part of it.",
    ]
    topic: Annotated[str | None, "The topic, if it concerns one."] = None
    subject: Annotated[str | None, "The id of the job, or the name of the schedule or calendar."] = None
    filter: Annotated[
        str | None, "What selected the jobs: the request's JSON, cut after 500 bytes; omitted for all."
    ] = None
    count: Annotated[int | None, "How many jobs it changed, where that is counted."] = None
    times: Annotated[
        int,
        "How many calls the entry stands for, if several: calls on many jobs by a program, and "
        "commands with one job each, with the same operation, caller and topic within ten minutes. "
        "`count` is their sum; `subject` and `filter` belong to the last one.",
    ] = 1
    last_at: Annotated[datetime | None, "With `times`: when the last of them was recorded."] = None


class Activity(Response, frozen=True, kw_only=True):
    """One page of changes."""

    activity: Annotated[list[Change], "The newest first."]
    next_cursor: Annotated[str | None, "Cursor of the next page; `null` on the last page."]

    schema_examples = (
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
        },
    )

"""The responses about actions on many jobs that run in the background."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from deferd.contract.responses.response import Response, one_of


class Task(Response, frozen=True, kw_only=True):
    """An action on many jobs that runs in the background."""

    id: Annotated[str, "Name of the task."]
    kind: Annotated[str, one_of("cancel", "reschedule", "redrive", "purge"), "What it does."]
    state: Annotated[
        str,
        one_of("running", "done", "stopped", "failed"),
        "`failed`: because of a fault of the service, which its log describes. While the store is away it waits.",
    ]
    topic: Annotated[str | None, "The topic, if it concerns one alone."] = None
    select: Annotated[dict[str, Any], "What selects the jobs, as it was given."]
    action: Annotated[dict[str, Any] | None, "What happens to the jobs, as it was given, if anything."] = None
    cutoff: Annotated[
        datetime,
        "It acts on jobs that were put until then, and on dead ones that died until then: when it "
        "began, without another `cutoff`.",
    ]
    by: Annotated[str | None, "Who began it: see `GET /activity`."]
    via: Annotated[str, one_of("console", "cli", "api"), "By which way: see `GET /activity`."]
    done: Annotated[int, "How many jobs it has changed, as of the last second."]
    total: Annotated[int | None, "How many it found to change; `null` until they are counted."]
    started_at: Annotated[datetime, "When it began."]
    ended_at: Annotated[datetime | None, "When it ended."] = None

    schema_examples = (
        {
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
        },
    )


class Tasks(Response, frozen=True, kw_only=True):
    """The tasks that began last."""

    tasks: Annotated[list[Task], "The newest first."]

    schema_examples = ({"tasks": [*Task.schema_examples]},)

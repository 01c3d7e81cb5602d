"""The responses about topics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import field

from deferd.contract.model import TopicSettings
from deferd.contract.responses.push import PushTarget
from deferd.contract.responses.response import Response, shown_as


class Counts(Response, frozen=True, kw_only=True):
    """The number of jobs in each state."""

    delayed: int
    ready: int
    reserved: int
    dead: int
    finished: int


class TopicView(Response, frozen=True, kw_only=True):
    """A topic in its current state."""

    schema_name = "Topic"

    topic: str
    paused: Annotated[bool, "Whether the topic is paused: it hands out no jobs."]
    paused_at: Annotated[datetime | None, "Since when it is paused."] = None
    paused_by: Annotated[str | None, "Name of the key that paused it, if it was one."] = None
    paused_reason: Annotated[str | None, "Why it is paused, if that was said."] = None
    counts: Annotated[dict[str, int], shown_as(Counts)]
    follow_ups: Annotated[
        int, "How many puts wait until the job with their id has ended; omitted when there are none."
    ] = 0
    collections: Annotated[int, "To how many jobs and follow-ups appends add items; omitted when there are none."] = 0
    oldest_ready_age: Annotated[
        float | None, "Seconds since the first job of the Ready list was due; `null` when none is ready."
    ]
    oldest_ready_at: Annotated[
        datetime | None,
        "When the first job of the Ready list was due, which does not change while it waits; `null` when none is "
        "ready.",
    ]
    next_due_at: Annotated[datetime | None, "When the next delayed job is due; `null` when none is delayed."]
    settings_json: Annotated[dict[str, Any], shown_as(TopicSettings)] = field(name="settings")
    push: Annotated[PushTarget | None, "The target of a pushed topic; omitted for other topics."] = None

    @property
    def settings(self) -> TopicSettings:
        """The defaults of the topic's jobs, its `max_jobs` and its number of partitions.

        Raises ValueError for settings of a later version.
        """
        return TopicSettings.model_validate(self.settings_json)

    schema_examples = (
        {
            "topic": "orders.close",
            "paused": False,
            "counts": {"delayed": 12, "ready": 0, "reserved": 1, "dead": 0, "finished": 0},
            "oldest_ready_age": None,
            "oldest_ready_at": None,
            "next_due_at": "2026-11-21T07:26:58.123Z",
            "settings": TopicSettings.schema_examples[0],
        },
    )


class TopicPage(Response, frozen=True, kw_only=True):
    """One page of topics, ordered by name."""

    topics: list[TopicView]
    next_cursor: Annotated[str | None, "The `cursor` of the next page; `null` on the last page."]
    unavailable: Annotated[
        list[str],
        "Topics omitted because their shard of the store cannot be reached, if this process knows them.",
    ]
    unreadable_shards: Annotated[
        list[int],
        "The shards that cannot be reached; empty when the list is complete. They may hold topics that "
        "`unavailable` does not list.",
    ]

    schema_examples = (
        {
            "topics": [*TopicView.schema_examples],
            "next_cursor": None,
            "unavailable": ["mail.remind"],
            "unreadable_shards": [3],
        },
    )

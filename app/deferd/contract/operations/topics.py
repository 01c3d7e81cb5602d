"""Topics: lists, settings, pause, dead jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import field

from deferd.contract.model import TopicSettings
from deferd.contract.operations.bulk import Redriven, Removed
from deferd.contract.operations.jobs import JobPage
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.push import PushTarget
from deferd.contract.operations.response import Response, shown_as
from deferd.contract.scopes import Scope

GroupOrder = Literal["ready", "reserved", "age"]


class Counts(Response, frozen=True, kw_only=True):
    """The number of jobs in each state."""

    delayed: int
    ready: int
    reserved: int
    dead: int
    finished: int


class Retrying(Response, frozen=True, kw_only=True):
    """Jobs that failed and wait for another attempt: delayed ones that had an attempt."""

    jobs: Annotated[int, "How many of the jobs that were looked at: the 250 that are due first, in each partition."]
    complete: Annotated[bool, "Whether all delayed jobs were looked at; otherwise there may be more."]


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
    shelved: Annotated[
        int | None, "How many of the delayed jobs are on the shelf; omitted by a service without one when it is 0."
    ] = None
    oldest_ready_age: Annotated[float | None, "Seconds since the oldest ready job was due; `null` when none is ready."]
    oldest_ready_at: Annotated[
        datetime | None,
        "When the oldest ready job was due, which does not change while it waits; `null` when none is ready.",
    ]
    next_due_at: Annotated[datetime | None, "When the next delayed job is due; `null` when none is delayed."]
    settings_json: Annotated[dict[str, Any], shown_as(TopicSettings)] = field(name="settings")
    push: Annotated[PushTarget | None, "The target of a pushed topic; omitted for other topics."] = None
    retrying: Annotated[
        Retrying | None,
        "Jobs that failed and wait for another attempt; omitted when there are none, or that is not known. "
        "Only `GET /topics/{topic}` has it.",
    ] = None

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
            "retrying": {"jobs": 3, "complete": True},
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


class GroupView(Response, frozen=True, kw_only=True):
    """The live jobs of a group of a topic."""

    schema_name = "Group"

    group: Annotated[str | None, "Its name; `null`: the jobs without a group."]
    ready: int
    reserved: int
    delayed: int
    oldest_ready_age: Annotated[
        float | None, "Seconds since the first of its ready jobs was due; `null` when none is ready."
    ]
    paused: Annotated[bool, "Whether the group is paused: none of its jobs is handed out."]

    schema_examples = (
        {"group": "customer-7", "ready": 12, "reserved": 1, "delayed": 0, "oldest_ready_age": 4.25, "paused": False},
    )


class GroupPage(Response, frozen=True, kw_only=True):
    """One page of the groups of a topic."""

    groups: list[GroupView]
    next_cursor: Annotated[str | None, "The `cursor` of the next page; `null` on the last page."]

    schema_examples = ({"groups": [*GroupView.schema_examples], "next_cursor": None},)


LIST_TOPICS = Operation(
    "list_topics",
    "GET",
    "/topics",
    tag="topics",
    scope=Scope.READ,
    summary="List topics",
    description=(
        "Lists the topics, each in its current state. A topic without jobs and settings is forgotten an hour after "
        "its last use. A key for some topics sees only those. If a shard of the store cannot be reached, its topics "
        "are omitted and listed in `unavailable`; if no shard can be reached, the response is 503."
    ),
    response=TopicPage,
    response_description="One page of topics.",
)
GET_TOPIC = Operation(
    "get_topic",
    "GET",
    "/topics/{topic}",
    tag="topics",
    scope=Scope.READ,
    summary="Get a topic",
    description=(
        "Returns the number of jobs in each state, how long the oldest ready job has waited, when the next "
        "delayed job is due, and the settings."
    ),
    response=TopicView,
    response_description="The topic.",
    errors=("topic_not_found",),
)
SET_TOPIC = Operation(
    "set_topic",
    "PUT",
    "/topics/{topic}",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Set the settings of a topic",
    description=(
        "Replaces all settings of the topic but `partitions`; an omitted one falls back to the default of the service. "
        "They apply to jobs put from now on. A topic needs no settings: its first job creates it."
    ),
    response=TopicView,
    response_description="The topic in its new state.",
    done="set the settings of topic",
)
PAUSE_TOPIC = Operation(
    "pause_topic",
    "POST",
    "/topics/{topic}/pause",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Pause a topic",
    description=(
        "The topic hands out no jobs until it is resumed; everything else, such as put and finish, works as before. "
        "`reason` is shown to people until it is resumed; a pause of a paused topic does not change it. A topic that "
        "does not exist yet is created."
    ),
    response=TopicView,
    response_description="The topic in its new state.",
    done="paused topic",
)
RESUME_TOPIC = Operation(
    "resume_topic",
    "POST",
    "/topics/{topic}/resume",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Resume a topic",
    description="Ends a pause. Waiting consumers get the ready jobs at once.",
    response=TopicView,
    response_description="The topic in its new state.",
    errors=("topic_not_found",),
    done="resumed topic",
)
LIST_GROUPS = Operation(
    "list_groups",
    "GET",
    "/topics/{topic}/groups",
    tag="topics",
    scope=Scope.READ,
    summary="List the groups of a topic",
    description=(
        "Lists the groups that have live jobs or are paused, and, with `group` `null`, the jobs without a group. All "
        "groups are read together, which takes about a second for 100000, and what was read is shown for up to 10 "
        "seconds. While jobs move, the numbers of jobs without a group may be a few too high or too low."
    ),
    response=GroupPage,
    response_description="One page of groups.",
    errors=("topic_not_found",),
)
PAUSE_GROUP = Operation(
    "pause_group",
    "POST",
    "/topics/{topic}/groups/{group}/pause",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Pause a group of a topic",
    description=(
        "No job of the group is handed out until it is resumed; everything else, such as put and finish, works as "
        "before. Topic and group need not exist yet. Not for topics with several partitions."
    ),
    response=GroupView,
    response_description="The group in its new state.",
    done="paused group",
)
RESUME_GROUP = Operation(
    "resume_group",
    "POST",
    "/topics/{topic}/groups/{group}/resume",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Resume a group of a topic",
    description="Ends a pause. Waiting consumers get the ready jobs at once.",
    response=GroupView,
    response_description="The group in its new state.",
    errors=("topic_not_found",),
    done="resumed group",
)
LIST_JOBS = Operation(
    "list_jobs",
    "GET",
    "/topics/{topic}/jobs",
    tag="topics",
    scope=Scope.READ,
    summary="List a topic's jobs",
    description=(
        "Returns the jobs page by page. A job that changes state between pages may be missing or appear twice. The "
        "filters `group`, `due_after`, `due_before`, `id_prefix`, `error`, `reason` and `error_group` search the jobs "
        "in their order, about 10000 a page at most, so a page may be short or empty and yet have a `next_cursor`; "
        "`looked_at` says how many were searched. With `ids` or `tag` only those jobs are read. In a topic with "
        "several `partitions` the jobs of one state come partition by partition: the order holds within each."
    ),
    response=JobPage,
    response_description="One page of jobs.",
    errors=("topic_not_found",),
)
REDRIVE_JOBS = Operation(
    "redrive_jobs",
    "POST",
    "/topics/{topic}/redrive",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Redrive dead jobs",
    description=(
        "Makes dead jobs ready again, due now and with no attempts counted: the jobs of `ids`, or up to `limit` jobs, "
        "beginning with those that have been dead longest; in a topic with several `partitions` one partition after "
        "the other. With `tag`, `group` or `reason` only jobs with this tag, of this group, or dead for this reason; "
        "with `reason` and `error` only the jobs of one group of `GET /dead`. A dry run returns a `cutoff`: with it, a "
        "redrive acts only on jobs that were counted."
    ),
    response=Redriven,
    response_description="The number of jobs that are ready again.",
    errors=("topic_not_found",),
    repeatable=False,
    done="redrove dead jobs of",
)
PURGE_TOPIC = Operation(
    "purge_topic",
    "DELETE",
    "/topics/{topic}",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Purge a topic",
    description=(
        "Removes all jobs, or all jobs in one `state`, with one `tag`, of one `group`, or dead for one `reason`; with "
        "`reason` and `error` only the jobs of one group of `GET /dead`. Consumers that hold a removed job get 410 "
        "`job_cancelled`. The topic's settings stay. A dry run returns a `cutoff`: with it, a purge removes only jobs "
        "that were counted."
    ),
    response=Removed,
    response_description="The number of removed jobs.",
    errors=("topic_not_found",),
    repeatable=False,
    done="cancelled jobs of",
)

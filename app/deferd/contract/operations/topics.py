"""Topics: lists, settings, pause, dead jobs, and consistency checks."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import audits, topics
from deferd.contract.responses.bulk import Redriven, Removed
from deferd.contract.responses.jobs import JobPage
from deferd.contract.scopes import Scope

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
    response=topics.TopicPage,
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
    response=topics.TopicView,
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
        "Replaces all settings of the topic; an omitted one falls back to the default of the service. They "
        "apply to jobs put from now on. A topic needs no settings: its first job creates it."
    ),
    response=topics.TopicView,
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
    response=topics.TopicView,
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
    response=topics.TopicView,
    response_description="The topic in its new state.",
    errors=("topic_not_found",),
    done="resumed topic",
)
LIST_JOBS = Operation(
    "list_jobs",
    "GET",
    "/topics/{topic}/jobs",
    tag="topics",
    scope=Scope.READ,
    summary="List a topic's jobs",
    description=(
        "Returns the jobs page by page. A job that changes state meanwhile may be missing or appear twice. The "
        "filters `due_after`, `due_before`, `id_prefix` and `error` search the jobs in their order, about 10000 a "
        "page at most, so a page may be short or empty and yet have a `next_cursor`; `looked_at` says how many were "
        "searched. In a topic with several `partitions` the jobs of one state come partition by partition: the order "
        "holds within each."
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
        "Makes dead jobs ready again, due now and with no attempts counted: those of `ids`, or up to `limit` of "
        "those that have been dead longest; in a topic with several `partitions` one partition after the other. With "
        "`tag` or `reason` only jobs with this tag, or dead for this reason; with `reason` and `error` those of one "
        "group of `GET /dead`. A dry run returns a `cutoff`: with it, a redrive acts on nothing that was not counted."
    ),
    response=Redriven,
    response_description="The number of jobs that are ready again.",
    errors=("topic_not_found",),
    repeatable=False,
    done="redrove dead jobs of",
)
AUDIT_TOPIC = Operation(
    "audit_topic",
    "GET",
    "/topics/{topic}/audit",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Audit a topic",
    description=(
        "Checks that the data of the topic is consistent: each job is in exactly one state, nothing is left "
        "over from removed jobs, the timer is not late, and every job that was ever put is accounted for. It changes "
        "nothing and runs in small steps beside the load: about 25 s for a million jobs."
    ),
    response=audits.TopicAudit,
    response_description="The findings.",
    errors=("topic_not_found",),
)
REPAIR_TOPIC = Operation(
    "repair_topic",
    "POST",
    "/topics/{topic}/repair",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Audit and repair a topic",
    description=(
        "Like the audit, but repairs each finding atomically when it is found. No readable job is lost, and no "
        "finished or dead job is handed out because of it."
    ),
    response=audits.TopicAudit,
    response_description="The repaired findings.",
    errors=("topic_not_found",),
    repeatable=False,
    done="repaired topic",
)
PURGE_TOPIC = Operation(
    "purge_topic",
    "DELETE",
    "/topics/{topic}",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Purge a topic",
    description=(
        "Removes all jobs, or all jobs in one `state`, with one `tag`, or dead for one `reason`; with `reason` "
        "and `error` those of one group of `GET /dead`. Consumers that hold one get 410 `job_cancelled`. The topic's "
        "settings stay. A dry run returns a `cutoff`: with it, a purge removes nothing that was not counted."
    ),
    response=Removed,
    response_description="The number of removed jobs.",
    errors=("topic_not_found",),
    repeatable=False,
    done="purged jobs of",
)

"""For operators: what happened in a topic, and in all topics together, over the last two days."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import history as responses
from deferd.contract.scopes import Scope

GET_HISTORY = Operation(
    "get_history",
    "GET",
    "/topics/{topic}/history",
    tag="inspection",
    scope=Scope.READ,
    summary="Show the history of a topic",
    description=(
        "Returns what happened in the topic: for each bucket of time how many jobs were put, handed out, finished "
        "and so on by all processes of the service, how late first deliveries were, and the jobs in each state at "
        "its end. Processes publish what they counted every 10 seconds; a process that is killed takes its last 10 "
        "seconds with it. A topic keeps its history for two days after its last change, also when it is forgotten by "
        "then. Of a store's shard at most 1000 topics have a history: new ones get none while all of these changed "
        "within 10 minutes."
    ),
    response=responses.TopicHistory,
    response_description="The buckets.",
    errors=("topic_not_found",),
)
GET_HISTORY_OF_ALL = Operation(
    "get_history_of_all",
    "GET",
    "/history",
    tag="inspection",
    scope=Scope.READ,
    summary="Show the history of all topics",
    description=(
        "Returns what happened in all topics together, as the history of a topic does; topics that have no history "
        "of their own are included. For a key that is for some topics these are summed up, at most the 100 that "
        "changed last; `complete` says whether these are all."
    ),
    response=responses.HistoryOfAll,
    response_description="The buckets.",
)

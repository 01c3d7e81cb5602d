"""For operators: what the service runs on, all topics at a glance, and what the caller's key allows."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import system as responses
from deferd.contract.scopes import Scope

GET_OVERVIEW = Operation(
    "get_overview",
    "GET",
    "/overview",
    tag="inspection",
    scope=Scope.READ,
    summary="Get all topics at a glance",
    description=(
        "Lists topics in any order: jobs by state, the oldest ready job, what is due next, and jobs handed out per "
        "second. What was read is kept for up to 5 seconds and shared with `GET /now`; `GET /topics` reads each "
        "topic at once, with its settings."
    ),
    response=responses.Overview,
    response_description="The topics.",
)
GET_SYSTEM = Operation(
    "get_system",
    "GET",
    "/system",
    tag="inspection",
    scope=Scope.READ,
    summary="Get what the service runs on",
    description=(
        "Returns the versions, the store with its memory, durability and replicas, the timer of each shard, "
        "and the settings except for secrets and paths. The key must match all topics."
    ),
    response=responses.System,
    response_description="The system.",
)
GET_KEY = Operation(
    "get_key",
    "GET",
    "/key",
    tag="inspection",
    scope=Scope.READ,
    summary="Get what the key of the request allows",
    description=(
        "Returns the name, scopes, topics and limits of the key that the request was made with; a service "
        "without keys allows everything."
    ),
    response=responses.OwnKey,
    response_description="The key.",
)

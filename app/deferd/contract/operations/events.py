"""Events of jobs, as they happen."""

from __future__ import annotations

from deferd.contract import limits
from deferd.contract.operations.operation import Operation
from deferd.contract.responses.events import Events
from deferd.contract.responses.response import Response
from deferd.contract.scopes import Scope

STREAM_EVENTS: Operation[Response] = Operation(
    "stream_events",
    "GET",
    "/events",
    tag="inspection",
    scope=Scope.READ,
    summary="Follow events",
    description=(
        "Streams what happens to the jobs of topics whose settings have `events`, as Server-Sent Events, in the "
        "order in which it happened in each topic. An event is there in about 0.3 seconds. `data` is an Event, its "
        "kind is also in `event`. Several events may share one `id`, which the last of them has. `event: dropped` "
        "says that events of a `topic` are missing, with their `count` if it is known: the topic has kept too few, "
        f"or the client read too slowly. Of more than {limits.EVENT_TOPICS_MAX} topics with events, the first by name "
        "are followed, and `dropped` has the number of the others in `topics`. A comment comes at least every 15 "
        f"seconds. The stream ends when the service stops. A process serves {limits.EVENT_STREAMS_MAX} streams at a "
        f"time, at most {limits.EVENT_STREAMS_PER_KEY} of a key."
    ),
    response_description="The stream.",
    errors=("too_many_streams",),
    needs_store=False,
    status=200,
)
LIST_EVENTS = Operation(
    "list_events",
    "GET",
    "/events/latest",
    tag="inspection",
    scope=Scope.READ,
    summary="List the latest events",
    description=(
        "Lists the last events that topics have kept, of all matching topics together. Topics keep events when "
        "their settings have `events`. Of many topics a part of each is read: they share 5000 events."
    ),
    response=Events,
    response_description="The events.",
)

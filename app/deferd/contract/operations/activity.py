"""For operators: what people and keys changed."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import activity as responses
from deferd.contract.scopes import Scope

LIST_ACTIVITY = Operation(
    "list_activity",
    "GET",
    "/activity",
    tag="inspection",
    scope=Scope.READ,
    summary="List what people and keys changed",
    description=(
        "Lists changes, the newest first: settings, pauses, redrives, purges, repairs, schedules, calendars and "
        "calls on many jobs, by whom and how; cancels and changes of single jobs that people make in the console or "
        "on the command line (which says so by the header `Deferd-Via: cli`), and puts in the console. Puts and "
        "deliveries of programs are not listed, nor calls that were refused or changed nothing. Entries are kept for "
        "30 days: the last 10000 by keys with the scope `admin`, and the last 10000 by all others. They are written "
        "just after the response, so the newest ones of another process may be missing for a moment. A key for some "
        "topics sees the changes that concern one of these alone."
    ),
    response=responses.Activity,
    response_description="One page of changes.",
)

"""For operators: what needs a person now."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses import now as responses
from deferd.contract.scopes import Scope

GET_NOW = Operation(
    "get_now",
    "GET",
    "/now",
    tag="inspection",
    scope=Scope.READ,
    summary="Get what needs a person now",
    description=(
        "Lists what needs a person, the most urgent first: topics without consumers or behind, jobs that died within "
        "the last hour, pauses that hold jobs back, a timer that is late, a store that is down in part. Each alert "
        "has a `code` and facts for programs, and a `text` for people. Without alerts all is quiet. `next_due_at` is "
        "when the next job is due, and `next_due_jobs` how many are due in that second. With `topics`: only alerts "
        "of these topics, and of the store. What was read is kept for up to 5 seconds."
    ),
    response=responses.Now,
    response_description="The alerts.",
)

"""Makes calls of a client share a request, and compares their outcomes with those of single calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from deferd import AsyncClient, Job
from deferd.contract.errors import DeferdError
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.waiting import until

RUN_AT = datetime.now(UTC) + timedelta(hours=1)
CHANGING = {"id", "created_at", "due_at"}


def batches(proxy: LossyProxy) -> list[str]:
    """The requests so far that had several calls, without the version."""
    lines = [head.partition(" HTTP/")[0] for head in proxy.heads]
    return [line for line in lines if "/batch" in line or (line.startswith("POST /topics/") and "/pop" not in line)]


async def joined(
    proxy: LossyProxy,
    client: AsyncClient,
    calls: Sequence[Awaitable[Any]],
    opening: Awaitable[Any],
    fault: Callable[[], None] | None = None,
) -> list[Any]:
    """The outcomes of calls that arrive while `opening` is under way. The first half of them meets the fault."""
    before = len(proxy.heads)
    proxy.hold_response()
    first = asyncio.ensure_future(opening)
    await until(lambda: len(proxy.heads) > before and proxy.is_done(), "the first call is executed")
    if fault is not None:
        fault()
    pending = [asyncio.ensure_future(call) for call in calls]
    await until(lambda: len(proxy.heads) > before + 1, "the first batch is sent")
    proxy.release_responses()
    await first
    return await asyncio.gather(*pending, return_exceptions=True)


def facts(seen: Any) -> Any:
    """What two outcomes of equal calls have in common: the fields of a job, the class and details of an error."""
    if isinstance(seen, DeferdError):
        return type(seen), vars(seen), str(seen)
    if isinstance(seen, Job):
        due_after_s = round((seen.due_at - seen.created_at).total_seconds(), 2)
        if abs((seen.due_at - RUN_AT).total_seconds()) < 0.001:
            due_after_s = 0
        return list(seen.fields), {**seen.fields, **dict.fromkeys(CHANGING)}, due_after_s
    return seen


def same_outcomes(topic: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    """What calls on TOPIC-one came to must be what the same calls on TOPIC-all came to."""

    def shown(seen: Any, name: str) -> str:
        return repr(facts(seen)).replace(f"{topic}-{name}", "<topic>").partition("<object object")[0]

    assert [shown(seen, "all") for seen in other] == [shown(seen, "one") for seen in one]


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except DeferdError as error:
        return error

"""Cancels that can be undone: `POST /jobs/cancel` with `undo`, and what a page says of it while there is time.

The other way, to delay the cancel, would let a consumer run a job that a page shows as cancelled, or leave it as it is
when the tab is closed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from deferd.console.api_calls import api_path
from deferd.console.visit import Visit
from deferd.contract.errors import StoreUnavailable
from deferd.contract.limits import ID_PATTERN


class Cancelled(NamedTuple):
    """What a cancel did: to how many jobs, how many it left because a consumer holds them, how many of the cancelled
    ones a consumer held, and the token of the undo, if there is anything to undo.
    """

    done: int
    held: int
    was_held: int
    undo: str | None


async def cancel(visit: Visit, topic: str, ids: Sequence[str], *, spare_held: bool) -> Cancelled:
    """Cancel up to 1000 jobs of a topic. Raises ApiRefused."""
    token = secrets.token_hex(12)
    select = {"ids": [{"topic": topic, "id": job_id} for job_id in ids]}
    body = {"select": select, "if_reserved": "refuse" if spare_held else "cancel", "request_id": token, "undo": True}
    result = await visit.write("POST", api_path("jobs", "cancel"), body)
    held = result["matched"] - result["done"]
    was_held = result["was"].get("reserved", 0) - held
    return Cancelled(result["done"], held, was_held, token if result["undoable"] else None)


async def undoable(visit: Visit, token: str | None) -> dict[str, Any] | None:
    """What a token can undo for the key of the session; None without one, or when it is too late."""
    if token is None or re.fullmatch(ID_PATTERN, token) is None:
        return None
    try:
        kept = await visit.undos.undoable(token, None if visit.key is None else visit.key.name)
    except StoreUnavailable:
        return None
    if not kept.jobs:
        return None
    return {"token": token, "jobs": kept.jobs, "ends_ms": ((visit.now_ms or 0) + kept.left_ms) // 1000 * 1000}


async def undo(visit: Visit, token: str) -> tuple[int, int]:
    """Put the jobs back; how many are back, and how many are not. Raises ApiRefused."""
    result = await visit.write("POST", api_path("jobs", "undo"), {"request_id": token})
    return result["put_back"], result["left"]

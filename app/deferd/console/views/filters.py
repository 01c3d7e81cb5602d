"""What the filters of several pages share: a look back from now, and values that the API refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from deferd.console.api_calls import ApiRefused, QueryValue
from deferd.console.visit import Visit

LOOKS_BACK = {"1h": ("1 h", 3600), "6h": ("6 h", 21_600), "24h": ("24 h", 86_400), "7d": ("7 d", 604_800)}
"""Values of the parameter `since`: the text of the link, and the seconds."""
_STEP_MS = 10_000
_NOT_VALID = 422
_NO_SEARCH = (
    "This console masks fields, so it does not search errors: what is found would tell what the masked values are."
)


def since_instant(visit: Visit) -> str | None:
    """The instant that the parameter `since` means now, None for any time.

    It moves in steps, so that refreshed pages share their reads.
    """
    found = LOOKS_BACK.get(visit.query.get("since", ""))
    if found is None or visit.now_ms is None:
        return None
    at_ms = (visit.now_ms - found[1] * 1000) // _STEP_MS * _STEP_MS
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def topics_filter(visit: Visit) -> str | None:
    """The parameter `topics`: names and patterns with commas between them; None for all."""
    names = [name.strip() for name in visit.query.get("topics", "").replace(" ", ",").split(",")]
    return ",".join(dict.fromkeys(name for name in names if name)) or None


def refuse_masked_error(visit: Visit, error: str | None) -> None:
    """Refuse a filter by an error where errors are masked. Raises ApiRefused."""
    if error and visit.masks:
        raise ApiRefused(_NOT_VALID, {"title": "Unprocessable Content", "detail": _NO_SEARCH, "errors": []})


async def read_filtered(visit: Visit, path: str, /, **query: QueryValue) -> tuple[Any, str | None]:
    """The response, or None and what is wrong with a value of the query.

    Raises:
        ApiRefused: for another reason than its values.
    """
    try:
        return await visit.read(path, **query), None
    except ApiRefused as refused:
        if refused.status != _NOT_VALID:
            raise
        errors = refused.problem.get("errors") or [{"field": "", "message": refused.problem.get("detail", "")}]
        named = ((error["field"].removeprefix("query."), error["message"]) for error in errors)
        return None, "; ".join(f"{name} {message}".strip() for name, message in named)

"""Filters in the URLs of pages: of lists of jobs, a look back from now, topics, and values that the API refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deferd.console.api_calls import ApiRefused, QueryValue
from deferd.console.views.typed_times import read_instant
from deferd.console.visit import Visit
from deferd.contract.model import JobState

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


STATES = tuple(state.value for state in JobState)
NEWEST_FIRST = frozenset({"dead", "finished"})
"""States whose last jobs are listed first."""
_FIELDS = ("state", "id", "tag", "of_group", "error", "due_after", "due_before", "reason")


@dataclass(frozen=True)
class JobListFilter:
    """Which jobs a page lists. `given` has the fields as they were typed, `problems` what is wrong with some of them.

    `state` None: all states. The instants are RFC 3339; `zone` is that of typed times without an offset. `reason` and
    `group` are of a group of dead jobs: why they are dead, and their error as `GET /dead` shows it, '' for none.
    `of_group` is the group that jobs were put with. `retrying`: only delayed jobs that had an attempt.
    """

    state: str | None
    id: str
    tag: str
    error: str
    due_after: str | None
    due_before: str | None
    zone: str
    given: dict[str, str]
    problems: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    group: str | None = None
    retrying: bool = False
    of_group: str = ""

    @property
    def is_search(self) -> bool:
        """Whether it filters by more than the state."""
        conditions = (self.id, self.tag, self.of_group, self.error, self.due_after, self.due_before, self.reason)
        return any(conditions) or self.group is not None or self.retrying

    @property
    def is_oldest_first(self) -> bool:
        """The order without a choice."""
        return self.state not in NEWEST_FIRST

    def query(self) -> dict[str, Any]:
        """The parameters of `GET /topics/{topic}/jobs`."""
        return {
            "state": self.state,
            "id_prefix": self.id or None,
            "tag": self.tag or None,
            "group": self.of_group or None,
            "error": self.error or None,
            "due_after": self.due_after,
            "due_before": self.due_before,
            "reason": self.reason or None,
            "error_group": self.group,
            "retrying": True if self.retrying else None,
        }

    def text(self) -> str:
        """The filter in words."""
        parts = [f"{self.state} jobs" if self.state else "jobs in every state"]
        parts += ["that had an attempt"] if self.retrying else []
        parts += [f"whose id begins with {self.id}"] if self.id else []
        parts += [f"with tag {self.tag}"] if self.tag else []
        parts += [f"of group {self.of_group}"] if self.of_group else []
        parts += [f"whose error contains “{self.error}”"] if self.error else []
        parts += [f"dead for the reason {self.reason.replace('_', ' ')}"] if self.reason else []
        if self.group is not None:
            parts.append(f"with exactly the error “{self.group}”" if self.group else "without an error")
        parts += [f"due at {self.due_after} or later"] if self.due_after else []
        parts += [f"due before {self.due_before}"] if self.due_before else []
        return parts[0] + (" " + ", ".join(parts[1:]) if parts[1:] else "")


def read_filter(fields: Mapping[str, str], now_ms: int | None) -> JobListFilter:
    """The filter in the parameters of a page or in a form."""
    given = {name: fields.get(name, "").strip() for name in _FIELDS}
    problems: dict[str, str] = {}
    state = given["state"] if given["state"] in STATES else None
    if given["state"] and state is None:
        problems["state"] = f"one of {', '.join(STATES)}"
    now, zone = datetime.fromtimestamp((now_ms or 0) / 1000, UTC), fields.get("zone") or "UTC"
    instants: dict[str, str | None] = {}
    for name in ("due_after", "due_before"):
        try:
            instants[name] = read_instant(given[name], now, zone) if given[name] else None
        except ValueError as error:
            instants[name] = None
            problems[name] = str(error)
    return JobListFilter(
        state,
        given["id"],
        given["tag"],
        given["error"],
        instants["due_after"],
        instants["due_before"],
        zone,
        given={name: value for name, value in given.items() if value},
        problems=problems,
        reason=given["reason"],
        group=fields.get("group"),
        retrying=bool(fields.get("retrying")),
        of_group=given["of_group"],
    )

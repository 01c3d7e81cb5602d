"""One action on many jobs of a topic: the selected jobs, and the call of the API that counts or changes them."""

from __future__ import annotations

from typing import Any, NamedTuple

from deferd.console.api_calls import api_path
from deferd.console.job_filter import JobListFilter

SCOPES = {"cancel": "cancel", "reschedule": "put", "run_now": "put", "redrive": "admin", "purge": "admin"}
"""The actions, and the scope that each needs."""
VERBS = {
    "cancel": ("Cancel", "cancelled"),
    "reschedule": ("Reschedule", "rescheduled"),
    "run_now": ("Run now", "made due now"),
    "redrive": ("Redrive", "ready again"),
    "purge": ("Purge", "removed"),
}
TYPED_ABOVE = 1000
"""Above this many jobs, people must type the name of the topic."""
IDS_MAX = 1000
BULK_MAX = 100_000
REDRIVE_MAX = 1_000_000


class Target(NamedTuple):
    """The selected jobs: the jobs in `ids`, or with None all that match the filter. A call takes either."""

    topic: str
    ids: tuple[str, ...] | None
    wanted: JobListFilter


class ApiCall(NamedTuple):
    """One call of the API: its method, path, JSON body and query."""

    method: str
    path: str
    body: dict[str, Any] | None
    query: dict[str, Any]


def is_selectable(action: str, wanted: JobListFilter) -> bool:
    """Whether the API itself can select these jobs for this action. Otherwise they are found first and named by id."""
    if wanted.id or wanted.error or (wanted.tag and wanted.state and action not in {"redrive", "purge"}):
        return False
    has_due = wanted.due_after is not None or wanted.due_before is not None
    if action == "redrive":
        return wanted.state in {None, "dead"} and not has_due
    if action == "purge":
        return not has_due
    if wanted.tag:
        return not has_due
    return wanted.state in {"delayed", "ready"}


def api_call(
    action: str,
    target: Target,
    *,
    cutoff: str | None,
    options: dict[str, Any],
    dry_run: bool = False,
    limit: int | None = None,
    as_task: bool = False,
) -> ApiCall:
    """The call for an action. `options` are the members of a reschedule or a cancel; `limit` bounds what is counted.

    `as_task` is for a filter: then there is no limit.
    """
    topic, ids, wanted = target
    cut = {} if cutoff is None else {"cutoff": cutoff}
    if action == "redrive":
        body: dict[str, Any] = dict(cut)
        if ids is not None:
            body["ids"] = list(ids)
        else:
            body |= {"as_task": True} if as_task else {"limit": limit or REDRIVE_MAX}
            body |= {"tag": wanted.tag} if wanted.tag else {}
        if dry_run:
            body["dry_run"] = True
        return ApiCall("POST", api_path("topics", topic, "redrive"), body, {})
    if action == "purge" and ids is None:
        query: dict[str, Any] = {"state": wanted.state, "tag": wanted.tag or None, **cut}
        query |= {"dry_run": True} if dry_run else {"as_task": True} if as_task else {}
        return ApiCall("DELETE", api_path("topics", topic), None, query)
    verb = "cancel" if action in {"cancel", "purge"} else "reschedule"
    select: dict[str, Any] = dict(cut)
    if ids is not None:
        select["ids"] = [{"topic": topic, "id": job_id} for job_id in ids]
    elif wanted.tag:
        select |= {"tag": wanted.tag, "topics": [topic]}
    else:
        select |= {"state": wanted.state, "topics": [topic]}
        select |= {name: at for name in ("due_after", "due_before") if (at := getattr(wanted, name)) is not None}
    body = {"select": select, **({"as_task": True} if as_task else {"limit": limit or BULK_MAX}), **options}
    if dry_run:
        body |= {"dry_run": True, "samples": 10}
    return ApiCall("POST", api_path("jobs", verb), body, {})

"""The life of a job as a list: what happened, what happens now, and what is likely by its backoff and limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from deferd.console.rendering import duration

_PREDICTED = 4
"""Most retries that are predicted."""
_LONGEST_S = 315_576_000.0
_HOW = {
    "released": "failed",
    "buried": "was buried",
    "lease_ended": "ran out of its lease",
    "time_limit": "took longer than its time limit",
    "deadline": "was not finished by the deadline",
}
_DIED = {
    "expired": "not delivered within its ttl",
    "attempts_exhausted": "no attempts left",
    "schedule_ended": "no wait of its backoff left",
    "deadline": "not finished by its deadline",
    "buried": "buried by a consumer",
}

Entry = dict[str, Any]


def timeline(job: dict[str, Any]) -> list[Entry]:
    """The entries, first the earliest, of a job as the API shows it.

    Each has `at` (RFC 3339), `kind` (past, now or predicted), `title`, and may have `text` and `error`.
    """
    state = job["state"]
    entries = [_entry(job["created_at"], "past", "Put", _put_text(job))]
    log = job.get("attempts_log") or []
    first_logged = log[0]["attempt"] if log else job["attempts"] + 1
    ended_before = min(first_logged - 1, job["attempts"])
    if ended_before > 0 and state != "reserved":
        title = f"{ended_before} earlier {'attempt' if ended_before == 1 else 'attempts'}"
        entries.append(_entry(None, "past", title, "no longer in the log"))
    for ended in log:
        by = f"by {ended['by']}" if ended.get("by") else ""
        title = f"Attempt {ended['attempt']} {_HOW.get(ended['how'], ended['how'].replace('_', ' '))}"
        entries.append(_entry(ended["ended_at"], "past", title, by, ended.get("error")))
    match state:
        case "reserved":
            by = f" by {job['reserved_by']}" if job.get("reserved_by") else ""
            entries.append(_entry(None, "now", f"Attempt {job['attempts']} is running", f"held{by}"))
            entries.append(_entry(job.get("reserved_until"), "predicted", "Lease ends", "unless it is touched"))
        case "delayed":
            title = "Next attempt due" if job["attempts"] else "Due"
            most = f" of {job['max_attempts']}" if job.get("max_attempts") else ""
            entries.append(_entry(job["due_at"], "predicted", title, f"attempt {job['attempts'] + 1}{most}"))
        case "ready":
            entries.append(_entry(job["due_at"], "now", "Due", "waits for a consumer"))
        case "dead":
            text = _DIED.get(job.get("reason") or "", "")
            logged = any(ended.get("error") for ended in log)
            entries.append(_entry(job.get("dead_at"), "now", "Dead", text, None if logged else job.get("last_error")))
        case "finished":
            text = f"in attempt {job['attempts']}" if job["attempts"] else ""
            entries.append(_entry(job.get("finished_at"), "now", "Finished", text))
    if state in {"delayed", "ready", "reserved"}:
        entries += predicted_retries(job)
        if job.get("deadline_at"):
            entries.append(_entry(job["deadline_at"], "predicted", "Deadline", "dead if not finished by then"))
        if job.get("ttl") and not job["attempts"]:
            at = _later(job["due_at"], job["ttl"])
            entries.append(_entry(at, "predicted", "Expires", "dead if not delivered by then"))
    places, last = [], ""
    for entry in entries:  # those without an instant stay behind the one that precedes them
        last = entry["at"] or last
        places.append(last)
    return [entry for _, entry in sorted(zip(places, entries, strict=True), key=lambda pair: pair[0])]


def predicted_retries(job: dict[str, Any]) -> list[Entry]:
    """What follows if the next attempts fail: when each is due if it fails at once, and when the job would be dead.

    For a job that may run at any time, only the wait is known.
    """
    first = job["attempts"] + (job["state"] != "reserved")
    at = job["due_at"] if job["state"] == "delayed" else None
    jitter = job["backoff"].get("jitter") or 0
    around = f" ±{jitter:.0%}" if jitter else ""
    entries: list[Entry] = []
    for number in range(first, first + (_PREDICTED if at else 1)):
        if job.get("max_attempts") and number >= job["max_attempts"]:
            entries.append(_entry(at, "predicted", f"If attempt {number} fails", "dead: no attempts left"))
            break
        wait_s = wait_after(job["backoff"], number)
        if wait_s is None:
            entries.append(_entry(at, "predicted", f"If attempt {number} fails", "dead: no wait of its backoff left"))
            break
        wait = f"{duration(wait_s).replace('.0 s', ' s')}{around}"
        if at is None:
            entries.append(_entry(at, "predicted", f"If attempt {number} fails", f"again after {wait}"))
        else:
            at = _later(at, wait_s)
            text = f"if attempt {number} fails at once: {wait} later"
            entries.append(_entry(at, "predicted", f"Attempt {number + 1}", text))
    return entries


def wait_after(backoff: dict[str, Any], attempt: int) -> float | None:
    """The wait after an attempt failed, in seconds, without jitter; None when the job would be dead."""
    match backoff["kind"]:
        case "fixed":
            return float(backoff["seconds"])
        case "schedule":
            waits = backoff["seconds"]
            if attempt <= len(waits):
                return float(waits[attempt - 1])
            return float(waits[-1]) if backoff["then"] == "repeat_last" else None
        case _:
            try:
                grown = float(backoff["base"]) ** attempt
            except OverflowError:
                grown = _LONGEST_S
            return min(float(backoff["cap"]), grown)


def _entry(at: str | None, kind: str, title: str, text: str = "", error: str | None = None) -> Entry:
    return {"at": at, "kind": kind, "title": title, "text": text, "error": error}


def _put_text(job: dict[str, Any]) -> str:
    if job.get("asked_for"):
        return "moved to a later due time by its window or spread"
    return f"a collection of {job['items']} items" if job.get("items") else ""


def _later(at: str, seconds: float) -> str:
    moved = datetime.fromisoformat(at).astimezone(UTC) + timedelta(seconds=min(float(seconds), _LONGEST_S))
    return moved.isoformat(timespec="milliseconds").replace("+00:00", "Z")

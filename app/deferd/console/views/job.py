"""One job: its state and why, what happened to it, its body, and the actions on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.job_puts import put_command, put_text
from deferd.console.json_text import key_of_value, member_text, off_loop, parse, pretty
from deferd.console.masks import Masks
from deferd.console.rendering import duration
from deferd.console.undo import cancel as cancel_with_undo
from deferd.console.undo import undoable
from deferd.console.views.typed_times import read_new_due_time
from deferd.console.visit import PageList, Visit
from deferd.contract import limits
from deferd.contract.counted import counted

pages = PageList()
SHOWN_FIRST = 64_000
"""Characters of a body that are shown at once."""
_PARTS = ("body", "result", "headers", "curl")
_PATH = "/console/topics/{topic}/jobs/{id}"
_DONE, _NOT_CHANGED = 200, {404, 409, 422}
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


def _job_url(topic: str, job_id: str, *more: str) -> str:
    """A job's page, or one below it."""
    return page_path("console", "topics", topic, "jobs", job_id, *more)


@pages.page(_PATH)
async def job(visit: Visit, topic: str, id: str) -> Response:
    """The job as it is, or what is known about a job that is gone.

    A page that has shown the job polls with `seen`: what it has shown stays there, see static/follow.js.
    """
    why = await visit.read(api_path("jobs", topic, id, "why"))
    events = await _events_of(visit, topic, id) if visit.wants("timeline", "why") else []
    values: dict[str, Any] = {
        "here": "topics",
        "topic": topic,
        "id": id,
        "why": why,
        "seen": "seen" in visit.query,
        "has_events": bool(events),
        "undo": await undoable(visit, visit.query.get("undo")) if visit.fragment is None else None,
        "first": SHOWN_FIRST,
    }
    shown = await visit.read_or_none({404}, api_path("jobs", topic, id), bodies=False)
    if shown is None:
        status = 404 if visit.fragment is None else 200
        return visit.render("job.html", status=status, job=None, entries=timeline_of_gone(events), **values)
    return visit.render("job.html", job=shown, entries=timeline(shown, events), **values)


async def _events_of(visit: Visit, topic: str, job_id: str) -> list[dict[str, Any]]:
    """The events of the job that its topic has kept, the earliest first; those since it was put last."""
    view = await visit.read_or_none({404}, api_path("topics", topic))
    if view is None or not view["settings"].get("events"):
        return []
    latest = await visit.read(api_path("events", "latest"), topics=topic, limit=limits.PAGE_MAX)
    events: list[dict[str, Any]] = []
    for event in latest["events"]:
        if event.get("id") == job_id:
            events.append(event)
            if event["event"] == "put":
                break
    return events[::-1]


@pages.page(_PATH + "/part/{part}")
async def part(visit: Visit, topic: str, id: str, part: str) -> Response:
    """The body, the result or the headers as readable JSON, its beginning first; or the command that puts the job."""
    if part not in _PARTS:
        return visit.redirect(_job_url(topic, id))
    content = await visit.read_bytes(api_path("jobs", topic, id))
    most = None if visit.query.get("all") else SHOWN_FIRST
    if part == "curl":
        shown = await off_loop(len(content), lambda: _command(visit, content))
    else:
        shown = await off_loop(len(content), lambda: _shown(visit.masks, content, part, most))
    return visit.render(
        "job_part.html",
        here="topics",
        topic=topic,
        id=id,
        part=part,
        shown=len(shown.text),
        **shown._asdict(),
    )


class _Shown(NamedTuple):
    """A part of a job as text, whether that is all, the bytes of all, and whether fields of it are hidden.

    `key`: the id of the key with which it is encrypted, if it is.
    """

    text: str
    is_all: bool
    bytes: int
    is_masked: bool
    key: str | None = None


def _shown(masks: Masks, content: bytes, part: str, most: int | None) -> _Shown:
    written = member_text(content, part) or "null"
    value = parse(written)
    text, is_all = pretty(value, most)
    return _Shown(text, is_all, len(written.encode()), masks.hides(value, part), key_of_value(value))


def _command(visit: Visit, content: bytes) -> _Shown:
    shown = parse(content)
    hides = any(visit.masks.hides(shown.get(name), name) for name in ("body", "headers"))
    text = put_command(shown, now_ms=visit.now_ms or 0, has_keys=visit.has_keys, hides=hides)
    return _Shown(text, True, len(text.encode()), hides)


@pages.page(_PATH + "/raw/{part}", has_regions=False)
async def raw(visit: Visit, topic: str, id: str, part: str) -> Response:
    """The JSON as it was put, in one line, as plain text."""
    if part not in _PARTS or part == "curl":
        return visit.redirect(_job_url(topic, id))
    content = await visit.read_bytes(api_path("jobs", topic, id))
    text = await off_loop(len(content), lambda: member_text(content, part))
    headers = {
        "content-type": "text/plain; charset=utf-8",
        "content-disposition": f'inline; filename="{id[:100].replace(":", "-")}.{part}.json"',
    }
    return Response((text or "null").encode(), 200, headers)


@pages.action(_PATH + "/copy")
async def copy(visit: Visit, topic: str, id: str) -> Response:
    """Put a job like this one, under a new id. Masked fields are copied as they are: they don't leave the service."""
    original, now_ms = await visit.read_unmasked(api_path("jobs", topic, id)), visit.now_ms or 0
    put = await off_loop(len(original), lambda: put_text(parse(original), with_id=False, now_ms=now_ms))
    done = await visit.write("POST", api_path("jobs"), put)
    return visit.redirect(_job_url(topic, done["id"]), notice=f"This is a copy of {id}.")


@pages.action(_PATH + "/cancel")
async def cancel(visit: Visit, topic: str, id: str) -> Response:
    """Cancel the job, also while a consumer holds it if the page said so; else that can be undone."""
    spare_held = (await visit.form()).get("held") != "cancel"
    done = await cancel_with_undo(visit, topic, [id], spare_held=spare_held)
    if done.undo is not None:
        return visit.redirect(f"{_job_url(topic, id)}?undo={done.undo}")
    if done.held:
        text = "Nothing was cancelled: a consumer holds it by now, and may be at work."
        return visit.redirect(_job_url(topic, id), problem=text)
    if not done.done:
        return visit.redirect(_job_url(topic, id), problem="There is no such job any more.")
    held = " The consumer that holds it gets an error at its next request." if done.was_held else ""
    return visit.redirect(_job_url(topic, id), notice=f"Cancelled.{held}")


@pages.action(_PATH + "/run")
async def run_now(visit: Visit, topic: str, id: str) -> Response:
    """Make a delayed job due."""
    return await _change(visit, topic, id, {"delay": 0}, "It is due now.")


@pages.action(_PATH + "/reschedule")
async def reschedule(visit: Visit, topic: str, id: str) -> Response:
    """Give a delayed or ready job another due time, once the page has shown which instant it is."""
    if not visit.may("put"):
        raise ApiRefused(403, {"detail": "Your key can't reschedule jobs."}, "put")
    new = read_new_due_time(await visit.form(), visit.now_ms)
    problem = new.problem
    if new.is_seen:
        try:
            await visit.write("PATCH", api_path("jobs", topic, id), {"run_at": new.at})
        except ApiRefused as refused:
            if refused.status not in _NOT_CHANGED:
                raise
            problem = f"Nothing was changed: {refused}"
        else:
            return visit.redirect(_job_url(topic, id), notice=f"It is due {new.at}.")
    status = 200 if problem is None else 422
    return visit.render(
        "job_reschedule.html", status=status, here="topics", topic=topic, id=id, new=new, problem=problem
    )


@pages.action(_PATH + "/return")
async def return_to_queue(visit: Visit, topic: str, id: str) -> Response:
    """Take the job from the consumer that the page showed: it is ready at once."""
    by = (await visit.form()).get("by")
    call = {"jobs": [{"id": id}], **({"consumer": by} if by else {})}
    [result] = (await visit.write("POST", api_path("topics", topic, "return"), call))["results"]
    if result["status"] != _DONE:
        text = f"Nothing was changed: {f'{by} does not hold it' if by else 'nobody holds it'} any more."
        return visit.redirect(_job_url(topic, id), problem=text)
    return visit.redirect(_job_url(topic, id), notice="It was returned to the queue.")


@pages.action(_PATH + "/redrive")
async def redrive(visit: Visit, topic: str, id: str) -> Response:
    """Make a dead job ready again."""
    result = await visit.write("POST", api_path("topics", topic, "redrive"), {"ids": [id]})
    if not result["redriven"]:
        return visit.redirect(_job_url(topic, id), problem="It is not dead any more.")
    return visit.redirect(_job_url(topic, id), notice="It is ready again, with no attempts counted.")


async def _change(visit: Visit, topic: str, job_id: str, change: dict[str, Any], done: str) -> Response:
    try:
        await visit.write("PATCH", api_path("jobs", topic, job_id), change)
    except ApiRefused as refused:
        if refused.status not in _NOT_CHANGED:
            raise
        return visit.redirect(_job_url(topic, job_id), problem=f"Nothing was changed: {refused}")
    return visit.redirect(_job_url(topic, job_id), notice=done)


def timeline(job: dict[str, Any], events: Sequence[dict[str, Any]] = ()) -> list[Entry]:
    """The life of a job: what happened, what happens now, and what is likely by its backoff and limits.

    `job` is as the API shows it, `events` those of it that are kept, which tell when it was handed out. The earliest
    entry is the first. Each has `at` (RFC 3339), `kind` (past, now or predicted), `title`, and may have `text` and
    `error`.
    """
    state = job["state"]
    pops = {event["attempt"]: event for event in events if event["event"] == "popped"}
    entries = [_entry(job["created_at"], "past", "Put", _put_text(job))]
    log = job.get("attempts_log") or []
    failed = job["attempts"] - (state in {"reserved", "finished"})  # the last one runs, or was no failure
    ended_before = min(log[0]["attempt"] - 1 if log else failed, failed)
    if ended_before > 0:
        title = counted(ended_before, "earlier attempt")
        entries.append(_entry(None, "past", title, "no longer in the log"))
    entries += [_handed_out(pop) for pop in pops.values()]
    if job.get("reserved_since") and job["attempts"] not in pops:
        under_way = {"at": job["reserved_since"], "attempt": job["attempts"], "consumer": job.get("reserved_by")}
        entries.append(_handed_out(under_way))
    for ended in log:
        title = f"Attempt {ended['attempt']} {_HOW.get(ended['how'], ended['how'].replace('_', ' '))}"
        text = _by_and_after(ended.get("by"), pops.get(ended["attempt"]), ended["ended_at"])
        entries.append(_entry(ended["ended_at"], "past", title, text, ended.get("error")))
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
            entries.append(_entry(job["due_at"], "now", "Due", "waits to be handed out"))
        case "dead":
            text = _DIED.get(job.get("reason") or "", "")
            logged = any(ended.get("error") for ended in log)
            entries.append(_entry(job.get("dead_at"), "now", "Dead", text, None if logged else job.get("last_error")))
        case "finished":
            at, pop = job.get("finished_at"), pops.get(job["attempts"])
            parts = [f"in attempt {job['attempts']}"] if job["attempts"] else []
            parts += [text] if (text := _by_and_after(job.get("finished_by"), pop, at)) else []
            entries.append(_entry(at, "now", "Finished", " ".join(parts)))
    if state in {"delayed", "ready", "reserved"}:
        entries += predicted_retries(job)
        if job.get("deadline_at"):
            entries.append(_entry(job["deadline_at"], "predicted", "Deadline", "dead if not finished by then"))
        if job.get("ttl") and not job["attempts"]:
            at = _moved_later(job["due_at"], job["ttl"])
            entries.append(_entry(at, "predicted", "Expires", "dead if not delivered by then"))
    return _in_order(entries)


def timeline_of_gone(events: Sequence[dict[str, Any]]) -> list[Entry]:
    """What the events that are kept tell of a job that is gone. See `timeline`."""
    entries: list[Entry] = []
    pop: dict[str, Any] | None = None
    for event in events:
        at, attempt = event["at"], event.get("attempt")
        text = _by_and_after(None if pop is None else pop.get("consumer"), pop, at)
        match event["event"]:
            case "put":
                text = "it took the place of another" if event.get("replaced") else ""
                entries.append(_entry(at, "past", "Put", text))
            case "popped":
                pop = event
                entries.append(_handed_out(pop))
            case "released" | "lease_ended":
                how = _HOW[event.get("reason") or event["event"]]
                entries.append(_entry(at, "past", f"Attempt {attempt} {how}", text, event.get("error")))
            case "finished":
                entries.append(_entry(at, "now", "Finished", f"in attempt {attempt} {text}".strip()))
            case "dead":
                entries.append(_entry(at, "now", "Dead", _DIED.get(event.get("reason") or "", ""), event.get("error")))
            case "cancelled":
                entries.append(_entry(at, "now", "Cancelled", f"it was {event.get('was', 'there')}"))
    return _in_order(entries)


def _handed_out(pop: dict[str, Any]) -> Entry:
    to = f"to {pop['consumer']}" if pop.get("consumer") else ""
    return _entry(pop["at"], "past", f"Attempt {pop['attempt']} handed out", to)


def _by_and_after(consumer: str | None, pop: dict[str, Any] | None, ended_at: str | None) -> str:
    """Who had an attempt that ended, and for how long."""
    consumer = consumer or (None if pop is None else pop.get("consumer"))
    parts = [f"by {consumer}"] if consumer else []
    if pop is not None and ended_at is not None:
        took = datetime.fromisoformat(ended_at) - datetime.fromisoformat(pop["at"])
        parts.append(f"after {duration(max(took.total_seconds(), 0))}")
    return " ".join(parts)


def _in_order(entries: list[Entry]) -> list[Entry]:
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
            at = _moved_later(at, wait_s)
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


def _moved_later(at: str, seconds: float) -> str:
    moved = datetime.fromisoformat(at).astimezone(UTC) + timedelta(seconds=min(float(seconds), _LONGEST_S))
    return moved.isoformat(timespec="milliseconds").replace("+00:00", "Z")

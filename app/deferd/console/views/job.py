"""One job: its state and why, what happened to it, its body, and the actions on it."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.json_text import Members, compact, member_text, parse, plain, pretty
from deferd.console.masks import Masks
from deferd.console.off_loop import off_loop
from deferd.console.page_routes import PageList
from deferd.console.put_again import curl, put_text
from deferd.console.timeline import timeline
from deferd.console.undo import cancel as cancel_with_undo
from deferd.console.views.bulk import reschedule_options
from deferd.console.views.jobs import jobs_url
from deferd.console.visit import Visit

pages = PageList()
SHOWN_FIRST = 64_000
"""Characters of a body that are shown at once."""
_EDITED_UP_TO = 200_000
_PARTS = ("body", "result", "headers", "curl")
_PATH = "/console/topics/{topic}/jobs/{id}"
_NO_JSON = "This is not JSON"


def job_url(topic: str, job_id: str, *more: str) -> str:
    """A job's page, or one below it."""
    return page_path("console", "topics", topic, "jobs", job_id, *more)


@pages.page(_PATH)
async def job(visit: Visit, topic: str, id: str) -> Response:
    """The job as it is, or what is known about a job that is gone."""
    why = await visit.read(api_path("jobs", topic, id, "why"))
    values: dict[str, Any] = {
        "here": "topics",
        "topic": topic,
        "id": id,
        "why": why,
        "undo": await visit.undo.get(visit) if visit.fragment is None else None,
        "first": SHOWN_FIRST,
    }
    shown = await visit.read_or_none({404}, api_path("jobs", topic, id), bodies=False)
    if shown is None:
        status = 404 if visit.fragment is None else 200
        return visit.render("job.html", status=status, job=None, entries=[], **values)
    return visit.render("job.html", job=shown, entries=timeline(shown), **values)


@pages.page(_PATH + "/part/{part}")
async def part(visit: Visit, topic: str, id: str, part: str) -> Response:
    """The body, the result or the headers as readable JSON, its beginning first; or the command that puts the job."""
    if part not in _PARTS:
        return visit.redirect(job_url(topic, id))
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
    """A part of a job as text, whether that is all, the bytes of all, and whether fields of it are hidden."""

    text: str
    is_all: bool
    bytes: int
    is_masked: bool


def _shown(masks: Masks, content: bytes, part: str, most: int | None) -> _Shown:
    written = member_text(content, part) or "null"
    value = parse(written)
    text, is_all = pretty(value, most)
    return _Shown(text, is_all, len(written.encode()), masks.hides(value, part))


def _command(visit: Visit, content: bytes) -> _Shown:
    shown = parse(content)
    hides = any(visit.masks.hides(shown.get(name), name) for name in ("body", "headers"))
    text = curl(shown, now_ms=visit.now_ms or 0, has_keys=visit.has_keys, hides=hides)
    return _Shown(text, True, len(text.encode()), hides)


@pages.page(_PATH + "/raw/{part}", has_regions=False)
async def raw(visit: Visit, topic: str, id: str, part: str) -> Response:
    """The JSON as it was put, in one line, as plain text."""
    if part not in _PARTS or part == "curl":
        return visit.redirect(job_url(topic, id))
    content = await visit.read_bytes(api_path("jobs", topic, id))
    text = await off_loop(len(content), lambda: member_text(content, part))
    headers = {
        "content-type": "text/plain; charset=utf-8",
        "content-disposition": f'inline; filename="{id[:100].replace(":", "-")}.{part}.json"',
    }
    return Response((text or "null").encode(), 200, headers)


@pages.page(_PATH + "/edit")
async def edit(visit: Visit, topic: str, id: str) -> Response:
    """A form with the body, for a new one or for a copy."""
    return _edit_form(visit, topic, id, await _edited(visit, topic, id))


@pages.action(_PATH + "/edit")
async def save(visit: Visit, topic: str, id: str) -> Response:
    """Give the job the body that was written, unless the job was changed meanwhile."""
    form = await visit.form()
    text = form.get("body", "")
    shown = await _edited(visit, topic, id)
    try:
        content = await off_loop(len(text), lambda: compact(Members([("body", parse(text))])).encode())
    except ValueError as error:
        return _edit_form(visit, topic, id, shown, text, f"{_NO_JSON}: {error}.", base=form.get("base"))
    if shown.is_masked:
        problem = "This body has masked fields, which the console can't write."
        return _edit_form(visit, topic, id, shown, text, problem)
    if form.get("base") != shown.base:
        problem = "The body was changed meanwhile. Below is what you wrote; open the job again to see what it is now."
        return _edit_form(visit, topic, id, shown, text, problem)
    try:
        await visit.write("PATCH", api_path("jobs", topic, id), content)
    except ApiRefused as refused:
        if refused.status not in {404, 409, 413, 422}:
            raise
        return _edit_form(visit, topic, id, shown, text, refused.problem.get("detail", str(refused)))
    return visit.redirect(job_url(topic, id), notice="The body was changed.")


@pages.action(_PATH + "/copy")
async def copy(visit: Visit, topic: str, id: str) -> Response:
    """Put a job like this one, under a new id. Masked fields are copied as they are: they don't leave the service."""
    original, now_ms = await visit.read_unmasked(api_path("jobs", topic, id)), visit.now_ms or 0
    put = await off_loop(len(original), lambda: put_text(parse(original), with_id=False, now_ms=now_ms))
    done = await visit.write("POST", api_path("jobs"), put)
    return visit.redirect(job_url(topic, done["id"]), notice=f"This is a copy of {id}.")


@pages.action(_PATH + "/cancel")
async def cancel(visit: Visit, topic: str, id: str) -> Response:
    """Cancel the job; if nobody holds it, that can be undone for some seconds."""
    done = await cancel_with_undo(visit, topic, [id], spare_held=False)
    if done.undo is not None:
        return visit.redirect(f"{job_url(topic, id)}?undo={done.undo}")
    if not done.done:
        return visit.redirect(job_url(topic, id), notice="There is no such job any more.")
    held = " The consumer that holds it gets an error at its next request." if done.was_held else ""
    return visit.redirect(job_url(topic, id), notice=f"Cancelled.{held}")


@pages.action(_PATH + "/run")
async def run_now(visit: Visit, topic: str, id: str) -> Response:
    """Make a delayed job due."""
    return await _change(visit, topic, id, {"delay": 0}, "It is due now.")


@pages.action(_PATH + "/reschedule")
async def reschedule(visit: Visit, topic: str, id: str) -> Response:
    """Give a delayed or ready job another due time."""
    form = await visit.form()
    try:
        options = reschedule_options(form.get("when", ""), visit.now_ms)
    except ValueError as error:
        return visit.redirect(job_url(topic, id), notice=str(error))
    return await _change(visit, topic, id, options, f"Rescheduled to {options['run_at']}.")


@pages.action(_PATH + "/redrive")
async def redrive(visit: Visit, topic: str, id: str) -> Response:
    """Make a dead job ready again."""
    result = await visit.write("POST", api_path("topics", topic, "redrive"), {"ids": [id]})
    text = "It is ready again, with no attempts counted." if result["redriven"] else "It is not dead any more."
    return visit.redirect(job_url(topic, id), notice=text)


async def _change(visit: Visit, topic: str, job_id: str, change: dict[str, Any], done: str) -> Response:
    try:
        await visit.write("PATCH", api_path("jobs", topic, job_id), change)
    except ApiRefused as refused:
        if refused.status not in {404, 409, 422}:
            raise
        return visit.redirect(job_url(topic, job_id), notice=f"Nothing was changed: {refused}")
    return visit.redirect(job_url(topic, job_id), notice=done)


class _Edited(NamedTuple):
    """A body to edit, with a mark that tells whether it has changed in the meantime."""

    state: str
    text: str
    base: str
    is_masked: bool


async def _edited(visit: Visit, topic: str, job_id: str) -> _Edited:
    content = await visit.read_bytes(api_path("jobs", topic, job_id))

    def read() -> _Edited:
        written = member_text(content, "body") or "null"
        value = parse(written)
        base = hashlib.sha256(written.encode()).hexdigest()[:24]
        state = plain(parse(member_text(content, "state") or "null"))
        return _Edited(state, pretty(value, _EDITED_UP_TO + 1)[0], base, visit.masks.hides(value))

    return await off_loop(len(content), read)


def _edit_form(  # noqa: PLR0917 (a form and its problem)
    visit: Visit,
    topic: str,
    job_id: str,
    shown: _Edited,
    typed: str | None = None,
    problem: str | None = None,
    *,
    base: str | None = None,
) -> Response:
    text = shown.text if typed is None else typed
    return visit.render(
        "job_edit.html",
        status=200 if problem is None else 422,
        here="topics",
        topic=topic,
        id=job_id,
        state=shown.state,
        text=text if len(text) <= _EDITED_UP_TO else "",
        is_too_long=len(text) > _EDITED_UP_TO,
        most=_EDITED_UP_TO,
        is_masked=shown.is_masked,
        base=base or shown.base,
        problem=problem,
        back=jobs_url(topic),
    )

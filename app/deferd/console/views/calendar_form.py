"""The form of a calendar: its opening hours, a row each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.rendering import etag_of, tojson_text
from deferd.console.views.forms import Form, FormField, comma_separated, read_list
from deferd.console.views.schedule_form import read_days
from deferd.console.views.schedule_pages import days_words
from deferd.console.visit import PageList, Visit
from deferd.contract import limits
from deferd.contract.operations.schedules_and_calendars import PutCalendar

pages = PageList()
_PATH = "/console/calendars/{name}"
_NEW = "console/new-calendar"
_NAME = FormField("name", "Name", "what the window of jobs, topics and schedules says")
_OF_ROW = re.compile(r"windows\.(\d{1,4})\.(\w+)")
_CHANGED = "The calendar was changed meanwhile. Below is what you typed; open it again to see what it is now."


def fields(rows: int) -> tuple[FormField, ...]:
    """The fields of so many windows."""
    return tuple(field for row in range(rows) for field in _fields_of_row(f"windows.{row}"))


def _fields_of_row(path: str) -> tuple[FormField, ...]:
    return (
        FormField(f"{path}.days", "On", "such as Mon-Fri, Sun; empty: all days", read_days, days_words),
        FormField(f"{path}.from", "From", "such as 09:00; empty: 00:00"),
        FormField(f"{path}.to", "To", "such as 18:00; before From: on the next day; empty: 24:00"),
        FormField(f"{path}.zone", "Time zone", "empty: UTC"),
        FormField(f"{path}.except", "Closed on", "dates such as 2030-12-24", read_list, comma_separated),
    )


def typed_rows(sent: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """The texts of the windows in which something was typed, renumbered without gaps, and how many these are."""
    rows: dict[int, dict[str, str]] = {}
    for name, text in sent.items():
        if (found := _OF_ROW.fullmatch(name)) is not None and text.strip():
            rows.setdefault(int(found[1]), {})[found[2]] = text
    texts = {f"windows.{at}.{name}": text for at, row in enumerate(sorted(rows)) for name, text in rows[row].items()}
    return texts, len(rows)


def _form(sent: Mapping[str, str], *, is_new: bool) -> Form:
    """A form with these windows, and one more to fill in."""
    texts, rows = typed_rows(sent)
    name = (_NAME,) if is_new else ()
    return Form((*name, *fields(min(rows + 1, limits.WINDOWS_MAX))), {"name": sent.get("name", ""), **texts})


@pages.page("/console/new-calendar")
async def new(visit: Visit) -> Response:
    """The form of a new calendar."""
    visit.require("read")
    return _page(visit, _form({}, is_new=True), None)


@pages.action("/console/new-calendar")
async def create(visit: Visit) -> Response:
    """Store a new calendar; or show one more row."""
    sent = await visit.form()
    form = _form(sent, is_new=True)
    if sent.get("then") == "row":
        return _page(visit, form, None)
    name = sent.get("name", "").strip()
    if not name:
        form.add_error("name", "is required")
    elif await visit.read_or_none({404, 422}, api_path("calendars", name)) is not None:
        form.add_error("name", "is that of another calendar")
    if not await _put(visit, name, form):
        return _page(visit, form, None)
    return visit.redirect("console/schedules#calendars-title", notice=f"Created the calendar {name}.")


@pages.page(_PATH)
async def calendar(visit: Visit, name: str) -> Response:
    """The form of a stored calendar."""
    stored = await _stored(visit, name)
    texts = Form.of_stored(fields(len(stored["windows"])), {"windows": _by_place(stored)}).texts
    return _page(visit, _form(texts, is_new=False), stored)


@pages.action(_PATH)
async def save(visit: Visit, name: str) -> Response:
    """Replace the calendar unless it was changed meanwhile; or show one more row."""
    sent = await visit.form()
    stored = await _stored(visit, name)
    form = _form(sent, is_new=False)
    if sent.get("then") == "row":
        return _page(visit, form, stored, base=sent.get("base"))
    if sent.get("base") != _base(stored):
        form.add_error("", _CHANGED)
    if not await _put(visit, name, form):
        return _page(visit, form, stored, base=sent.get("base"))
    notice = f"The calendar {name} has these hours for due times from now on. Jobs that wait stay where they are."
    return visit.redirect(page_path("console", "calendars", name), notice=notice)


@pages.action(_PATH + "/delete")
async def delete(visit: Visit, name: str) -> Response:
    """Delete it, if its name was typed."""
    if (await visit.form()).get("typed", "").strip() != visit.to_confirm(name):
        problem = f"Nothing was deleted: type {visit.to_confirm(name)} to delete it."
        return visit.redirect(page_path("console", "calendars", name), problem=problem)
    await visit.write("DELETE", api_path("calendars", name))
    return visit.redirect("console/schedules", notice=f"Deleted the calendar {name}.")


async def _stored(visit: Visit, name: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(await visit.read_fresh(api_path("calendars", name)))
    return found


async def _put(visit: Visit, name: str, form: Form) -> bool:
    """Store the windows of the form; or False, with its errors noted in it."""
    body = {"windows": list(form.body().get("windows", {}).values())}
    form.check(PutCalendar, body)
    if not form.errors:
        try:
            await visit.write("PUT", api_path("calendars", name), body)
        except ApiRefused as refused:
            form.add_refusal(refused)
    return not form.errors


def _page(visit: Visit, form: Form, stored: dict[str, Any] | None, *, base: str | None = None) -> Response:
    name = None if stored is None else stored["name"]
    shown = form.shown()[0 if stored else 1 :]
    width = len(_fields_of_row(""))
    return visit.render(
        "calendar.html",
        status=422 if form.errors else 200,
        here="schedules",
        form=form,
        name=name,
        rows=[[field.name for field in shown[at : at + width]] for at in range(0, len(shown), width)],
        base=None if stored is None else base or _base(stored),
        path=_NEW if name is None else page_path("console", "calendars", name),
    )


def _by_place(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {str(at): window for at, window in enumerate(stored["windows"])}


def _base(stored: Mapping[str, Any]) -> str:
    """What tells whether the calendar has changed in the meantime."""
    return etag_of(tojson_text(stored)).strip('"')

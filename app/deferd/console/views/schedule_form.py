"""The form of a schedule, new or stored, with its next runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import orjson
from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.json_text import member_text, off_loop, parse, pretty
from deferd.console.views.forms import (
    GROUP_HINT,
    PRIORITY_HINT,
    Form,
    FormField,
    comma_separated,
    option_of_job,
    read_exact_json,
    read_list,
    read_number,
    read_seconds,
    read_window,
)
from deferd.console.views.schedule_pages import WEEK, PreviewedRun, days_words, previewed_runs
from deferd.console.views.typed_times import read_instant
from deferd.console.visit import PageList, Region, Visit
from deferd.contract.fields import POLICY
from deferd.contract.model import Labelled
from deferd.contract.operations.schedules_and_calendars import PutSchedule

pages = PageList()
_NEW = "console/new-schedule"
_RUNS_SHOWN = 12
_RUNS_SEARCHED = 400
"""A year of a daily schedule: its runs about the next changes of the clocks are among them."""
_CHANGES_SHOWN = 2
_OF_NEW = {"zone": "UTC", "overlap": "allow", "catch_up": "last"}
_UNNAMED_TOPIC = "preview"
_EDITED_UP_TO = 200_000
_WINDOW_HINT = 'a calendar such as "office", or JSON'
_INSTANT_HINT = "2030-01-31 09:30 in the zone of the schedule, or with an offset"
_CHANGED = "The schedule was changed meanwhile. Below is what you typed; open it again to see what it is now."
_NAME = FormField("name", "Name", "its jobs have ids such as NAME:20300131T030000Z")
_WHEN = ("cron", "every", "at", "days", "zone")
_LIMITS = ("overlap", "catch_up", "start_at", "end_at", "max_runs", "window", "spread")
_JOB = ("job.body", *(f"job.{name}" for name in Labelled.model_fields))
_OPTIONS = tuple(f"job.{field.name}" for field in POLICY)


def read_days(text: str) -> list[str]:
    """Days of the week, also as ranges: `Mon-Fri, Sun`. Other texts stay, for the API to refuse."""
    days: list[str] = []
    for part in read_list(text.lower()):
        first, dash, last = (one.strip() for one in part.partition("-"))
        if dash and first in WEEK and last in WEEK:
            begin, length = WEEK.index(first), (WEEK.index(last) - WEEK.index(first)) % 7 + 1
            days += [WEEK[(begin + step) % 7] for step in range(length)]
        else:
            days.append(part)
    return days


def fields(now: datetime, zone: str) -> tuple[FormField, ...]:
    """All fields but the name. Instants without an offset are in `zone`."""

    def read_typed_instant(text: str) -> str:
        try:
            return read_instant(text, now, zone)
        except ValueError as error:
            raise ValueError(f"must be {error}") from None

    instant = partial(FormField, hint=_INSTANT_HINT, read=read_typed_instant)
    choice = partial(FormField, control="select")
    text = partial(FormField, control="textarea")
    return (
        FormField("topic", "Topic", "of the jobs that it puts"),
        FormField("cron", "Cron expression", "such as 30 2 * * mon-fri, with seconds in front if there are six fields"),
        FormField("every", "Or every", "seconds, or such as 15m; from one run to the next", read_seconds),
        FormField("at", "Or at times of day", "such as 09:00, 17:30", read_list, comma_separated),
        FormField("days", "On days, with times of day", "such as Mon-Fri, Sun; empty: all", read_days, days_words),
        FormField("zone", "Time zone", "of the expression, or of the times of day"),
        choice(
            "overlap",
            "When the run before is live",
            options=(("allow", "run beside it"), ("skip", "skip the new run"), ("replace", "cancel the old one")),
        ),
        choice(
            "catch_up",
            "Runs missed while all was down",
            options=(("last", "make up for the last"), ("none", "leave them out"), ("all", "make up for all")),
        ),
        instant("start_at", "No run before"),
        instant("end_at", "No run after"),
        FormField("max_runs", "Runs at most", "then it has ended; empty: no limit", read_number, control="number"),
        FormField("window", "Opening hours", _WINDOW_HINT, read_window),
        FormField("spread", "Spread", "runs are later by a fixed part of this: seconds, or such as 10m", read_seconds),
        text("job.body", "Body", "JSON; empty: null. Integers of any size stay exact.", read_exact_json),
        FormField("job.tags", "Tags", "with commas between them", read_list, comma_separated),
        text("job.headers", "Headers", 'a JSON object, such as {"tenant": "acme"}', read_exact_json),
        FormField("job.group", "Group", GROUP_HINT),
        FormField("job.priority", "Priority", PRIORITY_HINT, read_number, control="number"),
        *(option_of_job(field, "job.") for field in POLICY),
    )


class _Stored(NamedTuple):
    """A schedule as it is stored, and what its job has as `body` and `headers`.

    `readable` are those to edit, as indented JSON; `kept` are those with masked fields or too long for a form, as JSON.
    """

    found: dict[str, Any]
    readable: dict[str, str]
    kept: dict[str, str]


async def _read(visit: Visit, name: str) -> _Stored:
    path = api_path("schedules", name)
    found, exact = orjson.loads(await visit.read_fresh(path)), await visit.read_unmasked(path)

    def read() -> _Stored:
        job = (member_text(exact, "job") or "{}").encode()
        stored = _Stored(found, {}, {})
        for part in ("body", "headers"):
            written = member_text(job, part) or ""
            text = pretty(parse(written), _EDITED_UP_TO + 1)[0] if written else ""
            if len(text) > _EDITED_UP_TO or (written and visit.masks.hides(parse(written), part)):
                stored.kept[part] = written
            else:
                stored.readable[f"job.{part}"] = text
        return stored

    return await off_loop(len(exact), read)


@pages.page("/console/new-schedule")
async def new(visit: Visit) -> Response:
    """The form of a new schedule."""
    visit.require("read")
    form = Form((_NAME, *_fields(visit, "UTC")), {**_OF_NEW, "topic": visit.query.get("topic", "")})
    return await _page(visit, form, None, {})


@pages.action("/console/new-schedule")
async def create(visit: Visit) -> Response:
    """Store a new schedule, or show when it would run."""
    sent = await visit.form()
    form = Form((_NAME, *_fields(visit, sent.get("zone", ""))), sent)
    body = await _body(form)
    name = body.pop("name", "")
    if _is_preview(visit, sent):
        return await _page(visit, form, None, body)
    if not name:
        form.add_error("name", "is required")
    form.check(PutSchedule, body)
    if not form.errors:
        try:
            await visit.create(api_path("schedules", name), body)
        except ApiRefused as refused:
            if refused.code == "schedule_exists":
                form.add_error("name", "is that of another schedule")
            else:
                form.add_refusal(refused)
    if form.errors:
        return await _page(visit, form, None, body)
    return visit.redirect(page_path("console", "schedules", name), notice=f"Created {name}.")


@pages.page("/console/schedules/{name}/edit")
async def edit(visit: Visit, name: str) -> Response:
    """The form of a stored schedule."""
    stored = await _read(visit, name)
    known = Form.of_stored(_fields(visit, stored.found["zone"]), stored.found)
    form = Form(_fields(visit, stored.found["zone"], stored), {**known.texts, **stored.readable})
    return await _page(visit, form, stored, await _body(form))


@pages.action("/console/schedules/{name}/edit")
async def save(visit: Visit, name: str) -> Response:
    """Replace the schedule unless it was changed meanwhile, or show when it would run. A pause stays."""
    sent = await visit.form()
    stored = await _read(visit, name)
    form = Form(_fields(visit, sent.get("zone", ""), stored), sent)
    body = await _body(form)
    if _is_preview(visit, sent):
        return await _page(visit, form, stored, body)
    form.check(PutSchedule, body)
    if sent.get("base") != stored.found["updated_at"]:
        form.add_error("", _CHANGED)
    if not form.errors:
        shown = {name.removeprefix("job.") for name in (*_JOB, *_OPTIONS)}
        unshown = {part: value for part, value in stored.found["job"].items() if part not in shown}
        kept = {part: orjson.Fragment(text.encode()) for part, text in stored.kept.items()}
        body["job"] = {**unshown, **body.get("job", {}), **kept}
        try:
            await visit.write("PUT", api_path("schedules", name), body)
        except ApiRefused as refused:
            form.add_refusal(refused)
    if form.errors:
        return await _page(visit, form, stored, body)
    return visit.redirect(page_path("console", "schedules", name), notice=f"Changed {name}.")


def _fields(visit: Visit, zone: str, stored: _Stored | None = None) -> tuple[FormField, ...]:
    now = datetime.fromtimestamp((visit.now_ms or 0) / 1000, UTC)
    kept = set() if stored is None else {f"job.{part}" for part in stored.kept}
    return tuple(field for field in fields(now, zone) if field.name not in kept)


async def _body(form: Form) -> dict[str, Any]:
    return await off_loop(sum(map(len, form.texts.values())), form.body)


def _is_preview(visit: Visit, sent: Mapping[str, str]) -> bool:
    return visit.fragment is not None or sent.get("then") == "preview"


async def _page(visit: Visit, form: Form, stored: _Stored | None, body: Mapping[str, Any]) -> Response:
    """The form with the runs of `body`."""
    runs = await _preview(visit, form, stored, body)
    name = None if stored is None else stored.found["name"]
    path = _NEW if name is None else page_path("console", "schedules", name)
    made = visit.render(
        "schedule_form.html",
        status=422 if form.errors else 200,
        here="schedules",
        form=form,
        name=name,
        base=None if stored is None else stored.found["updated_at"],
        kept=sorted(stored.kept) if stored else [],
        action=_NEW if name is None else f"{path}/edit",
        back="console/schedules" if name is None else path,
        parts={
            "first": ("topic",) if stored else ("name", "topic"),
            "when": _WHEN,
            "limits": _LIMITS,
            "job": [one for one in _JOB if stored is None or one.removeprefix("job.") not in stored.kept],
            "options": _OPTIONS,
        },
        runs=runs,
    )
    return visit.region_response(made) if isinstance(made, Region) else made


class _Runs(NamedTuple):
    """The next runs, and those later ones that are just before and after a change of the clocks."""

    next: list[PreviewedRun]
    about_changes: list[PreviewedRun]
    tzdata: str


def shown_runs(preview: Mapping[str, Any]) -> _Runs:
    """What a page shows of many previewed runs."""
    runs = previewed_runs(preview)
    changes = [at for at in range(_RUNS_SHOWN, len(runs)) if runs[at].clocks_change][:_CHANGES_SHOWN]
    about = sorted({place for at in changes for place in (at - 1, at) if place >= _RUNS_SHOWN})
    return _Runs(runs[:_RUNS_SHOWN], [runs[at] for at in about], preview["tzdata"])


async def _preview(visit: Visit, form: Form, stored: _Stored | None, body: Mapping[str, Any]) -> _Runs | None:
    """The runs; None before there is a rule, and when something is wrong: what the API refuses becomes an error."""
    if not any(name in body for name in ("cron", "every", "at")):
        return None
    right = {name: value for name, value in body.items() if name not in form.errors}
    of_job = {name: value for name, value in body.get("job", {}).items() if f"job.{name}" not in form.errors}
    job = {name: value for name, value in of_job.items() if not isinstance(value, orjson.Fragment)}
    timing = {"topic": _UNNAMED_TOPIC, **right, "job": job}
    if stored is not None and "every" in right:
        timing.setdefault("start_at", f"{stored.found['created_at'][:19]}Z")  # the second that its runs count from
    for count in (_RUNS_SEARCHED, _RUNS_SHOWN):
        try:
            preview = await visit.write("POST", api_path("schedules", "preview"), timing, count=count)
        except ApiRefused as refused:
            probe = form.empty()
            probe.add_refusal(refused)
            if "count" not in probe.errors:  # else so many take too long to compute
                break
        else:
            return None if form.errors else shown_runs(preview)
    for path, text in probe.errors.items():
        form.errors.setdefault(path, text)
    return None

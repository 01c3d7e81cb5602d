"""The form of a job that waits: its body, labels and options. Only what was changed is sent."""

from __future__ import annotations

from typing import NamedTuple

import orjson
from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.json_text import key_of_value, member_text, off_loop, parse, pretty
from deferd.console.rendering import etag_of, tojson_text
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
)
from deferd.console.views.jobs import jobs_url
from deferd.console.visit import PageList, Visit
from deferd.contract.fields import NULL_IS_NONE, POLICY
from deferd.contract.model import Labelled

pages = PageList()
_PATH = "/console/topics/{topic}/jobs/{id}/edit"
_EDITED_UP_TO = 200_000
_JSON_PARTS = ("body", "headers")
_OPTIONS = tuple(field.name for field in POLICY)
_CAN_BE_NULL = {*NULL_IS_NONE, *Labelled.model_fields}
_CHANGED = "The job was changed meanwhile. Below is what you typed; open it again to see what it is now."
_NOT_CHANGED = {404, 409, 413}
FIELDS = (
    FormField("body", "Body", "JSON. Integers of any size stay exact.", read_exact_json, control="textarea"),
    FormField("tags", "Tags", "with commas between them; empty: none", read_list, comma_separated),
    FormField("headers", "Headers", "a JSON object; empty: none", read_exact_json, control="textarea"),
    FormField("group", "Group", GROUP_HINT),
    FormField("priority", "Priority", PRIORITY_HINT, read_number, control="number"),
    *map(option_of_job, POLICY),
)


class _Edited(NamedTuple):
    """A job to edit: the form with what it has, and a mark that tells whether that has changed in the meantime.

    `kept` are the parts that the form leaves out, with the reason.
    """

    state: str
    form: Form
    kept: dict[str, str]
    base: str


@pages.page(_PATH)
async def edit(visit: Visit, topic: str, id: str) -> Response:
    """The form with what the job has."""
    edited = await _read(visit, topic, id)
    return _page(visit, topic, id, edited, edited.form, edited.base)


@pages.action(_PATH)
async def save(visit: Visit, topic: str, id: str) -> Response:
    """Change what was typed otherwise, unless the job was changed meanwhile."""
    sent = await visit.form()
    edited = await _read(visit, topic, id)
    form = Form((field for field in FIELDS if field.name not in edited.kept), sent)
    size = sum(map(len, (*edited.form.texts.values(), *sent.values())))
    before, after = await off_loop(size, lambda: (edited.form.body(), form.body()))
    changes = {name: value for name, value in after.items() if orjson.dumps(value) != orjson.dumps(before.get(name))}
    for name in (before.keys() & sent.keys()) - after.keys() - form.errors.keys():
        if name not in _CAN_BE_NULL:
            form.add_error(name, "must have a value")
        elif before[name] is not None:
            changes[name] = None
    if sent.get("base") != edited.base:
        form.add_error("", _CHANGED)
    if changes and not form.errors:
        try:
            await visit.write("PATCH", api_path("jobs", topic, id), changes)
        except ApiRefused as refused:
            if refused.status in _NOT_CHANGED:
                form.add_error("", str(refused))
            else:
                form.add_refusal(refused)
    if form.errors:
        return _page(visit, topic, id, edited, form, sent.get("base", ""))
    notice = f"Changed: {', '.join(changes)}." if changes else "Nothing was changed."
    return visit.redirect(page_path("console", "topics", topic, "jobs", id), notice=notice)


async def _read(visit: Visit, topic: str, job_id: str) -> _Edited:
    content = await visit.read_fresh(api_path("jobs", topic, job_id))

    def read() -> _Edited:
        job = orjson.loads(content)
        texts, kept = {}, {}
        written = {part: member_text(content, part) or "" for part in _JSON_PARTS}
        for part, text in written.items():
            value = parse(text or "null")
            texts[part] = pretty(value, _EDITED_UP_TO + 1)[0] if text else ""
            if (key := key_of_value(value)) is not None:
                kept[part] = f"is encrypted with key {key}, so only the application can write it"
            elif visit.masks.hides(value, part):
                kept[part] = "has masked fields, so the console can't write it"
            elif len(texts[part]) > _EDITED_UP_TO:
                kept[part] = f"is longer than {_EDITED_UP_TO:,} characters, too long for this form"
        known = Form.of_stored((field for field in FIELDS if field.name not in _JSON_PARTS), job)
        fields = [field for field in FIELDS if field.name not in kept]
        form = Form(fields, {**known.texts, **{part: text for part, text in texts.items() if part not in kept}})
        base = etag_of(tojson_text([known.texts, written])).strip('"')
        return _Edited(job["state"], form, kept, base)

    return await off_loop(len(content), read)


def _page(visit: Visit, topic: str, job_id: str, edited: _Edited, form: Form, base: str) -> Response:  # noqa: PLR0917 (a form)
    return visit.render(
        "job_edit.html",
        status=422 if form.errors else 200,
        here="topics",
        topic=topic,
        id=job_id,
        state=edited.state,
        form=form,
        kept=edited.kept,
        parts=[part for part in ("body", *Labelled.model_fields) if part not in edited.kept],
        options=_OPTIONS,
        base=base,
        back=jobs_url(topic),
    )

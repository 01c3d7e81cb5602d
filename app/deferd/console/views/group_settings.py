"""Settings of many topics at once, of all that are named or match a pattern; they are seen before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from deferd.console.api_calls import api_path
from deferd.console.rendering import etag_of, tojson_text
from deferd.console.views.forms import Form, FormField, without_empty
from deferd.console.views.topic_selection import TOPICS, change_each, chosen_topics, fresh_topic, matching_topics
from deferd.console.views.topics import FIELDS as SETTINGS
from deferd.console.visit import PageList, Visit
from deferd.contract.counted import counted
from deferd.contract.model import TopicSettings

pages = PageList()
_PATH = "/console/topic-settings"
_DEFAULT = "default"


def _for_many(field: FormField) -> FormField:
    """The field of a setting: empty, it leaves that of each topic as it is; `default` is that of the service."""
    return without_empty(field)._replace(read=lambda text: None if text == _DEFAULT else field.read(text))


FIELDS = (TOPICS, *map(_for_many, SETTINGS))


class Change(NamedTuple):
    """What becomes of a topic: its settings now and then, and for each setting that differs its old and new value."""

    topic: str
    now: dict[str, Any]
    then: dict[str, Any]
    differences: list[tuple[str, Any, Any]]


@pages.page(_PATH)
async def group_settings(visit: Visit) -> Response:
    """The form."""
    visit.require("read")
    return _page(visit, Form(FIELDS, {"topics": chosen_topics(visit)}))


@pages.action(_PATH)
async def store(visit: Visit) -> Response:
    """Show what would change; or change it, if that is what was shown."""
    sent = await visit.form()
    form = Form(FIELDS, sent)
    wanted = form.body()
    named = wanted.pop("topics", [])
    form.check(TopicSettings, {name: value for name, value in wanted.items() if value is not None})
    if not wanted and not form.errors:
        form.add_error("", "Fill in at least one setting.")
    topics = [] if form.errors else await matching_topics(visit, form, named)
    if form.errors:
        return _page(visit, form)
    changes = [change_of(topic, await _settings(visit, topic), wanted) for topic in topics]
    seen = etag_of(tojson_text([[change.topic, change.now, change.then] for change in changes])).strip('"')
    changing = [change for change in changes if change.differences]
    if sent.get("seen") != seen or not changing:
        return _page(visit, form, changes=changes, seen=seen)
    settings = {change.topic: change.then for change in changing}

    async def put(topic: str) -> None:
        await visit.write("PUT", api_path("topics", topic), settings[topic])

    stored = await change_each(visit, form, list(settings), put)
    if form.errors:
        return _page(visit, form, changes=None if stored else changes, seen=seen, stored=stored)
    notice = f"Stored for {counted(stored, 'topic')}: jobs put from now on have these settings."
    return visit.redirect("console/topics", notice=notice)


def change_of(topic: str, now: Mapping[str, Any], wanted: Mapping[str, Any]) -> Change:
    """What the wanted settings change; None is the default of the service."""
    given = {name: value for name, value in now.items() if value is not None}
    then = {name: value for name, value in {**given, **wanted}.items() if value is not None}
    names = [name for name in wanted if given.get(name) != then.get(name)]
    return Change(topic, given, then, [(name, given.get(name), then.get(name)) for name in names])


async def _settings(visit: Visit, topic: str) -> dict[str, Any]:
    """The settings of a topic; none of one that does not exist yet."""
    view = await fresh_topic(visit, topic)
    return {} if view is None else dict(view["settings"])


def _page(
    visit: Visit, form: Form, *, changes: list[Change] | None = None, seen: str = "", stored: int | None = None
) -> Response:
    return visit.render(
        "group_settings.html",
        status=422 if form.errors else 200,
        here="topics",
        form=form,
        changes=changes,
        changing=sum(bool(change.differences) for change in changes or ()),
        seen=seen,
        stored=stored,
        labels={field.name: field.label for field in SETTINGS},
    )

"""Settings of many topics at once, of all that are named or match a pattern; they are seen before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path
from deferd.console.rendering import etag_of, tojson_text
from deferd.console.views.forms import Form, FormField, comma_separated, read_list, without_empty
from deferd.console.views.topics import FIELDS as SETTINGS
from deferd.console.visit import PageList, Visit
from deferd.contract import limits
from deferd.contract.counted import counted
from deferd.contract.model import TopicSettings
from deferd.contract.topic_patterns import TopicPatterns

pages = PageList()
_PATH = "/console/topic-settings"
_TOPICS_MAX = 200
_SEARCHED = limits.PAGE_MAX
_DEFAULT = "default"
_NO_TOPIC, _NOT_VALID = 404, 422
_TOPICS = FormField("topics", "Topics", "names and patterns such as tenant.*", read_list, comma_separated)


def _for_many(field: FormField) -> FormField:
    """The field of a setting: empty, it leaves that of each topic as it is; `default` is that of the service."""
    return without_empty(field)._replace(read=lambda text: None if text == _DEFAULT else field.read(text))


FIELDS = (_TOPICS, *map(_for_many, SETTINGS))


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
    return _page(visit, Form(FIELDS, {"topics": visit.query.get("topics", "")}))


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
    topics = [] if form.errors else await _matching(visit, form, named)
    if form.errors:
        return _page(visit, form)
    changes = [change_of(topic, await _settings(visit, topic), wanted) for topic in topics]
    seen = etag_of(tojson_text([[change.topic, change.now, change.then] for change in changes])).strip('"')
    changing = [change for change in changes if change.differences]
    if sent.get("seen") != seen or not changing:
        return _page(visit, form, changes=changes, seen=seen)
    if not visit.has_room_for(len(changing)):
        form.add_error("", f"Your key's rate limit has no room for {len(changing)} requests now.")
        return _page(visit, form, changes=changes, seen=seen)
    stored = 0
    for place, change in enumerate(changing):
        try:
            await visit.write("PUT", api_path("topics", change.topic), change.then)
        except ApiRefused as refused:
            is_of_topic = refused.status == _NOT_VALID
            if not is_of_topic and not place:
                raise
            form.add_error("", f"{change.topic}: {refused}")
            if not is_of_topic:  # all others would be refused as well
                form.add_error("", f"the {len(changing) - place - 1} after it were not tried")
                break
        else:
            stored += 1
    if form.errors:
        return _page(visit, form, stored=stored)
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
    try:
        view = orjson.loads(await visit.read_fresh(api_path("topics", topic)))
    except ApiRefused as refused:
        if refused.status != _NO_TOPIC:
            raise
        return {}
    return dict(view["settings"])


async def _matching(visit: Visit, form: Form, named: list[str]) -> list[str]:
    """The topics, sorted; none, with an error noted, if there are none or too many."""
    found = {name for name in named if "*" not in name}
    for pattern in (name for name in named if "*" in name):
        part = max(pattern.split("*"), key=len)
        listing = await visit.read(api_path("overview"), name=part or None, sort="topic", limit=_SEARCHED)
        if listing["matching"] > _SEARCHED:
            form.add_error("topics", f"{listing['matching']:,} topics have “{part}” in their names: name fewer")
            return []
        patterns = TopicPatterns([pattern])
        found |= {one["topic"] for one in listing["topics"] if patterns.match(one["topic"])}
    if not found:
        form.add_error("topics", "is required" if not named else "matches no topic")
    elif len(found) > _TOPICS_MAX:
        form.add_error("topics", f"are {len(found):,}: at most {_TOPICS_MAX} can be changed at once")
        return []
    return sorted(found)


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

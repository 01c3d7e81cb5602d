"""Pause or resume many topics at once, all that are named or match a pattern; they are seen before anything is done."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from deferd.console.api_calls import api_path
from deferd.console.rendering import etag_of, tojson_text
from deferd.console.views.forms import Form, FormField
from deferd.console.views.topic_selection import TOPICS, change_each, chosen_topics, fresh_topic, matching_topics
from deferd.console.visit import PageList, Visit
from deferd.contract.counted import counted
from deferd.contract.model import PauseTopic

pages = PageList()
_PATH = "/console/topic-pauses"
_REASON = FormField("reason", "Reason", "of a pause, for people; shown wherever it is")
FIELDS = (TOPICS, _REASON)
_DONE = {"pause": "Paused", "resume": "Resumed"}
_LINK_MAX = 4000
_NOT_AS_SHOWN = "Nothing was done: the topics are not as they were shown. Look at them again."


@pages.page(_PATH)
async def show(visit: Visit) -> Response:
    """The topics that the URL names, and which of them are paused."""
    visit.require("read")
    form = Form(FIELDS, {"topics": chosen_topics(visit), "reason": visit.query.get("reason", "")})
    return _page(visit, form, await _topics(visit, form) if form.texts["topics"] else [])


@pages.action(_PATH)
async def change(visit: Visit) -> Response:
    """Pause those that hand out jobs, or resume the others, if they are as they were shown."""
    sent = await visit.form()
    form = Form(FIELDS, sent)
    wanted = form.body()
    reason = {"reason": wanted["reason"]} if "reason" in wanted else {}
    form.check(PauseTopic, reason)
    topics, act = await _topics(visit, form), sent.get("act", "")
    if not form.errors and (act not in _DONE or sent.get("seen") != _seen(topics)):
        form.add_error("", _NOT_AS_SHOWN)
    if form.errors:
        return _page(visit, form, topics)
    changing = [one["topic"] for one in topics if one.get("paused") is (act == "resume")]

    async def change_one(topic: str) -> None:
        await visit.write("POST", api_path("topics", topic, act), reason if act == "pause" and reason else None)

    changed = await change_each(visit, form, changing, change_one)
    text = f"{_DONE[act]} {counted(changed, 'topic')}"
    if form.errors:
        return _page(visit, form, await _topics(visit, form), done=text if changed else None)
    link = urlencode({"topics": sent.get("topics", "")})
    to = f"{_PATH[1:]}?{link}" if len(link) <= _LINK_MAX else "console/topics"
    return visit.redirect(to, notice=f"{text}.")


async def _topics(visit: Visit, form: Form) -> list[dict[str, Any]]:
    """The topics that the form names as they are now; of one that does not exist only its name.

    A pause would make such a topic, so it is left out: more often its name is mistyped.
    """
    names = await matching_topics(visit, form, form.body().get("topics", []))
    return [await fresh_topic(visit, name) or {"topic": name} for name in names]


def _seen(topics: list[dict[str, Any]]) -> str:
    return etag_of(tojson_text([[one["topic"], one.get("paused")] for one in topics])).strip('"')


def _page(visit: Visit, form: Form, topics: list[dict[str, Any]], *, done: str | None = None) -> Response:
    return visit.render(
        "group_pause.html",
        status=422 if form.errors else 200,
        here="topics",
        form=form,
        topics=topics,
        running=sum(one.get("paused") is False for one in topics),
        paused=sum(one.get("paused") is True for one in topics),
        seen=_seen(topics),
        done=done,
    )

"""Dead jobs by error, and a redrive or cancel of all jobs of one error."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from deferd.console.api_calls import api_path, page_path
from deferd.console.views.bulk import TYPED_ABOVE
from deferd.console.views.filters import LOOKS_BACK, read_filtered, refuse_masked_error, since_instant, topics_filter
from deferd.console.views.redrive_rate import RedriveRate, read_redrive_rate
from deferd.console.visit import PageList, Visit
from deferd.contract.counted import counted
from deferd.contract.limits import REDRIVE_MAX

pages = PageList()
_SHOWN = 100
_LOOKED_AT = 5000


@pages.page("/console/dead")
async def dead(visit: Visit) -> Response:
    """The groups of dead jobs, the largest first."""
    found, wrong = await read_filtered(
        visit,
        api_path("dead"),
        topics=topics_filter(visit),
        since=since_instant(visit),
        limit=_SHOWN,
        look_at=_LOOKED_AT,
    )
    return visit.render(
        "dead.html",
        here="dead",
        found=found,
        wrong=wrong,
        command=visit.curl("/jobs", body={"topic": "hello", "id": "one", "ttl": 1, "delay": 1}),
        periods=[("Any time", ""), *((text, value) for value, (text, _) in LOOKS_BACK.items())],
    )


@pages.page("/console/dead/redrive")
async def redrive_page(visit: Visit) -> Response:
    """What a redrive of a group would do."""
    return await _preview(visit, "redrive", _of_link(visit.query))


@pages.page("/console/dead/cancel")
async def cancel_page(visit: Visit) -> Response:
    """What a cancel of a group would do."""
    return await _preview(visit, "cancel", _of_link(visit.query))


@pages.action("/console/dead/redrive")
async def redrive(visit: Visit) -> Response:
    """Redrive the jobs of a group that were dead at its preview."""
    return await _act(visit, "redrive")


@pages.action("/console/dead/cancel")
async def cancel(visit: Visit) -> Response:
    """Cancel the jobs of a group that were dead at its preview."""
    return await _act(visit, "cancel")


def _of_link(group: Mapping[str, str]) -> dict[str, str]:
    """What confirms is never taken from a link: a future cutoff would include jobs that nobody has counted."""
    return {name: value for name, value in group.items() if name not in {"cutoff", "typed"}}


async def _preview(visit: Visit, action: str, group: Mapping[str, str], problem: str | None = None) -> Response:
    """How many jobs are meant, until when they died, and some of them."""
    topic = group.get("topic", "")
    found = await _sweep(visit, action, group, dry_run=True)
    jobs = (api_path("jobs", topic, sample["id"]) for sample in found["samples"])
    read = await asyncio.gather(*(visit.read_or_none({404}, job, bodies=False) for job in jobs))
    return visit.render(
        "dead_action.html",
        here="dead",
        action=action,
        topic=topic,
        reason=group.get("reason", ""),
        error=group.get("error", ""),
        is_typed=found["matched"] > TYPED_ABOVE,
        matched=found["matched"],
        cutoff=found["cutoff"],
        rate=read_redrive_rate(group),
        typed=group.get("typed", ""),
        # Of a job that was cancelled just now the id alone is known.
        samples=[job or {"id": sample["id"]} for job, sample in zip(read, found["samples"], strict=True)],
        problem=problem,
    )


async def _act(visit: Visit, action: str) -> Response:
    form = await visit.form()
    topic, matched = form.get("topic", ""), form.get("matched", "")
    if not form.get("cutoff"):
        return await _preview(visit, action, form, "Nothing was done: this is what it would do.")
    rate = read_redrive_rate(form) if action == "redrive" else RedriveRate()
    if not rate.is_seen:
        return await _preview(visit, action, form, rate.problem)
    are_many = not matched.isdecimal() or int(matched[:15]) > TYPED_ABOVE
    if are_many and form.get("typed", "").strip() != visit.to_confirm(topic):
        return await _preview(visit, action, form, f"Nothing was done: type {visit.to_confirm(topic)} to go on.")
    as_task = are_many or rate.per_s is not None
    result = await _sweep(visit, action, form, rate.per_s, as_task=as_task)
    if as_task:
        return visit.redirect(page_path("console", "tasks", result["id"]))
    count = result["redriven" if action == "redrive" else "removed"]
    done = "ready again" if action == "redrive" else "cancelled"
    one, many = ("is", "are") if action == "redrive" else ("was", "were")
    text = f"{counted(count, f'job of {topic} {one}', f'jobs of {topic} {many}')} {done}."
    return visit.redirect("console/dead", notice=text, problem=None if count else text)


async def _sweep(visit: Visit, action: str, group: Mapping[str, str], rate: float | None = None, **how: bool) -> Any:
    """A redrive or cancel of the jobs with this topic, reason and error that were dead at the cutoff."""
    refuse_masked_error(visit, group.get("error"))
    topic = api_path("topics", group.get("topic", ""))
    wanted = {"reason": group.get("reason") or None, "error": group.get("error", "")}
    wanted["cutoff"] = group.get("cutoff") or None
    if action == "cancel":  # of a group that is the purge of the API
        return await visit.write("DELETE", topic, state="dead", **wanted, **how)
    given = {name: value for name, value in {**wanted, "rate": rate}.items() if value is not None}
    limit = {} if how.get("as_task") else {"limit": REDRIVE_MAX}
    return await visit.write("POST", f"{topic}/redrive", {**given, **how, **limit})

"""Actions on many jobs: a preview with a cutoff, then the action on exactly what was counted."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.json_text import member_text, off_loop, parse, plain
from deferd.console.undo import undo as undo_cancel
from deferd.console.views.filters import JobListFilter, read_filter, refuse_masked_error
from deferd.console.views.jobs import ACTIONS, KEPT_IN_URL, jobs_url, list_query, read_rows
from deferd.console.views.redrive_rate import RedriveRate, read_redrive_rate
from deferd.console.views.typed_times import NewDueTime, read_new_due_time
from deferd.console.visit import PageList, Visit
from deferd.contract.counted import counted
from deferd.contract.encrypted_values import key_of
from deferd.contract.limits import BULK_MAX, REDRIVE_MAX, SELECT_IDS_MAX
from deferd.contract.timestamps import format_instant, parse_instant

pages = PageList()
_PAGES_SEARCHED = 20
_VALUE_SHOWN = 100
_BODY_SHOWN = 160
_LINK_MAX = 6000
"""Characters of a link, percent-encoded once more: so it is in the URL of the log-in, which has at most 8,192 bytes."""
_CALLS_KEPT = 5
"""Requests that the action itself needs: it would be refused if reading the samples used up the rate limit."""
_IN_LINK = (*KEPT_IN_URL, "action", "all", "id_list", "when", "when_zone", "by", "spread")
"""What a link to a preview may say; the person who opens it confirms it."""
TYPED_ABOVE = 1000
"""Above this many jobs, people must type the name of the topic, and a task does it."""


class Target(NamedTuple):
    """The selected jobs: the jobs in `ids`, or with None all that match the filter. A call takes either."""

    topic: str
    ids: tuple[str, ...] | None
    wanted: JobListFilter


class _ApiCall(NamedTuple):
    """One call of the API: its method, path, JSON body and query."""

    method: str
    path: str
    body: dict[str, Any] | None
    query: dict[str, Any]


@pages.action("/console/topics/{topic}/bulk/preview")
async def select(visit: Visit, topic: str) -> Response:
    """Lead to the preview of an action on the selected jobs: its URL names them, unless they are too many for one."""
    form = await visit.form_lists()
    fields = {name: values[-1] for name, values in form.items()}
    if not fields.get("all"):
        fields["id_list"] = " ".join(list(dict.fromkeys(form.get("ids", [])))[:SELECT_IDS_MAX])
    wanted = _filter_of(visit, fields)
    problem = _not_chosen(fields, wanted)
    if problem is not None:
        return visit.redirect(jobs_url(topic, list_query(fields, wanted)), problem=problem)
    link = _link(topic, fields, wanted)
    return await _first_preview(visit, topic, fields) if link is None else visit.redirect(link)


@pages.page("/console/topics/{topic}/bulk")
async def preview(visit: Visit, topic: str) -> Response:
    """Count what an action would change; nothing changes."""
    return await _first_preview(visit, topic, {name: visit.query[name] for name in _IN_LINK if name in visit.query})


async def _first_preview(visit: Visit, topic: str, fields: Mapping[str, str]) -> Response:
    """The preview of what was selected, or of what somebody else's link selects, with a cutoff of now."""
    wanted = _filter_of(visit, fields)
    problem = _not_chosen(fields, wanted)
    back = jobs_url(topic, list_query(fields, wanted))
    if problem is not None:
        return visit.redirect(back, problem=problem)
    action = fields["action"]
    ids = None if fields.get("all") else tuple(dict.fromkeys(fields["id_list"].split()))[:SELECT_IDS_MAX]
    is_complete = True
    if ids is None and not is_selectable(action, wanted, is_admin=visit.may("admin")):
        found, is_complete = await _matching_ids(visit, topic, wanted)
        ids = tuple(found)
    if ids == ():
        return visit.redirect(back, problem="No job matches.")
    is_timed = action == "reschedule" and any(fields.get(name) for name in ("when", "by", "spread"))
    new = read_new_due_time(fields, visit.now_ms) if is_timed else None
    problem = None if new is None else new.problem
    target = Target(topic, ids, wanted)
    return await _preview(visit, action, target, None, fields, problem=problem, new=new, is_complete=is_complete)


def _not_chosen(fields: Mapping[str, str], wanted: JobListFilter) -> str | None:
    """What a person has not chosen yet."""
    if fields.get("action") not in ACTIONS:
        return "Choose what to do."
    if not fields.get("all"):
        return None if fields.get("id_list", "").split() else "Select some jobs first."
    if wanted.is_search or wanted.state is not None or fields["action"] == "redrive":
        return None
    return "Choose a state or a tag first: not all jobs at once."


def _link(topic: str, fields: Mapping[str, str], wanted: JobListFilter, new: NewDueTime | None = None) -> str | None:
    """The URL of a preview, which selects the same for everybody; None if it would be too long."""
    selected = {"all": "1"} if fields.get("all") else {"id_list": fields.get("id_list", "")}
    query = {"action": fields["action"], **list_query(fields, wanted), **selected}
    if new is not None and new.is_read:
        query |= {"when": new.at} if new.at is not None else {"by": new.given_by}
        query |= {"spread": new.given_spread} if new.given_spread else {}
    link = f"{page_path('console', 'topics', topic, 'bulk')}?{urlencode(query)}"
    return link if len(quote(link, safe="")) <= _LINK_MAX else None


@pages.action("/console/topics/{topic}/bulk")
async def act(visit: Visit, topic: str) -> Response:
    """Carry out what was previewed."""
    fields = await visit.form()
    action = fields.get("action", "")
    if action not in ACTIONS:
        return visit.redirect(jobs_url(topic))
    ids = tuple(fields["id_list"].split()) if fields.get("id_list") else None
    target = Target(topic, ids, _filter_of(visit, fields))
    if ids is None and not is_selectable(action, target.wanted, is_admin=visit.may("admin")):
        raise ApiRefused(422, {"detail": "Nothing was done: this filter needs the ids of the jobs. Preview it again."})
    cutoff = fields.get("cutoff", "")
    if not cutoff:
        raise ApiRefused(422, {"detail": "Nothing was done: only what a preview has counted is changed. Preview it."})
    new = read_new_due_time(fields, visit.now_ms) if action == "reschedule" else None
    if new is not None and not new.is_seen:
        return await _preview(visit, action, target, cutoff, fields, problem=new.problem, new=new)
    rate = read_redrive_rate(fields) if action == "redrive" and ids is None else RedriveRate()
    if not rate.is_seen:
        return await _preview(visit, action, target, cutoff, fields, problem=rate.problem)
    matched = (await _count(visit, action, target, cutoff, limit=TYPED_ABOVE + 1))["matched"]
    if matched > TYPED_ABOVE and fields.get("typed", "").strip() != (name := visit.to_confirm(topic)):
        problem = f"Type the name of the topic, {name}, to confirm: these are more than {TYPED_ABOVE:,} jobs."
        return await _preview(visit, action, target, cutoff, fields, problem=problem, new=new)
    back = jobs_url(topic, list_query(fields, target.wanted))
    as_task = ids is None and (matched > TYPED_ABOVE or rate.per_s is not None)
    options = _options(action, fields) if new is None else new.options()
    options |= {} if rate.per_s is None else {"rate": rate.per_s}
    call = api_call(action, target, cutoff=cutoff, options=options, as_task=as_task)
    token = fields.get("request_id") or secrets.token_hex(12)
    with_undo = action == "cancel" and fields.get("undo") == "1"
    if call.body is not None and (with_undo or action in {"reschedule", "run_now"}):
        call.body.update({"request_id": token}, **({"undo": True} if with_undo else {}))
    result = await visit.write(call.method, call.path, call.body, **call.query)
    if as_task:
        return visit.redirect(page_path("console", "tasks", result["id"]))
    text, is_any = _result_text(action, result)
    if result.get("undoable"):
        back += f"{'&' if '?' in back else '?'}undo={token}"
    is_all_said = result.get("undoable") == result.get("matched", 0)  # by the bar with the undo
    return visit.redirect(back, notice=None if is_all_said else text, problem=None if is_any else text)


@pages.action("/console/undo")
async def undo(visit: Visit) -> Response:
    """Put cancelled jobs back, within ten minutes of the cancel."""
    form = await visit.form()
    put_back, left = await undo_cancel(visit, form.get("token", ""))
    topic, job_id = form.get("topic", ""), form.get("id", "")
    to = "console/tasks" if not topic else jobs_url(topic)
    if topic and job_id:
        to = page_path("console", "topics", topic, "jobs", job_id)
    if left:
        to += f"?undo={form.get('token', '')}"
    if not put_back and not left:
        return visit.redirect(to, problem="There is nothing to put back: it is too late, or it was done already.")
    notice = f"Put {counted(put_back, 'job')} back."
    if left:
        notice += f" {left:,} could not be put back: other jobs have their ids by now, the topic is full, or a schedule"
        notice += " has gone on."
    return visit.redirect(to, notice=notice, problem=notice if left else None)


async def _preview(
    visit: Visit,
    action: str,
    target: Target,
    cutoff: str | None,
    fields: Mapping[str, str],
    *,
    problem: str | None = None,
    new: NewDueTime | None = None,
    is_complete: bool = True,
) -> Response:
    """The page that counts. Without a cutoff that of the count holds: it is by the clock of the topic's own shard."""
    found = await _count(visit, action, target, cutoff)
    await _show_samples(visit, target.topic, found["samples"])
    kept = list_query(fields, target.wanted)
    return visit.render(
        "bulk_preview.html",
        status=200 if problem is None else 422,
        here="topics",
        topic=target.topic,
        action=action,
        verb=ACTIONS[action].verb,
        scope=ACTIONS[action].scope,
        target=target,
        id_list=" ".join(target.ids or ()),
        kept=kept,
        link=_link(target.topic, fields, target.wanted, new),
        found=found,
        cutoff=found["cutoff"],
        is_complete=is_complete and found["complete"],
        typed_above=TYPED_ABOVE,
        rate=read_redrive_rate(fields),
        given=fields,
        problem=problem,
        new=new,
        lands=None if new is None or not new.is_read else _lands(new, found, visit.now_ms or 0),
        request_id=secrets.token_hex(12),
        back=jobs_url(target.topic, kept),
        has_undo=action == "cancel" and found["complete"],
        most_undone=BULK_MAX,
    )


def _lands(new: NewDueTime, found: dict[str, Any], now_ms: int) -> tuple[str, str]:
    """When the first and the last of the jobs are due then."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    first, last = (parse_instant(found[name]) if name in found else now for name in ("first_due_at", "last_due_at"))
    if new.at is not None:
        first = last = parse_instant(new.at)
    elif new.by_s is not None:
        first, last = (max(at + timedelta(seconds=new.by_s), min(at, now)) for at in (first, last))
    return format_instant(first), format_instant(last + timedelta(seconds=new.spread_s or 0))


async def _show_samples(visit: Visit, topic: str, samples: list[dict[str, Any]]) -> None:
    """Add due time, tags and the beginning of the body to the samples, if the key's rate limit has room for that."""
    if not visit.has_room_for(len(samples) + _CALLS_KEPT):
        return
    for sample in samples:
        try:
            content = await visit.read_bytes(api_path("jobs", topic, sample["id"]))
        except ApiRefused:  # it is gone, or the key may not read
            continue
        sample["shown"] = await off_loop(len(content), partial(_shown, content))


def _shown(content: bytes) -> dict[str, Any]:
    body = member_text(content, "body") or "null"
    job = plain(parse(content))
    key = key_of(job.get("body"))
    shown = body[: _BODY_SHOWN + 1] if key is None else f"encrypted with key {key}"
    return {"due_at": job["due_at"], "tags": job.get("tags") or [], "body": shown}


async def _count(
    visit: Visit, action: str, target: Target, cutoff: str | None, limit: int | None = None
) -> dict[str, Any]:
    """What the dry run of the API found: `matched`, `complete`, `cutoff`, `samples`, and `was` by state if known."""
    options = {"delay": 0} if action in {"reschedule", "run_now"} else {}
    call = api_call(action, target, cutoff=cutoff, options=options, dry_run=True, limit=limit)
    found: dict[str, Any] = await visit.write(call.method, call.path, call.body, **call.query)
    if action in {"reschedule", "run_now"} and "was" in found:
        found["movable"] = sum(count for state, count in found["was"].items() if state in {"delayed", "ready"})
    return {"was": {}, "samples": [], "complete": True, **found}


def is_selectable(action: str, wanted: JobListFilter, *, is_admin: bool) -> bool:
    """Whether the API itself can select these jobs for this action. Otherwise they are found first and named by id."""
    if wanted.id or wanted.error or wanted.retrying or wanted.of_group:
        return False
    has_due = wanted.due_after is not None or wanted.due_before is not None
    if action == "redrive":
        return wanted.state in {None, "dead"} and not has_due
    if _is_of_ended(action, wanted):
        return is_admin and not has_due
    if wanted.reason or wanted.group is not None:
        return False
    if wanted.tag:
        return wanted.state is None and not has_due
    return wanted.state in {"delayed", "ready"}


def _is_of_ended(action: str, wanted: JobListFilter) -> bool:
    """Whether it is a cancel of dead or finished jobs: for a filter that is the purge of the API, which admins may."""
    return action == "cancel" and wanted.state in {"dead", "finished"}


def api_call(
    action: str,
    target: Target,
    *,
    cutoff: str | None,
    options: dict[str, Any],
    dry_run: bool = False,
    limit: int | None = None,
    as_task: bool = False,
) -> _ApiCall:
    """The call for an action. `options` are members of the call that say what happens; `limit` bounds what is counted.

    `as_task` is for a filter: then there is no limit.
    """
    topic, ids, wanted = target
    cut = {} if cutoff is None else {"cutoff": cutoff}
    of_group = {} if not wanted.reason else {"reason": wanted.reason}
    of_group |= {} if wanted.group is None else {"error": wanted.group}
    if action == "redrive":
        body: dict[str, Any] = {**cut, **options}
        if ids is not None:
            body["ids"] = list(ids)
        else:
            body |= {"as_task": True} if as_task else {"limit": limit or REDRIVE_MAX}
            body |= {"tag": wanted.tag} if wanted.tag else {}
            body |= of_group
        if dry_run:
            body["dry_run"] = True
        return _ApiCall("POST", api_path("topics", topic, "redrive"), body, {})
    if ids is None and _is_of_ended(action, wanted):
        query: dict[str, Any] = {"state": wanted.state, "tag": wanted.tag or None, **of_group, **cut}
        query |= {"dry_run": True} if dry_run else {"as_task": True} if as_task else {}
        return _ApiCall("DELETE", api_path("topics", topic), None, query)
    verb = "cancel" if action == "cancel" else "reschedule"
    select: dict[str, Any] = dict(cut)
    if ids is not None:
        select["ids"] = [{"topic": topic, "id": job_id} for job_id in ids]
    elif wanted.tag:
        select |= {"tag": wanted.tag, "topics": [topic]}
    else:
        select |= {"state": wanted.state, "topics": [topic]}
        select |= {name: at for name in ("due_after", "due_before") if (at := getattr(wanted, name)) is not None}
    body = {"select": select, **({"as_task": True} if as_task else {"limit": limit or BULK_MAX}), **options}
    if dry_run:
        body |= {"dry_run": True, "samples": 10}
    return _ApiCall("POST", api_path("jobs", verb), body, {})


async def _matching_ids(visit: Visit, topic: str, wanted: JobListFilter) -> tuple[list[str], bool]:
    """The ids of the first 1000 jobs that match a filter which needs a search, and whether these are all."""
    ids: list[str] = []
    cursor: str | None = None
    for _ in range(_PAGES_SEARCHED):
        rows, page = await read_rows(visit, topic, wanted, order="asc", limit=SELECT_IDS_MAX - len(ids), cursor=cursor)
        ids += [row["id"] for row in rows]
        cursor = page["next_cursor"]
        if cursor is None or len(ids) >= SELECT_IDS_MAX:
            break
    return list(dict.fromkeys(ids)), cursor is None


def _options(action: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """The members of the call that say what happens, but for a new due time."""
    if action == "run_now":
        return {"delay": 0}
    # A job that began to run since the preview is left alone: it was not among what the preview showed.
    return {"if_reserved": "refuse"} if action == "cancel" and fields.get("held") != "cancel" else {}


def _result_text(action: str, result: dict[str, Any]) -> tuple[str, bool]:
    """What was done in words, and whether anything was."""
    done = next(result[name] for name in ("done", "redriven", "removed") if name in result)
    text = f"{counted(done, 'job was', 'jobs were')} {ACTIONS[action].done}."
    matched = result.get("matched", done)
    left = matched - done
    if left and action == "cancel":
        one, many = "was left alone: a consumer holds it", "were left alone: consumers hold them"
        text += f" {counted(left, one, many)}."
    elif left:
        text += f" {counted(left, 'stayed as it was', 'stayed as they were')}."
    were_held = result.get("was", {}).get("reserved", 0) - left if action == "cancel" else 0
    if were_held > 0:
        text += f" Consumers held {were_held:,} of them and get an error at their next request."
    undoable = result.get("undoable", done)
    if undoable < done:
        text += f" {done - undoable:,} of them can't be put back." if undoable else " This can't be undone."
    return text if result.get("complete", True) else f"{text} There are more of them: repeat the action.", done > 0


def _filter_of(visit: Visit, fields: Mapping[str, str]) -> JobListFilter:
    """The filter in a form.

    Raises ApiRefused for a field that can't be read, because without it more jobs would match, and for an error where
    errors are masked.
    """
    wanted = read_filter(fields, visit.now_ms)
    refuse_masked_error(visit, wanted.error or wanted.group)
    if wanted.problems:
        errors = [
            {"field": name, "message": f"must be {what}: it is “{wanted.given[name][:_VALUE_SHOWN]}”"}
            for name, what in wanted.problems.items()
        ]
        raise ApiRefused(422, {"detail": "Nothing was done: the filter can't be read.", "errors": errors})
    return wanted

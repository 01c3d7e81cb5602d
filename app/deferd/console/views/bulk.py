"""Actions on many jobs: a preview with a cutoff, then the action on exactly what was counted."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.json_text import member_text, off_loop, parse, plain
from deferd.console.undo import undo as undo_cancel
from deferd.console.views.filters import JobListFilter, read_filter, refuse_masked_error
from deferd.console.views.jobs import ACTIONS, KEPT_IN_URL, jobs_url, read_rows
from deferd.console.views.typed_times import NewDueTime, read_new_due_time
from deferd.console.visit import PageList, Visit
from deferd.contract.limits import BULK_MAX, REDRIVE_MAX, SELECT_IDS_MAX
from deferd.contract.timestamps import format_instant, parse_instant

pages = PageList()
_PAGES_SEARCHED = 20
_VALUE_SHOWN = 100
_BODY_SHOWN = 160
_CALLS_KEPT = 5
"""Requests that the action itself needs: it would be refused if reading the samples used up the rate limit."""
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
async def preview(visit: Visit, topic: str) -> Response:
    """Count what an action would change; nothing changes."""
    form = await visit.form_lists()
    fields = {name: values[-1] for name, values in form.items()}
    action = fields.get("action", "")
    if action not in ACTIONS:
        return visit.redirect(jobs_url(topic), problem="Choose what to do.")
    wanted = _filter_of(visit, fields)
    is_complete = True
    if fields.get("all"):
        ids = None
        if not is_selectable(action, wanted):
            if not wanted.is_search and wanted.state is None:
                return visit.redirect(jobs_url(topic), problem="Choose a state or a tag first: not all jobs at once.")
            found, is_complete = await _matching_ids(visit, topic, wanted)
            ids = tuple(found)
    else:
        ids = tuple(dict.fromkeys(form.get("ids", [])))[:SELECT_IDS_MAX]
    if ids == ():
        text = "No job matches." if fields.get("all") else "Select some jobs first."
        return visit.redirect(_back(topic, fields), problem=text)
    return await _preview(visit, action, Target(topic, ids, wanted), None, fields, is_complete=is_complete)


@pages.action("/console/topics/{topic}/bulk")
async def act(visit: Visit, topic: str) -> Response:
    """Carry out what was previewed."""
    fields = await visit.form()
    action = fields.get("action", "")
    if action not in ACTIONS:
        return visit.redirect(jobs_url(topic))
    ids = tuple(fields["id_list"].split()) if fields.get("id_list") else None
    frozen = {name: at for name in ("due_after", "due_before") if (at := fields.get(f"frozen_{name}"))}
    target = Target(topic, ids, _filter_of(visit, {**fields, **frozen}))
    if ids is None and not is_selectable(action, target.wanted):
        raise ApiRefused(422, {"detail": "Nothing was done: for this filter the jobs must be named. Preview it again."})
    cutoff = fields.get("cutoff", "")
    if not cutoff:
        raise ApiRefused(422, {"detail": "Nothing was done: only what a preview has counted is changed. Preview it."})
    new = read_new_due_time(fields, visit.now_ms) if action == "reschedule" else None
    if new is not None and not new.is_seen:
        return await _preview(visit, action, target, cutoff, fields, problem=new.problem, new=new)
    matched = (await _count(visit, action, target, cutoff, limit=TYPED_ABOVE + 1))["matched"]
    if matched > TYPED_ABOVE and fields.get("typed", "").strip() != (name := visit.to_confirm(topic)):
        problem = f"Type the name of the topic, {name}, to confirm: these are more than {TYPED_ABOVE:,} jobs."
        return await _preview(visit, action, target, cutoff, fields, problem=problem, new=new)
    back = _back(topic, fields)
    as_task = ids is None and matched > TYPED_ABOVE
    options = _options(action, fields) if new is None else new.options()
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
    notice = f"Put {put_back:,} {'job' if put_back == 1 else 'jobs'} back."
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
        kept={name: value for name, value in fields.items() if name in KEPT_IN_URL},
        frozen={"due_after": target.wanted.due_after, "due_before": target.wanted.due_before},
        found=found,
        cutoff=found["cutoff"],
        is_complete=is_complete and found["complete"],
        typed_above=TYPED_ABOVE,
        given=fields,
        problem=problem,
        new=new,
        lands=None if new is None or not new.is_read else _lands(new, found, visit.now_ms or 0),
        request_id=secrets.token_hex(12),
        back=_back(target.topic, fields),
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
    return {"due_at": job["due_at"], "tags": job.get("tags") or [], "body": body[: _BODY_SHOWN + 1]}


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


def is_selectable(action: str, wanted: JobListFilter) -> bool:
    """Whether the API itself can select these jobs for this action. Otherwise they are found first and named by id."""
    if (wanted.reason or wanted.group is not None) and action not in {"redrive", "purge"}:
        return False
    if wanted.id or wanted.error or wanted.retrying:
        return False
    if wanted.tag and wanted.state and action not in {"redrive", "purge"}:
        return False
    has_due = wanted.due_after is not None or wanted.due_before is not None
    if action == "redrive":
        return wanted.state in {None, "dead"} and not has_due
    if action == "purge":
        return not has_due
    if wanted.tag:
        return not has_due
    return wanted.state in {"delayed", "ready"}


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
    """The call for an action. `options` are the members of a reschedule or a cancel; `limit` bounds what is counted.

    `as_task` is for a filter: then there is no limit.
    """
    topic, ids, wanted = target
    cut = {} if cutoff is None else {"cutoff": cutoff}
    of_group = {} if not wanted.reason else {"reason": wanted.reason}
    of_group |= {} if wanted.group is None else {"error": wanted.group}
    if action == "redrive":
        body: dict[str, Any] = dict(cut)
        if ids is not None:
            body["ids"] = list(ids)
        else:
            body |= {"as_task": True} if as_task else {"limit": limit or REDRIVE_MAX}
            body |= {"tag": wanted.tag} if wanted.tag else {}
            body |= of_group
        if dry_run:
            body["dry_run"] = True
        return _ApiCall("POST", api_path("topics", topic, "redrive"), body, {})
    if action == "purge" and ids is None and (wanted.state or of_group):
        query: dict[str, Any] = {"state": wanted.state, "tag": wanted.tag or None, **of_group, **cut}
        query |= {"dry_run": True} if dry_run else {"as_task": True} if as_task else {}
        return _ApiCall("DELETE", api_path("topics", topic), None, query)
    verb = "cancel" if action in {"cancel", "purge"} else "reschedule"
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
    return {"if_reserved": "refuse"} if action in {"cancel", "purge"} and fields.get("held") != "cancel" else {}


def _result_text(action: str, result: dict[str, Any]) -> tuple[str, bool]:
    """What was done in words, and whether anything was."""
    done = next(result[name] for name in ("done", "redriven", "removed") if name in result)
    text = f"{done:,} {'job' if done == 1 else 'jobs'} {ACTIONS[action].done}."
    matched = result.get("matched", done)
    left = matched - done
    if left and action in {"cancel", "purge"}:
        text += f" {left:,} of {matched:,} left: {'a consumer holds it' if left == 1 else 'consumers hold them'}."
    elif left:
        text += f" {left:,} of {matched:,} stayed as {'it was' if left == 1 else 'they were'}."
    were_held = result.get("was", {}).get("reserved", 0) - left if action in {"cancel", "purge"} else 0
    if were_held > 0:
        text += f" Consumers held {were_held:,} of them, and get an error at their next request."
    undoable = result.get("undoable", done)
    if undoable < done:
        text += f" {done - undoable:,} of them can't be put back." if undoable else " That can't be undone."
    return text if result.get("complete", True) else f"{text} There are more: do it again for them.", done > 0


def _back(topic: str, fields: Mapping[str, str]) -> str:
    # An empty group is that of the jobs without an error.
    kept = {name: fields[name] for name in KEPT_IN_URL if fields.get(name) or (name == "group" and name in fields)}
    return f"{jobs_url(topic)}?{urlencode(kept)}" if kept else jobs_url(topic)


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

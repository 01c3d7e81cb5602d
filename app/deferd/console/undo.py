"""Undo of a cancel: the job is cancelled at once, and for ten seconds it can be put again as it was.

The other way, to delay the cancel, would let a consumer run a job that a page shows as cancelled, or leave it as it is
when the tab is closed. So an undone job is a new one: its attempts begin again. Only jobs that were delayed or ready
are put again, and no collections and jobs with a follow-up, which a put does not make again.
"""

from __future__ import annotations

import contextlib
import shlex
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from deferd.console.api_calls import ApiRefused, api_path
from deferd.console.json_text import Members, compact, off_loop, parse, pretty
from deferd.console.visit import Visit
from deferd.contract.errors import StoreUnavailable
from deferd.contract.fields import POLICY
from deferd.contract.timestamps import parse_instant
from deferd.engine.console_store import UNDO_BYTES_MAX

UNDO_S = 10
_LATE_S = 3
"""Leaves time for a click in the last second to arrive."""
UNDO_JOBS_MAX = 200
"""Nothing is kept for more jobs than this."""
_CALLS_KEPT = 5
"""Requests that the cancel itself needs: it would be refused if reading the jobs used up the rate limit."""
_FINAL = {HTTPStatus.CREATED, HTTPStatus.CONFLICT}
_BYTES_MAX = UNDO_BYTES_MAX - 10_000


class Cancelled(NamedTuple):
    """What a cancel did: to how many jobs, how many it left because a consumer holds them, how many of the cancelled
    ones a consumer held, and the token.
    """

    done: int
    held: int
    was_held: int
    undo: str | None


class Undone(NamedTuple):
    """What an undo did: the results of the puts, and the token if some can be put later."""

    topic: str
    results: list[dict[str, Any]]
    undo: str | None


def can_undo(visit: Visit, jobs: int, *, ever: bool = False) -> bool:
    """Whether the key's rate limit allows reading this many jobs before they are cancelled, now or `ever`."""
    return jobs <= UNDO_JOBS_MAX and visit.has_room_for(jobs + _CALLS_KEPT, ever=ever)


async def cancel(
    visit: Visit,
    topic: str,
    ids: list[str],
    *,
    spare_held: bool,
    cutoff: str | None = None,
    with_undo: bool = True,
) -> Cancelled:
    """Cancel up to 1000 jobs of a topic. `cutoff`, an instant: none that was put, or died, later. Raises ApiRefused."""
    kept = await _puts(visit, topic, ids) if with_undo and len(ids) <= UNDO_JOBS_MAX else {}
    option = {"if_reserved": "refuse"} if spare_held else {}
    if cutoff is not None:
        return await _cancel_until(visit, topic, ids, kept, cutoff=cutoff, option=option)
    jobs = [{"id": job_id, **option} for job_id in ids]
    results = (await visit.write("POST", api_path("topics", topic, "cancel"), {"jobs": jobs}))["results"]
    done = {result["id"]: result["was"] for result in results if result["status"] == 200}
    held = sum(result.get("code") == "job_reserved" for result in results)
    again = [kept[job_id] for job_id, was in done.items() if job_id in kept and was in {"delayed", "ready"}]
    was_held = sum(was == "reserved" for was in done.values())
    undo = await _keep(visit, topic, again, len(done))
    return Cancelled(len(done), held, was_held, undo)


async def _cancel_until(
    visit: Visit, topic: str, ids: list[str], kept: dict[str, bytes], *, cutoff: str, option: dict[str, str]
) -> Cancelled:
    """Cancel what the store finds to be of the cutoff: what was read before may have been put again since.

    The call returns numbers only. So what can be undone is a call of its own, the last one. What it cancelled is not
    there now, or was put after the cutoff: if these are as many as it cancelled, they are the same. If they are more,
    consumers have had some, and nothing can be undone: to put what was finished would run it twice.
    """
    matched = done = reserved = waited = 0
    for some in ([job_id for job_id in ids if job_id not in kept], list(kept)):
        if some:
            select = {"ids": [{"topic": topic, "id": job_id} for job_id in some], "cutoff": cutoff}
            result = await visit.write("POST", api_path("jobs", "cancel"), {"select": select, **option})
            matched += result["matched"]
            done += result["done"]
            reserved += result["was"].get("reserved", 0)
            waited = sum(result["was"].get(state, 0) for state in ("delayed", "ready"))
    undo = None
    if kept and waited:
        ended = list(kept) if waited == len(kept) else await _ended(visit, topic, kept, cutoff)
        if len(ended) == waited:
            undo = await _keep(visit, topic, [kept[job_id] for job_id in ended], done)
    held = matched - done
    return Cancelled(done, held, reserved - held, undo)


async def _puts(visit: Visit, topic: str, ids: list[str]) -> dict[str, bytes]:
    """The puts of the jobs that can be put again, by id; none when the rate limit ends the reads."""
    kept: dict[str, bytes] = {}
    size = 0
    for job_id in ids:
        try:
            job = await _job(visit, topic, job_id)
        except ApiRefused as refused:
            if refused.status == HTTPStatus.TOO_MANY_REQUESTS:
                return {}
            raise
        if job is not None and _can_be_put_again(job):
            content = put_text(job, with_id=True, now_ms=visit.now_ms or 0)
            size += len(content) + 1
            if size <= _BYTES_MAX:
                kept[job_id] = content
    return kept


async def _ended(visit: Visit, topic: str, ids: dict[str, bytes], cutoff: str) -> list[str]:
    """The jobs that are gone, were put after the cutoff, or can't be read."""
    ended = []
    try:
        for job_id in ids:
            job = await _job(visit, topic, job_id)
            if job is None or parse_instant(job.get("created_at")) > parse_instant(cutoff):
                ended.append(job_id)
    except ApiRefused:
        return []
    return ended


async def _keep(visit: Visit, topic: str, jobs: list[bytes], cancelled: int) -> str | None:
    """Keep the puts of cancelled jobs for ten seconds, and return the token of the undo.

    None when nothing can be undone, although the jobs are cancelled.
    """
    if not jobs:
        return None
    about = {
        "key": None if visit.key is None else visit.key.digest.hex(),
        "topic": topic,
        "jobs": len(jobs),
        "cancelled": cancelled,
        "ends_ms": (visit.now_ms or 0) + UNDO_S * 1000,
    }
    content = b"\n".join([orjson.dumps(about), *jobs])
    try:
        return await visit.console_undo.keep(content, (UNDO_S + _LATE_S) * 1000)
    except StoreUnavailable:
        return None


async def undoable(visit: Visit) -> dict[str, Any] | None:
    """What the token in the URL of a page can undo; None without one, or when it is too late."""
    token = visit.query.get("undo")
    content = await visit.console_undo.get(token) if token else None
    about = _about(visit, content)
    if about is None:
        return None
    count = about["cancelled"]
    text = f"Cancelled {count:,} {'job' if count == 1 else 'jobs'}."
    return {"token": token, "jobs": about["jobs"], "ends_ms": about["ends_ms"], "text": text}


async def put_back(visit: Visit, token: str) -> Undone | None:
    """Put the jobs again; None when it is too late.

    What was not put can be undone again while there is time: all if the call fails, and of several those that the
    API refused for now.

    Raises:
        ApiRefused, StoreUnavailable.
    """
    kept = visit.console_undo
    if _about(visit, await kept.get(token)) is None:
        return None
    content = await kept.claim(token)
    about = _about(visit, content)
    if content is None or about is None:
        return None
    _, *jobs = content.split(b"\n")
    try:
        response = await visit.write("POST", api_path("jobs", "batch"), b'{"jobs":[%b]}' % b",".join(jobs))
    except BaseException:
        with contextlib.suppress(StoreUnavailable):  # then it can't be tried again
            await kept.release(token)
        raise
    results = response["results"]
    left = [job for job, result in zip(jobs, results, strict=True) if result["status"] not in _FINAL]
    rest = b"\n".join([orjson.dumps({**about, "jobs": len(left)}), *left]) if left else None
    with contextlib.suppress(StoreUnavailable):  # those that were put are refused if they are put again
        await kept.done(token, rest)
    return Undone(about["topic"], results, token if left else None)


def _about(visit: Visit, content: bytes | None) -> dict[str, Any] | None:
    if content is None:
        return None
    about: dict[str, Any] = orjson.loads(content.partition(b"\n")[0])
    key = None if visit.key is None else visit.key.digest.hex()
    return about if about["key"] == key else None


async def _job(visit: Visit, topic: str, job_id: str) -> Members | None:
    try:
        content = await visit.read_unmasked(api_path("jobs", topic, job_id))
    except ApiRefused as refused:
        if refused.status in {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}:
            raise
        return None
    job = await off_loop(len(content), lambda: parse(content))
    return job if isinstance(job, Members) else None


def _can_be_put_again(job: Members) -> bool:
    return job.get("state") in {"delayed", "ready"} and not any(map(job.get, ("items", "followed_by", "follow_up")))


_LABELS = ("tags", "headers")
_OTHERS = ("unique_for", "traceparent")
_NONE_IS_SHOWN = {field.name for field in POLICY if field.is_always_shown and field.null_is_none}
"""Fields that a job shows even when they come from its topic, because null is a value."""


def put_fields(job: Members, *, with_id: bool, now_ms: int) -> Members:
    """The fields of a put with the same effect: due when the job is due, if that is still to come."""
    fields = Members([("topic", job.get("topic"))])
    if with_id:
        fields.append(("id", job.get("id")))
    fields.append(("body", job.get("body")))
    due_at = job.get("asked_for") or job.get("due_at")
    if isinstance(due_at, str) and datetime.fromisoformat(due_at).timestamp() * 1000 > now_ms:
        fields.append(("run_at", due_at))
    for name in (*_LABELS, *(field.name for field in POLICY), *_OTHERS):
        value = job.get(name)
        if value is not None or name in _NONE_IS_SHOWN:
            fields.append((name, value))
    return fields


def put_command(job: Members, *, now_ms: int, has_keys: bool, hides: bool) -> str:
    """A shell command that puts the job. The key is a variable; masked fields are named by a comment."""
    body, _ = pretty(put_fields(job, with_id=True, now_ms=now_ms))
    lines = ["# This console masks some fields: replace each •••••."] if hides else []
    command = ['curl -sS "${DEFERD_URL:-http://localhost:8000}/jobs"']
    if has_keys:
        command.append('-H "Authorization: Bearer $DEFERD_KEY"')
    command.append(f"--json {shlex.quote(body)}")
    return "\n".join([*lines, " \\\n  ".join(command)])


def put_text(job: Members, *, with_id: bool, now_ms: int, **options: str) -> bytes:
    """The JSON of the put."""
    fields = put_fields(job, with_id=with_id, now_ms=now_ms)
    fields.extend(options.items())
    return compact(fields).encode()

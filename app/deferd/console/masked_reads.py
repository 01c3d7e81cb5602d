"""Responses of the API without what the masks hide, for texts that quote values of jobs which are not in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson

from deferd.console.json_text import parse
from deferd.console.masks import MASKED, Masks
from deferd.console.off_loop import off_loop
from deferd.engine.inspection.error_lines import normalized

ReadApi = Callable[[str, bytes], Awaitable[bytes]]
"""Reads a path with a query. Raises ApiRefused."""
HIDDEN_ERROR = "see the page of the job for its error"
"""Events come without the body, so what their errors quote is not known."""
_BODIES_BYTES = 256 * 1024
_BODIES_READ = 200
_WITHOUT_BODIES = b"bodies=false"
_WEIGHT = 4
"""A search for values in texts takes longer than reading and writing the same JSON."""


async def masked_read(  # noqa: PLR0917 (how to read, and what)
    masks: Masks,
    read: ReadApi,
    refused: type[Exception],
    path: str,
    query: bytes,
    has_room: Callable[[], bool] = lambda: True,
) -> bytes:
    """A response without what is hidden. `refused` is what `read` raises, also for a job that is gone.

    Without `has_room` for further reads the errors of a list are hidden whole.
    """
    content = await read(path, query)
    bodies = _Bodies(read, refused, has_room)
    more = b""
    match path.split("/")[1:]:
        case ["activity"]:
            content = _edited(content, _hide_in_activity)
        case ["tasks", *_]:
            content = _edited(content, _hide_in_tasks)
        case ["events", "latest"]:
            content = _edited(content, _hide_in_events)
        case ["now"]:
            content = _edited(content, _hide_in_alerts)
        case ["dead"]:
            return await _dead(masks, bodies, content)
        case ["topics", topic, "jobs"] if _WITHOUT_BODIES in query:
            content = await _rows(masks, bodies, topic, content)
        case ["jobs", topic, job_id, "why"]:
            job = await bodies.job(topic, job_id)
            more, content = (b"", _edited(content, _hide_in_reasons)) if job is None else (job, content)
        case ["jobs", topic, job_id] if _WITHOUT_BODIES in query and _errors_of(orjson.loads(content)):
            job = await bodies.job(topic, job_id)
            more, content = (b"", _edited(content, _hide_in_job)) if job is None else (job, content)
    return await off_loop(_WEIGHT * (len(content) + len(more)), lambda: masks.response(content, more))


class _Bodies:
    """Reads whole jobs for the values that they hide, up to a number and size in all."""

    def __init__(self, read: ReadApi, refused: type[Exception], has_room: Callable[[], bool]) -> None:
        self._read = read
        self._refused = refused
        self._has_room = has_room
        self._bytes_left = _BODIES_BYTES
        self._reads_left = _BODIES_READ

    async def job(self, topic: str, job_id: str, query: bytes = b"") -> bytes | None:
        """A job; None for one that is gone or can't be read now: what its errors quote is not known then."""
        try:
            return await self._read(f"/jobs/{topic}/{job_id}", query)
        except self._refused:
            return None

    async def bounded(self, topic: str, job_id: str, size: int | None = None) -> bytes | None:
        """The same; None too for what is more than all may be. `size` of the body: otherwise it is read first."""
        job_id = job_id.replace("/", "%2F")
        if self._reads_left <= 0 or not self._has_room():
            return None
        self._reads_left -= 1
        if size is None:
            shown = await self.job(topic, job_id, _WITHOUT_BODIES)
            size = None if shown is None else orjson.loads(shown)["body_bytes"]
        if size is None or size > self._bytes_left:
            return None
        self._bytes_left -= size
        return await self.job(topic, job_id)


def _errors_of(job: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Where a job has errors: an object and the name of its member."""
    attempts = [(one, "error") for one in job.get("attempts_log") or () if one.get("error")]
    return [(job, "last_error"), *attempts] if job.get("last_error") else attempts


def _edited(content: bytes, hide: Callable[[dict[str, Any]], None]) -> bytes:
    """A response in which `hide` has hidden the errors."""
    found = orjson.loads(content)
    hide(found)
    return orjson.dumps(found)


def _hide_in_job(job: dict[str, Any]) -> None:
    for holder, name in _errors_of(job):
        holder[name] = MASKED


def _hide_in_reasons(why: dict[str, Any]) -> None:
    """The reasons with an error lose their text too, which quotes it."""
    for reason in why["reasons"]:
        if reason.get("error"):
            reason |= {"error": MASKED, "text": MASKED}


def _hide_in_activity(found: dict[str, Any]) -> None:
    """The filters, which are JSON in a string, lose the errors in them: such a text may quote any job."""
    for change in found["activity"]:
        if '"error"' in change.get("filter", ""):
            change["filter"] = _filter_without_error(change["filter"])


def _filter_without_error(text: str) -> str:
    try:
        selector = orjson.loads(text)
    except orjson.JSONDecodeError:  # a long one is cut off
        return MASKED
    return orjson.dumps({**selector, "error": MASKED}).decode() if "error" in selector else MASKED


def _hide_in_tasks(found: dict[str, Any]) -> None:
    for task in found.get("tasks", [found]):
        if task["select"].get("error"):
            task["select"]["error"] = MASKED


async def _rows(masks: Masks, bodies: _Bodies, topic: str, content: bytes) -> bytes:
    page = orjson.loads(content)
    for row in page["jobs"]:
        errors = _errors_of(row)
        if not errors:
            continue
        job = await bodies.bounded(topic, row["id"], row["body_bytes"])
        for holder, name in errors:
            holder[name] = await _masked_text(masks, holder[name], job)
    return orjson.dumps(page)


async def _masked_text(masks: Masks, text: str, job: bytes | None) -> str:
    if job is None:
        return MASKED
    return await off_loop(_WEIGHT * len(job), lambda: masks.text(text, masks.secrets_within(job)))


async def _dead(masks: Masks, bodies: _Bodies, content: bytes) -> bytes:
    """The groups; those whose text was changed are `is_masked`: the API does not know them by it."""
    found = orjson.loads(content)
    for group in found["groups"]:
        error = group.get("error")
        if not error:
            continue
        sample = next(iter(group["samples"]), None)
        job = None if sample is None else await bodies.bounded(group["topic"], sample)
        shown = MASKED if job is None else await off_loop(_WEIGHT * len(job), partial(group_error, masks, error, job))
        group |= {"error": shown, "is_masked": shown != error}
    return orjson.dumps(found)


def group_error(masks: Masks, error: str, job: bytes) -> str:
    """The error of a group without what one of its jobs hides.

    The group has `*` for digits, so the values are looked for in the text of the job, and that is made a group's.
    """
    original = parse(job).get("last_error")
    if not isinstance(original, str) or normalized(original) != error:
        return MASKED
    shown = masks.text(original, masks.secrets_within(job))
    return masks.text(error if shown == original else normalized(shown))


def _hide_in_alerts(found: dict[str, Any]) -> None:
    for alert in found["alerts"]:
        error = alert.pop("top_error", None)
        if error is not None:  # it may quote any of the jobs
            counted, separator, _ = alert["text"].partition(" of them ")
            reason = str(alert.get("top_reason", "dead")).replace("_", " ")
            alert["text"] = f"{counted}{separator}{reason} with an error" if separator else reason


def _hide_in_events(found: dict[str, Any]) -> None:
    found["events"] = list(map(without_error, found["events"]))


def without_error(event: dict[str, Any]) -> dict[str, Any]:
    """An event that does not quote its job."""
    return {**event, "error": HIDDEN_ERROR} if event.get("error") else event

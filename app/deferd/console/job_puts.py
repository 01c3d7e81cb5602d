"""A job as the put that stores it again: for a copy, and as a command to copy."""

from __future__ import annotations

import shlex
from datetime import datetime

from deferd.console.json_text import Members, compact, pretty
from deferd.contract.fields import POLICY
from deferd.contract.limits import BATCH_TAG
from deferd.contract.model import Labelled

_LABELS = tuple(Labelled.model_fields)
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
        if name == "tags" and isinstance(value, list):  # the batch may be sealed, so its tag is left out with it
            value = [tag for tag in value if tag != f"{BATCH_TAG}{job.get('batch')}"] or None
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

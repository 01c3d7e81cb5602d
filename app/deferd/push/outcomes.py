"""What the response of a target means for the jobs of its request, and for the target."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import orjson

from deferd.contract import limits
from deferd.contract.json_depth import is_deeper
from deferd.contract.json_numbers import may_be_infinite
from deferd.contract.text_excerpt import excerpt
from deferd.push.http_sender import PushResponse

Verdict = Literal["finished", "accepted", "snoozed", "buried", "released"]
_SNOOZE_MAX_S = 86_400
_UNAVAILABLE = frozenset({429, 503})
_GONE = 410
_ACCEPTED = 202
_OF_TARGET = frozenset({401, 403, 404, 405, 407, 408, 429})
"""Client errors (4xx) that say more about the target, or how it is configured, than about the job."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happens to the jobs of a request.

    `result` is JSON. `wait_s` is the wait that the target asked for. `failures` are single jobs of a batch that failed,
    with their errors. `is_target_failure`: the target fails, not only for this job.
    """

    verdict: Verdict
    error: str | None = None
    result: bytes | None = None
    wait_s: float = 0.0
    failures: dict[str, str] | None = None
    is_target_failure: bool = False


def failed(error: str) -> Outcome:
    """The outcome of a request without a response."""
    return Outcome("released", error, is_target_failure=True)


def judge(response: PushResponse, now_s: float, *, is_batch: bool) -> Outcome:
    """What a response means. A date in its Retry-After is compared with `now_s`."""
    status = response.status
    if status == _ACCEPTED:
        return Outcome("accepted")
    if 200 <= status < 300:
        value = _json_value(response)
        if is_batch:
            return Outcome("finished", failures=_failures(value))
        return Outcome("finished", result=None if value is None else response.body)
    error = f"the target responded with status {status}{_shown(response.body)}"
    if status == _GONE:
        return Outcome("buried", error)
    if status in _UNAVAILABLE:
        wait_s = retry_after_s(response.retry_after, now_s)
        if wait_s is not None:
            return Outcome("snoozed", error, wait_s=wait_s, is_target_failure=True)
    if 300 <= status < 400:
        error += "; redirects are not followed"
    return Outcome("released", error, is_target_failure=status in _OF_TARGET or not 400 <= status < 500)


def retry_after_s(value: str | None, now_s: float) -> float | None:
    """The seconds of a Retry-After header, from 0.1 to a day; None without one that can be read."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        seconds = float(min(int(text[:9]), _SNOOZE_MAX_S))
    else:
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        seconds = at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now_s
    return min(max(seconds, limits.SNOOZE_MIN_S), _SNOOZE_MAX_S)


def _json_value(response: PushResponse) -> Any:
    """The JSON value of a response that can be a result; None without one."""
    kind = response.content_type.partition(";")[0].strip().lower()
    if not response.is_whole or not response.body or not (kind == "application/json" or kind.endswith("+json")):
        return None
    try:
        value = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return None
    return None if may_be_infinite(response.body) or is_deeper(value, limits.VALUE_DEPTH_MAX) else value


def _failures(value: Any) -> dict[str, str]:
    """The jobs of a batch that the receiver names as failed: ``{"failures": [{"id": "a", "error": "..."}]}``."""
    named = value.get("failures") if isinstance(value, dict) else None
    found: dict[str, str] = {}
    for one in named if isinstance(named, list) else ():
        if isinstance(one, dict) and isinstance(job_id := one.get("id"), str):
            error = one.get("error")
            found[job_id] = (error if isinstance(error, str) else "the receiver named it as failed")[:1000]
    return found


def _shown(body: bytes) -> str:
    shown = excerpt(body, limits.PUSH_ERROR_BYTES)
    return f": {shown}" if shown else ""

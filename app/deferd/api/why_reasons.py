"""Why a job has not run, as the API shows it: a code with facts for programs, and a sentence for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from deferd.api.response_values import instant, instant_or_none, instant_text, seconds
from deferd.contract.model import JobState
from deferd.contract.responses.inspection import Explanation, WhyReason
from deferd.engine.inspection.consumer_registry import TopicActivity
from deferd.engine.inspection.standing import Missing, Pause, Standing
from deferd.engine.record import JobRecord


def explanation(topic: str, id: str, standing: Standing | Missing, activity: TopicActivity | None) -> Explanation:
    """The reasons; what holds the job back now comes first. `activity` None: nothing is known about consumers."""
    if isinstance(standing, Missing):
        return Explanation(topic=topic, id=id, state=None, reasons=[_missing(standing)])
    state = standing.record.state
    match state:
        case JobState.DELAYED:
            reasons = [*_placed(standing, _delayed(standing)), *_paused(standing)]
        case JobState.READY:
            reasons = [*_paused(standing), *_ready(standing, activity)]
        case JobState.RESERVED:
            reasons = [_leased(standing)]
        case JobState.DEAD:
            reasons = [_dead(standing)]
        case JobState.FINISHED:
            reasons = [_finished(standing)]
    return Explanation(topic=topic, id=id, state=state, reasons=reasons)


def _delayed(standing: Standing) -> WhyReason:
    job = standing.record
    due: dict[str, Any] = {"due_at": instant(job.due_at_ms), "due_in": seconds(job.due_at_ms - standing.now_ms)}
    when = _when(job.due_at_ms, standing.now_ms)
    snoozes = job.endings.snoozes or None
    if not job.attempts:
        snoozed = f"; it was snoozed {_times(snoozes)}" if snoozes else ""
        return WhyReason(code="not_due", text=f"It is due {when}{snoozed}.", **due, snoozes=snoozes)
    last = _last_attempt(job)
    failed = f" failed with {_quoted(last['error'])}" if "error" in last else " failed"
    most = job.stored("max_attempts") or None
    left = f" of {most}" if most else ""
    text = f"Attempt {job.attempts}{left}{failed}; the next is due {when}."
    return WhyReason(code="backoff", text=text, **due, **last, max_attempts=most, snoozes=snoozes)


def _placed(standing: Standing, due: WhyReason) -> list[WhyReason]:
    """Why it is due, and what moved that: its opening hours and its spread hold it back alone once it would be due."""
    job, placement = standing.record, standing.record.placement
    if not placement.moved_ms:
        return [due]
    asked_for_ms = job.due_at_ms - placement.moved_ms
    what = " and ".join(
        part for part, is_there in (("opening hours", placement.window), ("spread", placement.spread_ms)) if is_there
    )
    moved = WhyReason(
        code="window",
        text=f"Its {what or 'opening hours'} moved it by {_span(placement.moved_ms / 1000)}: without them it would be "
        f"due {_when(asked_for_ms, standing.now_ms)}.",
        asked_for=instant(asked_for_ms),
        moved=seconds(placement.moved_ms),
        window=orjson.loads(placement.window) if placement.window else None,
        spread=seconds(placement.spread_ms) if placement.spread_ms else None,
    )
    return [moved, due] if asked_for_ms <= standing.now_ms else [due, moved]


def _last_attempt(job: JobRecord) -> dict[str, Any]:
    """The number of the last attempt that ended, and how it ended, where known."""
    facts: dict[str, Any] = {"attempt": job.attempts}
    log = job.endings.attempts_log
    if log:
        _, ended_at_ms, how, consumer, error = log[-1]
        facts |= {"ended_at": instant(ended_at_ms), "how": how}
        if consumer:
            facts["by"] = consumer
        if error:
            facts["error"] = error
    if "error" not in facts and job.last_error is not None:
        facts["error"] = job.last_error
    return facts


def _paused(standing: Standing) -> Iterator[WhyReason]:
    pause = standing.pause
    if pause is None:
        return
    yield WhyReason(
        code="paused",
        text=f"Topic {standing.record.topic} has been paused{_pause_text(pause, standing.now_ms)}: it hands out no "
        "jobs.",
        since=instant_or_none(pause.since_ms),
        by=pause.by,
        why=pause.reason,
    )


def _pause_text(pause: Pause, now_ms: int) -> str:
    since = "" if pause.since_ms is None else f" for {_span((now_ms - pause.since_ms) / 1000)}"
    by = "" if pause.by is None else f" by {pause.by}"
    return since + by + ("" if pause.reason is None else f" ({pause.reason})")


def _ready(standing: Standing, activity: TopicActivity | None) -> Iterator[WhyReason]:
    topic, ahead = standing.record.topic, standing.ahead
    if activity is not None and not activity.is_consumed:
        since = activity.last_consumer_ms
        seen = (
            "No consumer has been seen"
            if since is None
            else f"The last consumer was seen {_when(since, standing.now_ms)}"
        )
        yield WhyReason(code="no_consumers", text=f"{seen} for topic {topic}.", since=instant_or_none(since))
    oldest_ms = standing.oldest_due_at_ms
    age_ms = None if oldest_ms is None else max(standing.now_ms - oldest_ms, 0)
    rate = None if activity is None else activity.rate
    wait_s = (ahead + 1) / rate if rate else None
    parts = [
        f"{ahead:,} {'job is' if ahead == 1 else 'jobs are'} ahead of it"
        if ahead
        else "It is the next job of its topic"
    ]
    if age_ms is not None and ahead:
        parts.append(f"the oldest has waited {_span(age_ms / 1000)}")
    if rate is not None:
        parts.append(f"consumers take {rate:,.3g} jobs a second")
    if wait_s is not None and ahead:
        parts.append(f"so it may take {_span(wait_s)}")
    yield WhyReason(
        code="behind",
        text="; ".join(parts) + ".",
        jobs_ahead=ahead,
        ready=standing.ready,
        oldest_age=None if age_ms is None else seconds(age_ms),
        rate=None if rate is None else round(rate, 3),
        estimated_wait=None if wait_s is None else round(wait_s, 3),
    )


def _leased(standing: Standing) -> WhyReason:
    job = standing.record
    until_ms = standing.until_ms or 0
    holder = job.reserved_by or "A consumer that gave no name"
    waits = " A put waits until that has ended." if standing.has_follow_up else ""
    ends = "ends" if until_ms > standing.now_ms else "ended"
    touched = f"; it was touched {_times(standing.touches)}" if standing.touches else ""
    return WhyReason(
        code="leased",
        text=f"{holder} holds it; the lease of attempt {job.attempts} {ends} {_when(until_ms, standing.now_ms)}"
        f"{touched}.{waits}",
        by=job.reserved_by,
        attempt=job.attempts,
        reserved_until=instant(until_ms),
        lease_left=seconds(until_ms - standing.now_ms),
        touches=standing.touches,
        follow_up=True if standing.has_follow_up else None,
    )


def _dead(standing: Standing) -> WhyReason:
    job, kept_ms = standing.record, standing.until_ms or 0
    error = "" if job.last_error is None else f": {_quoted(job.last_error)}"
    why = _DEAD.get(job.reason or "", "It is dead")
    return WhyReason(
        code="dead",
        text=f"{why}{error}. A redrive makes it ready again, due at once and with no attempts counted; without one it "
        f"is removed {_when(kept_ms, standing.now_ms)}.",
        reason=job.reason,
        error=job.last_error,
        attempt=job.attempts,
        dead_at=instant_or_none(job.dead_at_ms),
        kept_until=instant(kept_ms),
    )


_DEAD = {
    "expired": "It was not delivered within its ttl",
    "attempts_exhausted": "All its attempts have failed",
    "schedule_ended": "Its backoff has no wait left",
    "deadline": "It was not finished by its deadline",
    "buried": "A consumer buried it",
}


def _finished(standing: Standing) -> WhyReason:
    job, kept_ms = standing.record, standing.until_ms or 0
    at_ms = job.finished_at_ms
    when = "" if at_ms is None else f" {_when(at_ms, standing.now_ms)}"
    return WhyReason(
        code="finished",
        text=f"It was finished{when}; its record is kept until {instant_text(kept_ms)}.",
        finished_at=instant_or_none(at_ms),
        kept_until=instant(kept_ms),
    )


def _missing(job: Missing) -> WhyReason:
    if job.cancelled_until_ms is not None:
        until = instant_text(job.cancelled_until_ms)
        text = f"It was cancelled while a consumer held it; this is remembered until {until}."
        return WhyReason(code="cancelled", text=text, kept_until=instant(job.cancelled_until_ms))
    if job.taken_until_ms is not None:
        text = f"It was finished; its id stays taken until {instant_text(job.taken_until_ms)}."
        return WhyReason(code="finished", text=text, kept_until=instant(job.taken_until_ms))
    if not job.topic_is_known:
        text = "There is no such topic: nothing was put into it for an hour, and it has no settings."
        return WhyReason(code="unknown_job", text=text, nearest=[], compared=0, jobs=0)
    like = f" Ids like it: {', '.join(job.nearest)}." if job.nearest else ""
    text = (
        "The topic has no such job: it was never put, it was finished without `retain`, it was cancelled, or its "
        f"retention has ended.{like}"
    )
    return WhyReason(code="unknown_job", text=text, nearest=job.nearest, compared=job.compared, jobs=job.jobs)


def _when(at_ms: int, now_ms: int) -> str:
    """``in 30m (2030-01-31T09:30:00.000Z)``, by the store's clock."""
    away_s = abs(at_ms - now_ms) / 1000
    return f"{f'in {_span(away_s)}' if at_ms > now_ms else f'{_span(away_s)} ago'} ({instant_text(at_ms)})"


def _span(duration_s: float) -> str:
    """A duration in its two largest units, such as ``1h 30m``."""
    duration_s = max(duration_s, 0.0)
    if duration_s < 60:
        return f"{duration_s:.3g}s"
    left, parts = int(duration_s), list[str]()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


_QUOTED_CHARACTERS = 200


def _quoted(error: str) -> str:
    """The first line of an error text, not longer than a sentence."""
    line = error.strip().partition("\n")[0].strip()
    return f'"{line if len(line) <= _QUOTED_CHARACTERS else line[: _QUOTED_CHARACTERS - 1] + "…"}"'


def _times(count: int | None) -> str:
    return "once" if count == 1 else f"{count} times"

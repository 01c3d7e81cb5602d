"""Topics, and calls on many jobs, as the JSON of the API: seconds and RFC 3339 instants."""

from __future__ import annotations

from typing import Any

from orjson import Fragment

from deferd.api.response_values import instant, instant_text, seconds
from deferd.contract.model import JobState
from deferd.contract.windows import window_text
from deferd.engine.bulk_actions import BulkOutcome, BulkPreview
from deferd.engine.inspection.standing import Pause
from deferd.engine.push.push_definition import TargetState
from deferd.engine.topic_sweeps import SweepPreview
from deferd.engine.topic_view import TopicView


def bulk_outcome(outcome: BulkOutcome) -> dict[str, Any]:
    """The response to a call on many jobs."""
    return {
        "matched": outcome.matched,
        "done": outcome.done,
        "was": {state.value: count for state, count in outcome.was.items()},
        "complete": outcome.complete,
        **({} if outcome.preview is None else _bulk_preview(outcome.preview)),
    }


def _bulk_preview(preview: BulkPreview) -> dict[str, Any]:
    samples = [{"topic": topic, "id": job_id, "state": state} for topic, job_id, state in preview.samples]
    return {"cutoff": instant(preview.cutoff_ms), "samples": samples}


def sweep_preview(topic: str, preview: SweepPreview) -> dict[str, Any]:
    """The response to a dry run of a redrive or purge."""
    return {
        "matched": preview.matched,
        "complete": preview.is_complete,
        "cutoff": instant(preview.cutoff_ms),
        "samples": [{"topic": topic, "id": job_id, "state": state.value} for job_id, state in preview.samples],
    }


def topic(view: TopicView) -> dict[str, Any]:
    """The topic; for a setting that is `null` the default of the service applies."""
    age_ms, next_due_ms = view.oldest_ready_age_ms, view.next_due_at_ms
    settings = view.settings
    waiting = {"follow_ups": view.follow_ups, "collections": view.collections}
    return {
        "topic": view.topic,
        "paused": view.paused,
        **({} if view.pause is None else paused(view.pause)),
        "counts": {state.value: view.counts.get(state, 0) for state in JobState},
        **{name: count for name, count in waiting.items() if count},
        "oldest_ready_age": None if age_ms is None else seconds(age_ms),
        "oldest_ready_at": None if view.oldest_ready_due_at_ms is None else instant(view.oldest_ready_due_at_ms),
        "next_due_at": None if next_due_ms is None else instant(next_due_ms),
        "settings": {
            "ttr": _whole_number(settings.ttr),
            "max_attempts": settings.max_attempts,
            "backoff": None if settings.backoff is None else _whole_numbers(settings.backoff.model_dump()),
            "ttl": _whole_number(settings.ttl),
            "retain": _whole_number(settings.retain),
            "dead_retain": _whole_number(settings.dead_retain),
            "time_limit": _whole_number(settings.time_limit),
            "deadline": _whole_number(settings.deadline),
            "window": None if settings.window is None else Fragment(window_text(settings.window)),
            "spread": _whole_number(settings.spread),
            "max_jobs": settings.max_jobs,
            "durability": settings.durability,
            "events": settings.events,
            "partitions": settings.partitions,
        },
        **({} if view.target is None else {"push": push_target(view.target)}),
    }


def push_target(target: TargetState) -> dict[str, Any]:
    """What is known of the target of a pushed topic."""
    return {
        "circuit": target.circuit,
        "failures": target.failures,
        "in_flight": target.in_flight,
        "open_until": None if target.open_until_ms is None else instant(target.open_until_ms),
        "last_error": target.last_error,
        "last_error_at": None if target.last_error_at_ms is None else instant(target.last_error_at_ms),
    }


def paused(pause: Pause) -> dict[str, str]:
    """Since when a topic is paused, by whom and why, as far as it is known."""
    facts = {
        "paused_at": None if pause.since_ms is None else instant_text(pause.since_ms),
        "paused_by": pause.by,
        "paused_reason": pause.reason,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _whole_numbers(backoff: dict[str, Any]) -> dict[str, Any]:
    return {name: _whole_number(value) for name, value in backoff.items()}


def _whole_number(value: Any) -> Any:
    """60 for 60.0, as people write it; other values unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_whole_number(item) for item in value]
    return value

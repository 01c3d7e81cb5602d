"""Topics as the API shows them."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from deferd.api import push_responses
from deferd.api.response_values import instant_or_none, seconds, whole
from deferd.contract.model import JobState, TopicSettings
from deferd.contract.responses import topics as responses
from deferd.contract.windows import window_text
from deferd.engine.inspection.standing import Pause
from deferd.engine.topic_list import TopicPage
from deferd.engine.topic_view import TopicView


def topic(view: TopicView) -> responses.TopicView:
    """The topic; for a setting that is `null` the default of the service applies."""
    age_ms = view.oldest_ready_age_ms
    return responses.TopicView(
        topic=view.topic,
        paused=view.paused,
        **paused(view.pause),
        counts={state.value: view.counts.get(state, 0) for state in JobState},
        follow_ups=view.follow_ups,
        collections=view.collections,
        oldest_ready_age=None if age_ms is None else seconds(age_ms),
        oldest_ready_at=instant_or_none(view.oldest_ready_due_at_ms),
        next_due_at=instant_or_none(view.next_due_at_ms),
        settings_json=_settings(view.settings),
        push=None if view.target is None else push_responses.target(view.target),
    )


def topic_page(page: TopicPage) -> responses.TopicPage:
    """One page of topics."""
    return responses.TopicPage(
        topics=[topic(view) for view in page.views],
        next_cursor=page.next_cursor,
        unavailable=page.unavailable,
        unreadable_shards=page.unreadable,
    )


def paused(pause: Pause | None) -> dict[str, Any]:
    """Since when a topic is paused, by whom and why, as far as it is known."""
    if pause is None:
        return {}
    return {"paused_at": instant_or_none(pause.since_ms), "paused_by": pause.by, "paused_reason": pause.reason}


def _settings(settings: TopicSettings) -> dict[str, Any]:
    backoff, window = settings.backoff, settings.window
    return {
        **{name: whole(getattr(settings, name)) for name in TopicSettings.model_fields},
        "backoff": None if backoff is None else whole(backoff.model_dump()),
        "window": None if window is None else Raw(window_text(window)),
    }

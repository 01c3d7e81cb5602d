"""The views of the console, one module for each subject. A new module adds its routes here."""

from __future__ import annotations

from deferd.console.views import (
    activity,
    bulk,
    calendar_form,
    dead,
    go,
    group_pause,
    group_settings,
    job,
    job_edit,
    jobs,
    log_in,
    now,
    push_form,
    schedule_form,
    schedule_pages,
    search,
    topic_groups,
    topics,
)

_MODULES = (
    *(activity, bulk, calendar_form, dead, go, group_pause, group_settings, job, job_edit, jobs),
    *(log_in, now, push_form, schedule_form, schedule_pages, search, topic_groups, topics),
)
ROUTES = [route for module in _MODULES for route in module.pages.routes]

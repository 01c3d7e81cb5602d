"""The views of the console, one module for each subject. A new module adds its routes here."""

from __future__ import annotations

from deferd.console.views import (
    activity,
    bulk,
    consumers,
    dead,
    events,
    go,
    job,
    jobs,
    log_in,
    now,
    schedules,
    system,
    tasks,
    topic,
    topics,
)

ROUTES = [
    *activity.pages.routes,
    *bulk.pages.routes,
    *consumers.pages.routes,
    *dead.pages.routes,
    *events.pages.routes,
    *go.pages.routes,
    *job.pages.routes,
    *jobs.pages.routes,
    *log_in.pages.routes,
    *now.pages.routes,
    *schedules.pages.routes,
    *system.pages.routes,
    *tasks.pages.routes,
    *topic.pages.routes,
    *topics.pages.routes,
]

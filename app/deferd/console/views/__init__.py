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

_MODULES = (
    *(activity, bulk, consumers, dead, events, go, job, jobs, log_in, now, schedules, system, tasks),
    *(topic, topics),
)
ROUTES = [route for module in _MODULES for route in module.pages.routes]

"""The policy of a job as keyword arguments: written by scripts/write_policy_options.py, not by hand."""

from __future__ import annotations

from typing import TypedDict

from deferd.client.request_body import Backoff, End, OpeningHours, Seconds


class PolicyOptions(TypedDict, total=False):
    """How a job is delivered and kept. Durations are seconds or a timedelta.

    An option that is left out or None comes from the topic's settings, then from the service's defaults; in a change it
    stays as it is. But None for `max_attempts`, `ttl`, `time_limit`, `deadline`, `window`, `spread` and `on_end` is a
    value: "none", or "no limit".
    """

    ttr: Seconds | None
    """Time to run: the length of the lease in seconds, 0.1 to 86400. Default: the topic's, else 60."""
    max_attempts: int | None
    """Deliveries after which the job becomes dead instead of ready again. None: no limit."""
    backoff: Backoff | None
    """How long a released job waits until it is ready again. Seconds are kept to the millisecond."""
    ttl: Seconds | None
    """Seconds after `due_at` within which the job must be delivered for the first time; otherwise it becomes dead with
    reason `expired`. None: no limit."""
    retain: Seconds | None
    """Seconds for which the finished job is kept. 0: not kept."""
    dead_retain: Seconds | None
    """Seconds for which the job is kept when it is dead; 0: it is removed at once. Default: that of the topic, else
    what the service is configured for. The limit of the API key that put the job applies to all of them."""
    time_limit: Seconds | None
    """Longest time in seconds that one attempt may run: no touch extends its lease beyond that. None: no limit."""
    deadline: Seconds | None
    """Seconds after `due_at` within which the job must be finished, over all its attempts; then it is dead with reason
    `deadline`. None: none. A retry does not move the deadline; to reschedule or redrive the job does."""
    window: OpeningHours | None
    """Opening hours: one window, a list of them, or the name of a calendar. A due time, and the end of every backoff,
    moves to the next opening."""
    spread: Seconds | None
    """Seconds over which due times are spread: each moves later by a part of this that depends on the job's id, so a
    repeated put agrees with itself."""
    on_end: End | None
    """The job that is put into another topic when this one has ended: finished, dead or cancelled."""

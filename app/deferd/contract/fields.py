"""The fields of jobs and topics, each once: everything that the service, the client and the commands know about them.

A field of the policy is how a job is delivered and kept. It may be given with a put, a change, the job of a schedule
and the settings of a topic, and a job shows it. CONTRIBUTING.md ("Add a field") says what else a new one needs.

This imports nothing heavy: the help of the commands needs it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from deferd.contract import limits


class Kind(Enum):
    """What the values of a field are."""

    SECONDS = auto()
    """A duration in seconds, stored in whole milliseconds."""
    COUNT = auto()
    """A whole number."""
    BACKOFF = auto()
    """An object of `contract.backoff`."""
    WINDOW = auto()
    """Opening hours, or the name of a calendar: see `contract.windows`."""
    TEXT = auto()
    """A string."""
    DURABILITY = auto()
    """`memory`, `fsync` or `replicated:N`, stored as a level of store/durability_levels.py."""
    ON_END = auto()
    """An object of `contract.ends`."""
    LIMITS = auto()
    """An object of `contract.flow`, only of topics."""


class Field(NamedTuple):
    """A field of a job or of the settings of a topic.

    `about` is the sentence of the OpenAPI document and of the client's docstrings, `help` that of the command line;
    `label` and `hint` are those of the console's form. `low` and `high` are the bounds of a number, in the unit of the
    kind, and of the length of a text. `key` is the name in the JSON of stored jobs and settings, where a key has one
    meaning. `null_is_none`: null is a value, "none" or "no limit"; a field that is left out comes from the topic.
    `is_always_shown`: a job shows the field even if it is as by default, `default`.
    """

    name: str
    kind: Kind
    key: str
    about: str
    help: str
    label: str
    hint: str
    low: float = 0
    high: float = 0
    null_is_none: bool = False
    is_always_shown: bool = False
    default: float | None = None


POLICY: Final = (
    Field(
        "ttr",
        Kind.SECONDS,
        "t",
        about="Time to run: the length of the lease in seconds, 0.1 to 86400. Default: the topic's, else 60.",
        help="time to run, the lease of one delivery: 0.1s to 24h",
        label="Time to run, seconds",
        hint="length of a lease; default 60",
        low=limits.TTR_MIN_S,
        high=limits.TTR_MAX_S,
        is_always_shown=True,
        default=limits.TTR_DEFAULT_S,
    ),
    Field(
        "max_attempts",
        Kind.COUNT,
        "m",
        about="Deliveries after which the job becomes dead instead of ready again. `null`: no limit.",
        help="deliveries after which it is dead; none: no limit",
        label="Attempts at most",
        hint="then the job is dead; empty: no limit",
        low=1,
        high=limits.ATTEMPTS_MAX,
        null_is_none=True,
        is_always_shown=True,
    ),
    Field(
        "backoff",
        Kind.BACKOFF,
        "b",
        about="How long a released job waits until it is ready again. Seconds are kept to the millisecond.",
        help="wait after a release: exponential:2:212, fixed:10, schedule:2m,10m,1h",
        label="Backoff",
        hint='JSON, such as {"kind": "fixed", "seconds": 10}',
        is_always_shown=True,
    ),
    Field(
        "ttl",
        Kind.SECONDS,
        "x",
        about="Seconds after `due_at` within which the job must be delivered for the first time; otherwise it becomes "
        "dead with reason `expired`. `null`: no limit.",
        help="first delivery within this time of being due, else dead",
        label="Time to live, seconds",
        hint="not delivered by then: dead",
        low=0.001,
        high=limits.TTL_MAX_S,
        null_is_none=True,
        is_always_shown=True,
    ),
    Field(
        "retain",
        Kind.SECONDS,
        "r",
        about="Seconds for which the finished job is kept. 0: not kept.",
        help="how long to keep the record of the finished job",
        label="Keep finished jobs, seconds",
        hint="default 0: not kept",
        high=limits.RETAIN_MAX_S,
        is_always_shown=True,
        default=0,
    ),
    Field(
        "dead_retain",
        Kind.SECONDS,
        "q",
        about="Seconds for which the job is kept when it is dead; 0: it is removed at once. Default: that of the "
        "topic, else what the service is configured for. The limit of the API key that put the job applies to all of "
        "them.",
        help="how long to keep the dead job; 0: remove it at once",
        label="Keep dead jobs, seconds",
        hint="empty: as the service does",
        high=limits.RETAIN_MAX_S,
    ),
    Field(
        "time_limit",
        Kind.SECONDS,
        "i",
        about="Longest time in seconds that one attempt may run: no touch extends its lease beyond that. `null`: no "
        "limit.",
        help="longest time of one attempt, from 0.1s",
        label="Time limit, seconds",
        hint="of one attempt, touches included",
        low=limits.TIME_LIMIT_MIN_S,
        high=limits.TIME_LIMIT_MAX_S,
        null_is_none=True,
    ),
    Field(
        "deadline",
        Kind.SECONDS,
        "l",
        about="Seconds after `due_at` within which the job must be finished, over all its attempts; then it is dead "
        "with reason `deadline`. `null`: none. A retry does not move the deadline; to reschedule or redrive the job "
        "does.",
        help="finished within this time of being due, else dead",
        label="Deadline, seconds",
        hint="not finished by then: dead",
        low=0.001,
        high=limits.DEADLINE_MAX_S,
        null_is_none=True,
    ),
    Field(
        "window",
        Kind.WINDOW,
        "wi",
        about="Opening hours: one window, a list of them, or the name of a calendar. A due time, and the end of every "
        "backoff, moves to the next opening.",
        help="opening hours, to which due times and retries move, or none",
        label="Window",
        hint='a calendar such as "office", or JSON',
        null_is_none=True,
    ),
    Field(
        "spread",
        Kind.SECONDS,
        "sp",
        about="Seconds over which due times are spread: each moves later by a part of this that depends on the job's "
        "id, so a repeated put agrees with itself.",
        help="due up to this much later, by a hash of the id",
        label="Spread, seconds",
        hint="due times are moved by up to this",
        high=limits.SPREAD_MAX_S,
        null_is_none=True,
    ),
    Field(
        "on_end",
        Kind.ON_END,
        "oe",
        about="The job that is put into another topic when this one has ended: finished, dead or cancelled.",
        help="the job that its end puts: a topic, or JSON with topic, on, id and body; or none",
        label="When it ends",
        hint='JSON, such as {"topic": "orders.ended"}',
        null_is_none=True,
    ),
)
"""In the order used in requests, in `--help` and in jobs."""

TOPIC: Final = (
    Field(
        "max_jobs",
        Kind.COUNT,
        "j",
        about="Most live (delayed, ready or reserved) jobs; further puts get 429 `topic_full`. `null`: no limit.",
        help="most live jobs; a put beyond it is refused; none: no limit",
        label="Live jobs at most",
        hint="further puts are refused; empty: no limit",
        low=1,
        high=limits.MAX_JOBS_MAX,
        null_is_none=True,
    ),
    Field(
        "durability",
        Kind.DURABILITY,
        "du",
        about="Durability of puts that request none. `null`: what the store is configured for.",
        help="of puts that set none: memory, fsync, replicated:N; none: the default of the store",
        label="Durability",
        hint="memory, fsync or replicated:N; empty: the store's",
        null_is_none=True,
    ),
    Field(
        "partitions",
        Kind.COUNT,
        "n",
        about="Over how many shards of the store the topic spreads its jobs, by their ids, 1 to 64. It may grow, not "
        "shrink. `null`: as it is, 1 at first.",
        help="over how many shards of the store its jobs are spread; may grow",
        label="Partitions",
        hint="a whole number to 64; may grow, not shrink; empty: as it is",
        low=1,
        high=limits.PARTITIONS_MAX,
    ),
    Field(
        "events",
        Kind.COUNT,
        "ev",
        about="How many of the last events of its jobs the topic keeps for `GET /events`. 0: none.",
        help="how many events of its jobs to keep for `deferd tail`; 0: none",
        label="Events to keep",
        hint="0 to 10,000; default 0: none",
        high=limits.EVENTS_MAX,
        default=0,
    ),
    Field(
        "limits",
        Kind.LIMITS,
        "li",
        about="How many jobs may be in flight, and how often jobs are handed out: of the topic, of each group, and of "
        "single groups. It holds over all processes, for pops and pushes together. `null`: no limits. Not for topics "
        "with several partitions.",
        help="how many of its jobs may be in flight, and how often they are handed out",
        label="Limits",
        hint='JSON, such as {"max_in_flight": 50, "rate": {"count": 100, "per": 1}}; empty: none',
    ),
)
"""The settings of a topic that are not part of the policy."""

PLACING: Final = frozenset({"window", "spread"})
"""The fields of the policy that move due times: the put script does not know them, see engine/placement.py."""

SECONDS_OF_PUTS: Final = (
    *(field.name for field in POLICY if field.kind is Kind.SECONDS),
    *("delay", "max_wait", "unique_for"),
)
NULL_IS_NONE: Final = frozenset(field.name for field in POLICY if field.null_is_none)
"""The fields for which null is a value."""

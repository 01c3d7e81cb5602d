"""The limits of all values that users pass; schemas, documentation and error texts quote them."""

from __future__ import annotations

TOPIC_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
END_ID_PATTERN = r"^(?:[A-Za-z0-9]|\{(?:topic|id|outcome)\})(?:[A-Za-z0-9._:-]|\{(?:topic|id|outcome)\}){0,254}$"
END_ID_MAX = 255
"""The template for the ids of jobs that ends put: an id with places in it."""
TOPIC_LENGTH = 128
ID_LENGTH = 255

TEN_YEARS_S = 315_576_000
DELAY_MAX_S = TEN_YEARS_S
TTL_MAX_S = TEN_YEARS_S
RETAIN_MAX_S = TEN_YEARS_S
TIME_LIMIT_MIN_S = 0.1
TIME_LIMIT_MAX_S = TEN_YEARS_S
DEADLINE_MAX_S = TEN_YEARS_S
TTR_MIN_S = 0.1
TTR_MAX_S = 86_400
TTR_DEFAULT_S = 60
BACKOFF_WAIT_MAX_S = TEN_YEARS_S
BACKOFF_STEPS_MAX = 100
ATTEMPTS_MAX = 1_000_000
MAX_JOBS_MAX = 1_000_000_000
EVENTS_MAX = 10_000
PARTITIONS_MAX = 64
"""Of a topic."""
EVENT_TOPICS_MAX = 300
"""Topics that a stream of events follows."""
EVENT_STREAMS_MAX = 100
EVENT_STREAMS_PER_KEY = 20
"""Streams of events that a process serves at a time."""

GROUP_PATTERN = TOPIC_PATTERN
GROUP_LENGTH = TOPIC_LENGTH
PRIORITY_MAX = 9
FLOW_COUNT_MAX = 1_000_000
"""Of jobs in flight, and of deliveries in the span of a rate."""
RATE_SPAN_MIN_S = 0.1
RATE_SPAN_MAX_S = 86_400
WEIGHT_MAX = 100
NAMED_GROUPS_MAX = 100
"""Groups with limits of their own in the settings of a topic, which each of its pops and puts reads."""

TAG_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
TAG_LENGTH = 64
TAGS_MAX = 8
HEADERS_OF_JOB_MAX = 16
HEADERS_OF_JOB_BYTES = 4096
HEADER_TEXT_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]*$"

TOPIC_SELECTOR_PATTERN = r"^[A-Za-z0-9*][A-Za-z0-9._:*-]{0,127}$"
SELECT_IDS_MAX = 1000
SELECT_TOPICS_MAX = 100
BULK_DEFAULT = 10_000
BULK_MAX = 100_000

ZONE_LENGTH = 64
CRON_LENGTH = 256
EVERY_MIN_S = 1
TIMES_OF_DAY_MAX = 96
SPREAD_MAX_S = 86_400
WINDOWS_MAX = 20
WINDOW_EXCEPT_MAX = 400
CALENDARS_MAX = 1000
RUNS_MAX = 1_000_000_000
CATCH_UP_MAX = 1000
PREVIEW_DEFAULT = 20
PREVIEW_MAX = 1000
WAITING_COMPUTATIONS_MAX = 32
"""Requests of a key that wait for its share of the computing time."""

REPLICAS_MAX = 9
DURABILITY_PATTERN = rf"^(memory|fsync|replicated:[1-{REPLICAS_MAX}])$"

BATCH_MAX = 1000
BATCH_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,57}$"
"""Of a batch of jobs that are counted together. Its tag is the name behind BATCH_TAG, so that is a valid tag."""
BATCH_NAME_LENGTH = 58
BATCH_TAG = "batch:"
BATCH_JOBS_MAX = 1_000_000_000
BATCH_KEPT_S = 86_400
"""How long a completed batch is kept."""
BATCHES_OPEN_MAX = 100_000
BATCHES_COMPLETED_MAX = 100_000
"""In one shard."""
CHAINED_PUTS_MAX = 10
ITEMS_MAX = 10_000
WAIT_MAX_S = 60
WAIT_DEFAULT_S = 20
POP_COUNT_MAX = 1000
POP_TOPICS_MAX = 32
POP_MATCHES_MAX = 1000
"""Most topics that the names and patterns of a pop may match together."""
TOPIC_OR_PATTERN = r"^[A-Za-z0-9*][A-Za-z0-9._:*-]{0,127}$"
PAGE_MAX = 1000
LISTED_IDS_MAX = 100
PAGE_DEFAULT = 100
SAMPLES_DEFAULT = 10
SAMPLES_MAX = 100
PAUSE_REASON_MAX = 200
REDRIVE_DEFAULT = 1000
REDRIVE_MAX = 1_000_000
REDRIVE_RATE_MIN = 0.01
REDRIVE_RATE_MAX = 1000.0

PUSH_URL_MAX = 2048
PUSH_SECRETS_MAX = 2
PUSH_SECRET_BYTES_MIN = 24
PUSH_SECRET_BYTES_MAX = 64
PUSH_TIMEOUT_MIN_S = 0.1
PUSH_TIMEOUT_MAX_S = 900
PUSH_TIMEOUT_DEFAULT_S = 30
PUSH_IN_FLIGHT_MAX = 1000
PUSH_IN_FLIGHT_DEFAULT = 10
PUSH_RATE_MIN = 0.01
PUSH_RATE_MAX = 10_000
PUSH_HEADERS_MAX = 16
PUSH_HEADERS_BYTES = 4096
PUSH_BATCH_MAX = 100
PUSH_RESULT_BYTES = 64 * 1024
"""The largest response to a push that becomes the result of its job."""
PUSH_ERROR_BYTES = 200
"""How much of a response that is an error is kept with the job."""
PUSHED_TOPICS_MAX = 1000
"""Pushed topics of one shard."""

RELAYS_MAX = 200
RELAY_DATABASE_MAX = 300
RELAY_ROWS_MAX = 1_000_000_000_000
OUTBOX_COUNTED = 10_000
"""More rows of an outbox are estimated."""

ERROR_TEXT_MAX = 10_000
PROGRESS_BYTES = 1024
"""Of the JSON of a progress."""
ERROR_PART_MAX = 1000
SNOOZE_MIN_S = 0.1
RECEIPT_MAX = 64
CURSOR_MAX = 1000
BODY_DEFAULT_BYTES = 1024 * 1024
BODY_MAX_BYTES = 64 * 1024 * 1024
"""Of a request: the largest setting, so no service takes a larger body of a job."""
JSON_DEPTH_MAX = 200
"""Of a request: where the parsers of the service and of the client stop."""
VALUE_DEPTH_MAX = 190
"""For a body or a result. It leaves room for the levels that lists, batches and appends put around it."""

URL_MAX_BYTES = 8192
HEADERS_MAX = 100
HEAD_DEFAULT_BYTES = 32 * 1024
UNSENT_DEFAULT_BYTES = 64 * 1024 * 1024

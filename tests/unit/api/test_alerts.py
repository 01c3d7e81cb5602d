"""Alerts as the API shows them: each code has a text, and its facts."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.api.responses import JsonResponse
from deferd.api.routes.now import alert
from deferd.client.requests import reader_of
from deferd.contract.operations import now as contract
from deferd.engine.inspection.attention import Alert

NOW_MS = 1_800_000_000_000
MIN, HOUR = 60_000, 3_600_000
TEXTS: list[tuple[str, str | None, dict[str, Any], str]] = [
    (
        "no_consumer",
        "orders.close",
        {"ready": 1204, "oldest_age_ms": 4 * MIN + 9, "last_consumer_at_ms": None},
        "orders.close: 1,204 jobs are ready, the oldest for 4 min; there is no consumer",
    ),
    (
        "behind",
        "a",
        {
            "ready": 600,
            "oldest_age_ms": 9 * MIN,
            "rate": 1.0,
            "estimated_wait_ms": 10 * MIN,
            "reserved": 5,
            "limited": True,
        },
        (
            "a: 600 jobs are ready, the oldest for 9 min; limits of the topic, or pauses of groups, hold them back; at "
            "1 a second the last one waits 10 min"
        ),
    ),
    (
        "no_consumer",
        "a",
        {"ready": 1, "oldest_age_ms": 200, "last_consumer_at_ms": NOW_MS - 2 * HOUR},
        "a: 1 job has been ready for 0 s; there has been no consumer for 2 h",
    ),
    (
        "push_failing",
        "a",
        {
            "ready": 1204,
            "oldest_age_ms": 4 * MIN,
            "circuit": "open",
            "failures": 7,
            "last_error": "HTTP 502",
            "last_error_at_ms": NOW_MS - 3000,
            "next_try_at_ms": NOW_MS + 12_000,
        },
        (
            "a: the push has failed 7 times in a row, the last time 3 s ago (HTTP 502); 1,204 jobs are ready, the "
            "oldest for 4 min; the next try is in 12 s"
        ),
    ),
    (
        "push_failing",
        "a",
        {
            "ready": 0,
            "oldest_age_ms": 0,
            "circuit": "half_open",
            "failures": 1,
            "last_error": None,
            "last_error_at_ms": None,
            "next_try_at_ms": None,
        },
        "a: the push has failed; the next request tests it",
    ),
    (
        "failing",
        "mail",
        {
            "released": 9000,
            "finished": 0,
            "window_ms": 12 * MIN,
            "retrying": 1500,
            "exact": True,
            "top_error": "KeyError: 'email'",
            "top_retrying": 1400,
        },
        (
            "mail: 9,000 attempts failed and nothing was finished in 12 min; 1,500 jobs wait for another attempt; the "
            "most frequent error is KeyError: 'email'"
        ),
    ),
    (
        "failing",
        "a",
        {"released": 30, "finished": 1, "window_ms": 12 * MIN, "retrying": 1, "exact": False, "top_error": None},
        "a: 30 attempts failed and 1 job was finished in 12 min; at least 1 job waits for another attempt",
    ),
    (
        "failing",
        "a",
        {"released": 30, "finished": 2, "window_ms": 12 * MIN},
        "a: 30 attempts failed and 2 jobs were finished in 12 min",
    ),
    (
        "behind",
        "a",
        {"ready": 5000, "oldest_age_ms": 90 * MIN, "rate": 2.5, "estimated_wait_ms": 2_000_000, "reserved": 3},
        "a: 5,000 jobs are ready, the oldest for 1 h 30 min; consumers take 2.5 a second, so the last one waits 33 min",
    ),
    (
        "behind",
        "a",
        {"ready": 5, "oldest_age_ms": 61_000, "rate": 0, "estimated_wait_ms": None, "reserved": 3},
        "a: 5 jobs are ready, the oldest for 1 min; consumers hold 3",
    ),
    (
        "dying",
        "mail.remind",
        {"dead": 312, "top_error": "SMTP 421", "top_reason": "attempts_exhausted", "top_dead": 298, "exact": True},
        "mail.remind: 312 jobs died in the last hour, 298 of them with the error SMTP 421",
    ),
    (
        "dying",
        "a",
        {"dead": 7, "top_error": "x" * 101, "top_reason": "buried", "top_dead": 7, "exact": False},
        f"a: about 7 jobs died in the last hour, all of them with the error {'x' * 99}…",
    ),
    (
        "dying",
        "a",
        {"dead": 7, "top_error": None, "top_reason": "expired", "top_dead": 4, "exact": True},
        "a: 7 jobs died in the last hour, 4 of them without an error (expired)",
    ),
    (
        "dying",
        "a",
        {"dead": 1, "top_error": "boom", "top_reason": "buried", "top_dead": 1, "exact": False},
        "a: about 1 job died in the last hour, with the error boom",
    ),
    (
        "late",
        "a",
        {"jobs": 1, "overdue_ms": 12_000},
        "a: 1 job is due and still delayed, by 12 s: the timer does not keep up",
    ),
    (
        "schedules_missed",
        "a",
        {"schedule": "nightly", "missed": 1, "last_missed_at_ms": NOW_MS - 3 * MIN},
        "a: schedule nightly missed a run 3 min ago",
    ),
    (
        "paused",
        "a",
        {"ready": 4, "due": 2, "by": "ops", "since_at_ms": NOW_MS - 26 * HOUR},
        "a: it has been paused for 1 d 2 h by ops; 4 jobs are ready and 2 more are due",
    ),
    ("paused", "a", {"ready": 4, "due": None, "by": None, "since_at_ms": None}, "a: it is paused; 4 jobs are ready"),
    (
        "late",
        "a",
        {"jobs": 1000, "overdue_ms": 12_000},
        "a: 1,000 jobs are due and still delayed, the oldest by 12 s: the timer does not keep up",
    ),
    (
        "shelf_behind",
        None,
        {"jobs": 41_200, "within_ms": 30 * MIN, "first_due_at_ms": NOW_MS + 12 * MIN, "rate": 1234.5},
        (
            "41,200 jobs due within 30 min are still on the shelf; the first is due in 12 min, and the "
            "service loads 1,234 a second"
        ),
    ),
    (
        "shelf_behind",
        None,
        {"jobs": 1, "within_ms": 0, "first_due_at_ms": NOW_MS - 3000, "rate": 0.0},
        "1 job that is due is still on the shelf; it is 3 s late, and the service loads 0 a second",
    ),
    (
        "shelf_behind",
        None,
        {"why": "the shelf did not respond in time"},
        ("the shelf did not respond in time: calls that need its jobs fail, and jobs become late if this lasts"),
    ),
    (
        "durability",
        "a",
        {"durability": "fsync", "available": "memory", "why": "appendonly is no"},
        (
            "a: it asks for durability fsync, and the store gives memory (appendonly is no): puts without a level of "
            "their own are refused"
        ),
    ),
    (
        "timer",
        None,
        {"shard": 3, "running": False, "overdue_ms": 9000},
        "shard 3: its work is overdue by 9 s, and no timer runs",
    ),
    (
        "timer",
        None,
        {"shard": 3, "running": True, "overdue_ms": 61_000},
        "shard 3: its work is overdue by 1 min, and the timer does not get to it",
    ),
    (
        "shard_unavailable",
        None,
        {"shards": [1, 5]},
        "the store can't be reached for shards 1, 5: their topics are missing here",
    ),
    (
        "outbox_stopped",
        None,
        {"database": "db:5432/shop", "rows": 1, "since_at_ms": NOW_MS - 4 * MIN},
        "no relay has sent the outbox of db:5432/shop for 4 min, which had 1 row then",
    ),
    (
        "outbox_stopped",
        None,
        {"database": "db:5432/shop", "rows": 0, "since_at_ms": NOW_MS - 4 * MIN},
        "no relay has sent the outbox of db:5432/shop for 4 min",
    ),
    (
        "outbox_behind",
        None,
        {"database": "db:5432/shop", "rows": 1_204_000, "lag_ms": 90 * MIN},
        "the outbox of db:5432/shop is 1 h 30 min behind: about 1,204,000 rows wait for the relay",
    ),
    (
        "outbox_refused",
        None,
        {"database": "db:5432/shop", "refused": 3},
        "3 rows of the outbox of db:5432/shop are refused: see `deferd outbox refused`",
    ),
    (
        "schedules_missed",
        "a",
        {"schedule": "nightly", "missed": 12, "last_missed_at_ms": NOW_MS - 3 * MIN},
        "a: schedule nightly missed 12 runs, the last one 3 min ago",
    ),
    ("topic_full", "a", {"jobs": 9, "max_jobs": 10}, "a: it is nearly full, with 9 of 10 jobs"),
    ("topic_full", "a", {"jobs": 10, "max_jobs": 10}, "a: it is full, with 10 jobs: puts are refused"),
    (
        "overload",
        "a",
        {"due": 5000, "handled": 3600, "handled_at_ms": NOW_MS - 19 * HOUR},
        "a: 5,000 jobs are due in the next hour; at their best in two days, 19 h ago, consumers handled 3,600 an hour",
    ),
    (
        "overload",
        "a",
        {"due": 5000, "handled": 3600, "handled_at_ms": None},
        "a: 5,000 jobs are due in the next hour; consumers take 3,600 an hour now",
    ),
]


@pytest.mark.parametrize(
    ("code", "topic", "facts", "text"), TEXTS, ids=[f"{one[0]}-{at}" for at, one in enumerate(TEXTS)]
)
def test_each_alert_says_what_it_is(code: str, topic: str | None, facts: dict[str, Any], text: str) -> None:
    made = alert(Alert("warning", code, topic, 1, facts), NOW_MS)
    assert made.text == text
    written = bytes(JsonResponse(made).body)
    assert b"null" not in written
    assert reader_of(contract.Alert)(written).text == text


def test_all_codes_are_known() -> None:
    assert {code for code, *_ in TEXTS} == set(contract.ALERT_CODES)

"""Requests of at most 1 MB that cause the most work in the event loop, one group for each kind of loop in the service.

Each group is sent at once, over one connection for each request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, NamedTuple

MOST_BYTES = 1024 * 1024
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham", "Africa/Casablanca")
RARE = "0 0 29 2 *"

MOST_COUNTS = 3.3
"""A request may hold the loop for this many times `count_ms`: 25 ms on a machine where that takes 7.5."""


class Sent(NamedTuple):
    """A request; `body` is sent as JSON, or as it is if it is bytes."""

    method: str
    path: str
    body: Any = None

    def content(self) -> bytes:
        """The body as bytes."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body or b""
        return json.dumps(self.body, separators=(",", ":")).encode()


async def send(port: int, sent: Sent) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = sent.content()
    head = f"{sent.method} {sent.path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + content)
    return reader, writer


async def call(port: int, sent: Sent) -> int:
    """The status of the response."""
    reader, writer = await send(port, sent)
    status = int((await reader.readline()).split()[1])
    while await reader.read(1 << 16):
        pass
    writer.close()
    return status


def count_ms() -> float:
    """The yardstick: milliseconds of CPU time in which Python adds up 200,000 squares, here and now.

    Machines differ in speed by a factor of two, and one with busy neighbours differs from itself by more.
    """
    began_s = time.thread_time()
    total = 0
    for number in range(200_000):
        total += number * number
    return (time.thread_time() - began_s) * 1000


def windows(number: int, *, length: int = 20, excepted: int = 0) -> list[dict[str, Any]]:
    """A list of windows that no other number has: in five zones, a minute long, on each day of the week."""
    minute = number % 59
    hours = [(number // 59 + at) % 24 for at in range(length)]
    return [
        {
            "zone": ZONES[at % len(ZONES)],
            "from": f"{hour:02d}:{minute:02d}",
            "to": f"{hour:02d}:{minute + 1:02d}",
            **({"except": dates(number, excepted)} if excepted else {}),
        }
        for at, hour in enumerate(hours)
    ]


def dates(begin: int, count: int) -> list[str]:
    return [
        f"{2027 + day // 336}-{day % 336 // 28 + 1:02d}-{day % 28 + 1:02d}"
        for day in range(begin % 28, begin % 28 + count)
    ]


def rarely_open(zone: str = "Europe/Berlin") -> list[dict[str, Any]]:
    """Windows of which each is shut on its day of the week for almost eight years."""
    days = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    found = []
    for at in range(20):
        day = at % 7
        first = 4 - 3 + day  # 2027-01-04 is a Monday
        mondays = _weekly(first, 390)
        found.append(
            {"zone": zone, "days": [days[day]], "from": f"{at:02d}:00", "to": f"{at:02d}:01", "except": mondays}
        )
    return found


def _weekly(first: int, count: int) -> list[str]:
    begin = date(2026, 11, 23) + timedelta(days=(first - 1) % 7)
    return [(begin + timedelta(weeks=week)).isoformat() for week in range(count)]


def preview(cron: str, number: int, spec: Any = None, **more: Any) -> Sent:
    schedule = {"topic": "stall.runs", "cron": cron, "window": spec or windows(number), **more}
    return Sent("POST", "/schedules/preview?count=1000", schedule)


def batch(count: int, make: Callable[[int], dict[str, Any]]) -> Sent:
    return Sent(
        "POST", "/jobs/batch", {"jobs": [{"topic": "stall.jobs", "delay": 60, **make(at)} for at in range(count)]}
    )


def fill(before: bytes, unit: bytes, after: bytes, size: int = MOST_BYTES) -> bytes:
    return before + unit * ((size - len(before) - len(after)) // len(unit)) + after


JOB = b'{"topic":"stall.jobs","body":'
GROUPS: dict[str, list[Sent]] = {
    "previews of a rare date": [preview(RARE, number) for number in range(8)],
    "previews of a date in 28 years": [preview("0 0 */28 2 MON#5", 200 + number) for number in range(4)],
    "previews by the second": [preview("* * * * * *", 300 + number, job={"spread": 3600}) for number in range(4)],
    "previews that wait for years": [preview(cron, 0, rarely_open()) for cron in ("* * * * * *", "0 0 * * *", RARE)],
    "previews by elapsed time": [
        Sent("POST", "/schedules/preview?count=1000", {"topic": "t", "every": 3600.5, "window": windows(400 + at)})
        for at in range(4)
    ],
    "windows of a batch": [batch(700, lambda at: {"window": windows(1000 + at, length=18)})],
    "windows of a batch that is parsed in the loop": [batch(100, lambda at: {"window": windows(1800 + at, length=15)})],
    "windows with exceptions": [batch(8, lambda at: {"window": windows(2000 + at, excepted=400)})],
    "windows with exceptions in one put": [
        Sent("POST", "/jobs", {"topic": "stall.jobs", "delay": 60, "window": windows(2100, excepted=400)})
    ],
    "windows that open in years": [
        Sent("POST", "/jobs", {"topic": "stall.jobs", "id": "late", "delay": 60, "window": rarely_open()}),
        Sent("PATCH", "/jobs/stall.jobs/late", {"delay": 120, "window": rarely_open("America/New_York")}),
        Sent("PUT", "/calendars/late", {"windows": rarely_open("Asia/Tokyo")}),
        Sent("PUT", "/topics/stall.late", {"window": rarely_open("Asia/Kolkata")}),
        Sent("PUT", "/schedules/late", {"topic": "stall.jobs", "cron": RARE, "window": rarely_open("Asia/Dubai")}),
    ],
    "windows of single puts": [
        Sent("POST", "/jobs", {"topic": "stall.jobs", "delay": 60, "window": windows(2200 + at)}) for at in range(100)
    ],
    "unknown fields of a batch": [
        batch(1000, lambda at: {f"unknown{number}": 0 for number in range(60)}),
        batch(1000, lambda at: {"delay": -1, "ttr": "x", "tags": ["!"] * 8}),
    ],
    "tags and headers of a batch": [
        batch(
            1000,
            lambda at: {"tags": [f"tag{at}.{n}" for n in range(8)], "headers": {f"h{n}": "v" * 20 for n in range(16)}},
        ),
    ],
    "lists": [Sent("POST", "/jobs", fill(JOB + b"[", b"[],", b"0]}"))],
    "deep lists": [Sent("POST", "/jobs", fill(JOB + b"[", b"[" * 150 + b"]" * 150 + b",", b"0]}"))],
    "deep lists of a batch": [
        Sent(
            "POST",
            "/jobs/batch",
            fill(b'{"jobs":[', JOB + b"[" + (b"[" * 150 + b"]" * 150 + b",") * 4 + b"0]},", JOB + b"0}]}"),
        )
    ],
    "lists in lists": [Sent("POST", "/jobs", fill(JOB + b"[", b"[[]],", b"0]}"))],
    "lists in a deep list": [Sent("POST", "/jobs", JOB + b"[" * 180 + b"[]," * 340_000 + b"0" + b"]" * 180 + b"}")],
    "lists where there are none": [Sent("POST", "/jobs", fill(JOB + b'0,"tags":[', b"[[[]]],", b"0]}"))],
    "numbers": [Sent("POST", "/jobs", fill(JOB + b"[", b"0,", b"0]}"))],
    "exponents": [Sent("POST", "/jobs", fill(JOB + b"[", b"1e99,", b"0]}"))],
    "an infinite number": [Sent("POST", "/jobs", fill(JOB + b"[", b"0,", b"1e400]}"))],
    "names": [Sent("POST", "/jobs", JOB + b"{" + b",".join(b'"k%06d":0' % number for number in range(80_000)) + b"}}")],
    "empty jobs": [Sent("POST", "/jobs/batch", fill(b'{"jobs":[', b"{},", b"{}]}"))],
    "finishes": [
        Sent(
            "POST",
            "/topics/stall.jobs/finish",
            {"jobs": [{"id": f"id{at}", "receipt": "0" * 12 + ".1", "result": "r" * 900} for at in range(1000)]},
        )
    ],
    "ids": [
        Sent(
            "POST",
            f"/jobs/{verb}",
            {"select": {"ids": [{"topic": f"stall.{at}", "id": "i" * 255} for at in range(1000)]}, **more},
        )
        for verb, more in (("cancel", {}), ("reschedule", {"by": 60}))
    ],
    "topics of a batch": [
        Sent("POST", "/jobs/batch", {"jobs": [{"topic": f"stall.{at}", "body": "b" * 900} for at in range(1000)]})
    ],
    "large batch": [batch(1000, lambda at: {"body": "b" * 950})],
}
READS: dict[str, list[Sent]] = {
    "schedules": [Sent("GET", "/schedules?limit=1000")],
    "forecast": [Sent("GET", "/forecast?buckets=240&limit=1000")],
    "topics": [Sent("GET", "/topics?limit=1000")],
    "jobs": [Sent("GET", f"/topics/stall.jobs/jobs?limit=1000&state={state}") for state in ("delayed", "ready")],
    "search": [Sent("GET", "/topics/stall.jobs/jobs?limit=1000&id_prefix=zz")],
    "dead": [Sent("GET", "/dead?look_at=100000&limit=1000")],
    "now": [Sent("GET", "/now?limit=1000"), Sent("GET", "/overview")],
    "consumers": [Sent("GET", "/consumers?limit=1000")],
    "metrics": [Sent("GET", "/metrics")],
    "pop": [
        Sent("GET", "/topics/stall.*/pop?count=1000&wait=0"),
        Sent("GET", "/topics/stall.jobs/pop?count=1000&wait=0"),
    ],
    "activity": [Sent("GET", "/activity?limit=1000")],
}
"""After the groups above, whose jobs, topics and schedules they read."""

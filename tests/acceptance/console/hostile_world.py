"""A service with something of everything to see, in which each text that anybody may write tries to become a script."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from deferd.console.views import ROUTES
from deferd.console.visit import PageRoute
from tests.acceptance.http_calls import NO_TLS

TOPIC, FINISHED_JOB, DEAD_JOB, SCHEDULE, CALENDAR = "shop.orders", "done-1", "dead-1", "nightly", "office"
LATER_JOB = "later" + "x" * 200
HOSTILE = (
    '"\'><img src=x data-hacked onerror="window.hacked=1;alert(1)"></script><script>window.hacked=1</script>'
    '<a data-hacked href="javascript:hacked=3">x</a></pre></textarea><svg data-hacked onload=window.hacked=4>'
    " {{ 7 * 7 }}"
)
ERROR = f"HTTP 503 {HOSTILE}"
CLIENT = "evil/1.0 <img src=x data-hacked onerror=window.hacked=1>"
_TIMEOUT_S = 10.0
_DEAD_GROUP = {"topic": TOPIC, "reason": "buried"}
_VALUES = {"topic": TOPIC, "id": DEAD_JOB, "job": DEAD_JOB, "name": SCHEDULE, "part": "body"}
_VALUES_BELOW = {"calendars": CALENDAR, "consumers": "closer-2"}
"""In place of these, by the folder of the path; `page_paths` adds that of tasks."""
_QUERIES: dict[str, dict[str, str]] = {
    "/console/dead/redrive": _DEAD_GROUP,
    "/console/dead/cancel": _DEAD_GROUP,
    "/console/topics/{topic}/bulk": {"action": "redrive", "state": "dead", "all": "1"},
    "/console/topic-pauses": {"topics": "shop.*, nobody"},
}
"""What a page must have in its URL."""
_JOBS = f"/console/topics/{TOPIC}/jobs"
_SCRIPT = quote("<script>window.hacked=1</script>", safe="")
PATHS_OF_JOBS = [
    *(
        f"{_JOBS}?{query}"
        for query in ("state=delayed", "state=dead", f"error={_SCRIPT}", f"id={_SCRIPT}", f"tag={_SCRIPT}")
    ),
    *(f"{_JOBS}/{job_id}" for job_id in (FINISHED_JOB, LATER_JOB, "delayed-1", _SCRIPT)),
    *(f"{_JOBS}/delayed-1/{part}" for part in ("edit", "part/curl")),
    f"{_JOBS}/{FINISHED_JOB}/part/result",
]
"""More pages of jobs: in other states, and with texts that nothing has."""


def path_of(route: PageRoute) -> str:
    """The URL of a route in this world. A new name in a path needs a value in `_VALUES`."""

    def value(found: re.Match[str]) -> str:
        name = found[1].partition(":")[0]
        folder = route.path[: found.start()].split("/")[-2]
        wanted = _VALUES_BELOW.get(folder) or _VALUES.get(name)
        assert wanted, f"{route.path}: say in hostile_world.py which {name} a test of every page should see"
        return quote(wanted, safe="")

    path = re.sub(r"\{([^}]+)\}", value, route.path)
    query = _QUERIES.get(route.path)
    return f"{path}?{urlencode(query)}" if query else path


def page_paths(client: httpx.Client) -> list[str]:
    """The URLs of all routes that respond with a whole page: not streams, parts of pages and redirects."""
    found = []
    task = re.search(r'"console/tasks/(\w+)"', client.get("/console/tasks", timeout=_TIMEOUT_S).text)
    assert task is not None
    _VALUES_BELOW["tasks"] = task[1]  # each service has its own
    for route in ROUTES:
        if route.method != "GET":
            continue
        path = path_of(route)
        with client.stream("GET", path, timeout=_TIMEOUT_S) as response:
            if not response.headers.get("content-type", "").startswith("text/html"):
                continue
            text = response.read().decode()
        if text.lstrip().lower().startswith("<!doctype"):
            assert response.status_code == 200, f"{path}: {response.status_code} {text[:2000]}"
            found.append(path)
    assert len(found) >= 9, found
    return found


def fill(url: str, headers: Mapping[str, str] | None = None) -> None:
    """Put everything into the service at `url`."""
    with httpx.Client(base_url=url, headers=dict(headers or {}), timeout=_TIMEOUT_S, verify=NO_TLS) as client:

        def call(method: str, path: str, body: Any = None) -> Any:
            response = client.request(method, path, json=body)
            assert response.status_code < 300, f"{method} {path}: {response.text}"
            return response.json() if response.content else None

        limits = {"per_group": {"max_in_flight": 9}, "rate": {"count": 900, "per": 1}}
        call("PUT", f"/topics/{TOPIC}", {"events": 1000, "max_attempts": 3, "limits": limits})
        job = {
            "body": {HOSTILE: HOSTILE, "text": "</pre>" + "y" * 500},
            "headers": {"x-note": HOSTILE},
            "tags": ["vip"],
        }
        call("POST", "/jobs", {"topic": TOPIC, "id": FINISHED_JOB, "retain": 3600, **job})
        [popped] = call("POST", f"/topics/{TOPIC}/pop?wait=5&consumer=closer-1")["jobs"]
        call("POST", f"/jobs/{TOPIC}/{FINISHED_JOB}/finish", {"receipt": popped["receipt"], "result": HOSTILE})
        for job_id, verb, error in (
            (DEAD_JOB, "bury", ERROR),
            ("dead-2", "bury", ERROR),
            ("dead-3", "bury", "z" * 900),
            (LATER_JOB, "release", ERROR),
        ):
            call("POST", "/jobs", {"topic": TOPIC, "id": job_id, **job})
            [popped] = call("POST", f"/topics/{TOPIC}/pop?wait=5&consumer=closer-1")["jobs"]
            ended = {"receipt": popped["receipt"], "error": error, **({"delay": 500} if verb == "release" else {})}
            call("POST", f"/jobs/{TOPIC}/{job_id}/{verb}", ended)
        call("POST", "/jobs", {"topic": TOPIC, "id": "held-1", **job})
        call("POST", f"/topics/{TOPIC}/pop?wait=5&consumer=closer-2")
        call(
            "POST",
            "/jobs",
            {"topic": TOPIC, "id": "delayed-1", "delay": 3600, **job, "tags": ["a" * 60], "group": "g" * 128},
        )
        call("POST", "/jobs", {"topic": TOPIC, "id": "ready-1", **job})
        call("PUT", f"/calendars/{CALENDAR}", {"windows": [{"zone": "Europe/Berlin", "from": "08:00", "to": "18:00"}]})
        call("PUT", f"/schedules/{SCHEDULE}", {"topic": "shop.reports", "cron": "0 3 * * *", "job": job})
        call("POST", f"/schedules/{SCHEDULE}/run")
        relay = {"database": HOSTILE, "working": True, "rows": 1, "refused": 1, "lag": 0}
        call("PUT", "/relays/hostile-1", relay)
        call("POST", f"/topics/{TOPIC}/pause", {"reason": HOSTILE[:200]})
        call("POST", "/topics/shop.reports/redrive", {})
        purge = "state=dead&reason=expired&as_task=true"
        call("DELETE", f"/topics/{TOPIC}?{purge}")
        _DEAD_GROUP["error"] = call("GET", "/dead")["groups"][0]["error"]


@contextlib.contextmanager
def hostile_consumer(url: str, headers: Mapping[str, str] | None = None) -> Iterator[None]:
    """A consumer without a name that waits for a job; the name of its client is hostile."""
    is_over = threading.Event()

    def pop() -> None:
        sent = {**(headers or {}), "User-Agent": CLIENT}
        while not is_over.is_set():
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(f"{url}/topics/nothing.here/pop?wait=2", headers=sent, timeout=_TIMEOUT_S, verify=NO_TLS)

    thread = threading.Thread(target=pop)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()

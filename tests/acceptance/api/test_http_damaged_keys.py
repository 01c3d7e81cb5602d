"""Another program has damaged the keys that operators' pages read: all else works, and no read logs a traceback."""

from __future__ import annotations

import httpx

from tests.acceptance.cli.damaged_store import BreakableService
from tests.acceptance.http_calls import NO_TLS, ok
from tests.waiting import wait_until

KEYS = (
    *("events/topics", "schedules/missed", "consumers/reports", "consumers/reported", "consumers/topics"),
    *("activity", "tasks", "tasks/running", "history/topics"),
)
READS = (
    *("/overview", "/overview?ready_history=true", "/system", "/consumers", "/events/latest", "/history", "/forecast"),
    *("/dead", "/metrics", "/"),
)
READS_OF_TOPIC = ("/topics/t", "/topics/t/history", "/jobs/t/a/why")
OWN_PAGES = ("/activity", "/tasks")


def test_damaged_keys_of_a_shard(breakable: BreakableService) -> None:
    """The reads are the first ones, so that none comes from what the service has kept."""
    for key in KEYS:
        breakable.replace_by_text(key)
    with httpx.Client(base_url=breakable.service.url, timeout=20, verify=NO_TLS) as http:
        for path in OWN_PAGES:
            refused = http.get(path)
            assert refused.status_code == 500
            assert "damaged a key of the store" in refused.json()["detail"]
        assert http.post("/jobs", json={"topic": "t", "id": "a"}).status_code == 201
        assert ok(http.get("/now"))["complete"] is False
        for path in (*READS, *READS_OF_TOPIC):
            assert http.get(path).status_code == 200, path

        ok(http.put("/topics/t", json={"events": 10}))
        assert http.post("/jobs", json={"topic": "t", "id": "b"}).status_code == 201
        assert ok(http.get("/topics/t"))["counts"]["ready"] == 2
        assert [event["event"] for event in ok(http.get("/events/latest"))["events"]] == ["put"]
        begun = ok(http.delete("/topics/t", params={"state": "ready", "as_task": "true"}), 202)
        wait_until(lambda: ok(http.get(f"/tasks/{begun['id']}"))["state"] == "done", 10, "the task is done")
        assert [task["id"] for task in ok(http.get("/tasks"))["tasks"]] == [begun["id"]]
    assert "Traceback" not in breakable.service.output()

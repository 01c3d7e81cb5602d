"""Topics: /topics and the paths below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.api.test_http_operations import samples_of, value
from tests.acceptance.http_calls import NO_TLS, Http, moment, ok, problem, refusal
from tests.acceptance.service_process import running_service

_POLICY = ("ttr", "backoff", "max_attempts", "ttl", "retain", "dead_retain", "time_limit", "deadline")
_NO_SETTINGS = {
    **dict.fromkeys((*_POLICY, "window", "spread", "on_end", "max_jobs", "durability", "partitions", "limits")),
    "events": 0,
}


async def test_a_topic_is_shown_in_its_current_state(http: Http) -> None:
    await http.put_job("held")
    await http.pop_one()
    await http.bury("dead")
    await http.reserve("done", retain=60)
    ok(await http.post(http.job_path("done", "finish")))
    ready = await http.put_job("ready")
    delayed = await http.put_job("delayed", delay=60)
    topic = ok(await http.get(http.topic_path()))
    assert topic == {
        "topic": http.topic,
        "paused": False,
        "counts": {"delayed": 1, "ready": 1, "reserved": 1, "dead": 1, "finished": 1},
        "oldest_ready_age": topic["oldest_ready_age"],
        "oldest_ready_at": ready["due_at"],
        "next_due_at": delayed["due_at"],
        "settings": _NO_SETTINGS,
    }
    assert 0 <= topic["oldest_ready_age"] < 10
    assert moment(ready["due_at"]) < moment(topic["next_due_at"])


async def test_a_topic_without_waiting_jobs_has_no_ages(http: Http) -> None:
    await http.reserve("held")
    topic = ok(await http.get(http.topic_path()))
    assert (topic["oldest_ready_age"], topic["next_due_at"]) == (None, None)


async def test_jobs_that_failed_and_wait_for_another_attempt_are_counted_and_listed(http: Http) -> None:
    await http.put_job("later", delay=60)
    assert "retrying" not in ok(await http.get(http.topic_path()))
    for job_id in ("a", "b"):
        await http.reserve(job_id)
        ok(await http.post(http.job_path(job_id, "release"), json={"delay": 600, "error": "x"}))
    await http.put_job("ready")
    topic = ok(await http.get(http.topic_path()))
    assert topic["retrying"] == {"jobs": 2, "complete": True}
    listed = ok(await http.get(http.topic_path("jobs"), params={"retrying": "true"}))
    assert [(job["id"], job["last_error"]) for job in listed["jobs"]] == [("a", "x"), ("b", "x")]
    for query in ({"state": "ready"}, {"reason": "buried"}, {"error_group": ""}):
        assert refusal(await http.get(http.topic_path("jobs"), params={"retrying": "true", **query}), "query")


async def test_an_unknown_topic_is_not_found(http: Http) -> None:
    for response in (
        await http.get(http.topic_path()),
        await http.get(http.topic_path("jobs")),
        await http.post(http.topic_path("redrive")),
        await http.post(http.topic_path("resume")),
        await http.delete(http.topic_path()),
    ):
        assert problem(response, 404, "topic_not_found")["topic"] == http.topic
    assert http.topic not in [view["topic"] for view in ok(await http.get("/topics"))["topics"]]


async def test_settings_are_replaced_as_a_whole(http: Http) -> None:
    settings = {
        "ttr": 30,
        "backoff": {"kind": "schedule", "seconds": [1, 2.5], "then": "dead", "jitter": 0},
        "max_attempts": 5,
        "ttl": 60,
        "retain": 0.5,
        "dead_retain": 0,
        "time_limit": 0.1,
        "deadline": 3600,
        "window": {"from": "09:00", "to": "18:00"},
        "spread": 60,
        "on_end": {"topic": http.topic, "on": ["dead", "cancelled"], "id": "{topic}-{id}", "body": True},
        "max_jobs": 10,
        "durability": "memory",
        "events": 100,
        "partitions": None,
        "limits": {
            "max_in_flight": 50,
            "rate": {"count": 100, "per": 0.5, "burst": 10},
            "per_group": {"max_in_flight": 1},
            "groups": {"customer:7": {"rate": {"count": 7, "per": 60}, "weight": 3}},
        },
    }
    assert ok(await http.put(http.topic_path(), json=settings))["settings"] == settings
    assert ok(await http.get(http.topic_path()))["settings"] == settings
    assert ok(await http.put(http.topic_path(), json={"ttr": 5}))["settings"] == {**_NO_SETTINGS, "ttr": 5}
    assert ok(await http.put(http.topic_path(), json={}))["settings"] == _NO_SETTINGS


async def test_limits_are_for_topics_with_one_partition(http: Http) -> None:
    several, limits = {"partitions": 4}, {"limits": {"max_in_flight": 1}}
    ok(await http.put(http.topic_path(), json=limits))
    both = await http.put(http.topic_path(), json={**several, **limits})
    assert refusal(both, "body.limits") == "must be left out for a topic with 4 partitions"
    settings = ok(await http.get(http.topic_path()))["settings"]
    assert (settings["partitions"], settings["limits"]) == (None, limits["limits"])
    settings = ok(await http.put(http.topic_path(), json=several))["settings"]
    assert (settings["partitions"], settings["limits"]) == (4, None), "settings replace all earlier ones"
    assert "left out" in refusal(await http.put(http.topic_path(), json=limits), "body.limits")
    ok(await http.put(http.topic_path(), json={"limits": {"groups": {"a": {}}}}))


async def test_shown_settings_can_be_set_as_they_are(http: Http) -> None:
    shown = ok(await http.put(http.topic_path(), json={"backoff": {"kind": "fixed"}, "max_jobs": 3}))["settings"]
    assert ok(await http.put(http.topic_path(), json=shown))["settings"] == shown


async def test_pausing_keeps_the_settings_and_accepts_no_body(http: Http) -> None:
    ok(await http.put(http.topic_path(), json={"ttr": 5}))
    assert ok(await http.post(http.topic_path("pause"), json={}))["settings"]["ttr"] == 5
    assert refusal(await http.post(http.topic_path("pause"), json={"for": 5}), "body.for") == "is not a known field"
    assert ok(await http.put(http.topic_path(), json={"ttr": 6}))["paused"] is True


async def test_a_page_holds_100_jobs_when_no_limit_is_given(http: Http) -> None:
    ok(await http.post("/jobs/batch", json={"jobs": [{"topic": http.topic, "delay": 600}] * 101}))
    assert len(ok(await http.get(http.topic_path("jobs")))["jobs"]) == 100


@pytest.mark.parametrize("path", ["/topics", "jobs", "groups"])
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "query.limit"),
        ({"limit": "1001"}, "query.limit"),
        ({"limit": "many"}, "query.limit"),
        ({"cursor": "nonsense"}, "query.cursor"),
        ({"cursor": "WzksInh4Il0"}, "query.cursor"),
        ({"cursor": "Wy0xLCIiXQ"}, "query.cursor"),
        ({"cursor": ""}, "query.cursor"),
        ({"cursor": "x" * 1001}, "query.cursor"),
        ({"page": "2"}, "query.page"),
    ],
)
async def test_a_bad_page_is_refused(http: Http, path: str, query: dict[str, str], field: str) -> None:
    await http.put_job()
    refusal(await http.get(path if path.startswith("/") else http.topic_path(path), params=query), field)


async def test_groups_come_page_by_page_in_one_order(http: Http) -> None:
    for number in range(5):
        await http.put_job(f"j{number}", group=f"g{number % 3}")
    first = ok(await http.get(http.topic_path("groups"), params={"limit": 2}))
    assert [(one["group"], one["ready"]) for one in first["groups"]] == [("g0", 2), ("g1", 2)]
    query = {"limit": 2, "cursor": first["next_cursor"]}
    last = ok(await http.get(http.topic_path("groups"), params=query))
    assert ([one["group"] for one in last["groups"]], last["next_cursor"]) == (["g2"], None)
    refusal(await http.get(http.topic_path("groups"), params={**query, "order": "age"}), "query.cursor")
    refusal(await http.get(http.topic_path("groups"), params={"order": "name"}), "query.order")
    refusal(await http.post(http.topic_path("groups/-/pause")), "path.group")
    refusal(await http.post(http.topic_path("groups/g0/pause"), json={"reason": "x"}), "body.reason")


async def test_a_state_that_does_not_exist_is_refused(http: Http) -> None:
    await http.put_job("safe")
    states = "must be 'delayed', 'ready', 'reserved', 'dead' or 'finished'"
    assert refusal(await http.get(http.topic_path("jobs"), params={"state": "asleep"}), "query.state") == states
    assert refusal(await http.delete(http.topic_path(), params={"state": "asleep"}), "query.state") == states
    assert await http.has_job("safe")


# Follow-ups and collections

AFTER: dict[str, Any] = {"on_conflict": "replace", "if_reserved": "after"}


async def put_after(http: Http, **fields: Any) -> None:
    ok(await http.post("/jobs", json={"topic": http.topic, "id": "a", **AFTER, **fields}), 201)


@pytest.mark.parametrize("path", ["/topics/{}", "/topics?limit=1000"])
async def test_a_topic_shows_its_follow_ups_and_collections(http: Http, path: str) -> None:
    async def shown() -> tuple[int | None, int | None]:
        found = ok(await http.get(path.format(http.topic)))
        [topic] = [one for one in found.get("topics", [found]) if one["topic"] == http.topic]
        return topic.get("follow_ups"), topic.get("collections")

    receipt = (await http.reserve("a"))["receipt"]
    assert await shown() == (None, None)
    await put_after(http)
    for job_id in ("b", "c"):
        await http.put_job(job_id, on_conflict="append", delay=60)
    assert await shown() == (1, 2)
    ok(await http.post(http.job_path("a", "finish"), json={"receipt": receipt}))
    assert await shown() == (None, 2)
    ok(await http.delete(http.job_path("b")))
    assert await shown() == (None, 1)


async def test_metrics_count_follow_ups_and_collections(tmp_path: Path) -> None:
    with running_service("--max-topic-labels", "1", data_dir=tmp_path) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=30, trust_env=False, verify=NO_TLS) as client:
            await Http(client, "z").put_job("plain")
            before = (await client.get("/metrics")).text
            assert "deferd_follow_ups{" not in before
            assert "deferd_collections{" not in before
            for topic in ("a", "b", "c"):
                http = Http(client, topic)
                await http.reserve("a")
                await put_after(http)
                await http.put_job("b", on_conflict="append", delay=60)
            samples = samples_of((await client.get("/metrics")).text)
    for name in ("deferd_follow_ups", "deferd_collections"):
        assert value(samples, name, topic="a") == 1
        assert value(samples, name, topic="_other") == 2
        assert len([1 for metric, _ in samples if metric == name]) == 2
    assert value(samples, "deferd_jobs", topic="_other", state="reserved") == 2

"""A topic with several partitions over HTTP: no response names one of them."""

from __future__ import annotations

from typing import Any

import httpx

from tests.acceptance.http_calls import Http, Json, ok

IDS = [f"job-{number}" for number in range(24)]


async def put_all(http: Http, **fields: Any) -> None:
    jobs = [{"topic": http.topic, "id": job_id, **fields} for job_id in IDS]
    results = ok(await http.post("/jobs/batch", json={"jobs": jobs}))["results"]
    assert {result["status"] for result in results} == {201}


async def test_no_response_names_a_partition(http: Http) -> None:
    texts: list[str] = []

    async def note(response: httpx.Response) -> None:
        await response.aread()
        texts.append(response.text)

    http.client.event_hooks["response"].append(note)
    ok(await http.put(http.topic_path(), json={"partitions": 4}))
    await put_all(http, delay=3600, tags=[http.topic])
    select = {"state": "delayed", "topics": [http.topic]}
    for chosen in (select, {"tag": http.topic}, {"ids": [{"topic": http.topic, "id": job_id} for job_id in IDS]}):
        looked = ok(await http.post("/jobs/cancel", json={"select": chosen, "dry_run": True, "samples": 100}))
        assert {(one["topic"], one["id"]) for one in looked["samples"]} == {(http.topic, job_id) for job_id in IDS}
    now = {"select": select, "run_at": "2020-01-01T00:00:00Z"}
    assert ok(await http.post("/jobs/reschedule", json=now))["done"] == 24
    assert (await http.counts()) == {"ready": 24}
    for job_id in (*IDS[:3], "job-x"):
        why = ok(await http.get(http.job_path(job_id, "why")))
        assert why["state"] == (None if job_id == "job-x" else "ready")
    listed: list[Json] = []
    query: Json = {"limit": 5}
    while True:
        page = ok(await http.get(http.topic_path("jobs"), params=query))
        listed += page["jobs"]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert sorted((one["topic"], one["id"]) for one in listed) == sorted((http.topic, job_id) for job_id in IDS)
    held: list[Json] = []
    while len(held) < len(IDS):
        held += await http.pop(count=24)
    for job in held:
        ok(await http.post(http.job_path(job["id"], "bury"), json={"error": "no use"}))
    [group] = ok(await http.get("/dead", params={"topics": http.topic}))["groups"]
    assert (group["topic"], group["count"], group["error"]) == (http.topic, 24, "no use")
    error = {"reason": "buried", "error": "no use"}
    looked = ok(await http.post(http.topic_path("redrive"), json={**error, "dry_run": True}))
    assert (looked["matched"], looked["complete"]) == (24, True)
    response = await http.post(http.topic_path("redrive"), json={"ids": IDS[:4], "cutoff": looked["cutoff"]})
    assert ok(response)["redriven"] == 4
    redriven = await http.ended(ok(await http.post(http.topic_path("redrive"), json={"as_task": True}), 202)["id"])
    assert (redriven["topic"], redriven["done"]) == (http.topic, 20)
    purged = await http.ended(ok(await http.delete(http.topic_path(), params={"as_task": True}), 202)["id"])
    assert (purged["topic"], purged["done"]) == (http.topic, 24)
    await put_all(http)
    assert ok(await http.delete(http.topic_path()))["removed"] == 24
    ok(await http.get("/activity", params={"topics": http.topic}))
    assert len(texts) > 50
    assert not [text for text in texts if f"{http.topic}#" in text]

"""Requests to the console that no page sends."""

from __future__ import annotations

import contextlib
import html
import re

import httpx

from tests.acceptance.console.job_pages import Producer
from tests.acceptance.service_process import ServiceProcess


def test_an_action_without_ids_does_not_ignore_the_filter(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    with Producer(without_keys.url, "bulk-filter") as jobs:
        jobs.fail("a", "x", dead=True)
        for name in ("id", "error"):
            data = {"action": "purge", "state": "dead", name: "other", "cutoff": "2030-01-01T00:00:00Z"}
            refused = browser_like.post("/console/topics/bulk-filter/bulk", data=data)
            assert (refused.status_code, "Nothing was done" in refused.text) == (422, True)
        assert jobs.counts()["dead"] == 1


def test_streams_are_not_shared_as_regions_are(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    with Producer(without_keys.url, "streams") as jobs, contextlib.ExitStack() as stack:
        jobs.http.put("/topics/streams", json={"events": 10}).raise_for_status()
        jobs.put("before", delay=600)
        after = jobs.http.get("/events/latest?topics=streams").json()["last_event_id"]
        path = f"/console/events/stream?topics=streams&fragment=newest&after={after}"
        lines = [stack.enter_context(browser_like.stream("GET", path)).iter_lines() for _ in range(2)]
        for each in lines:
            assert next(each).startswith("retry")
        jobs.put("a", delay=600)
        for each in lines:
            assert next(line for line in each if line.startswith("data")).find('"id":"a"') > 0


def test_a_body_that_is_too_deep_is_refused(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    with Producer(without_keys.url, "deep") as jobs:
        jobs.put("a", delay=600)
    for depth in (300, 2000, 100_000):
        data = {"body": "[" * depth + "]" * depth}
        saved = browser_like.post("/console/topics/deep/jobs/a/edit", data=data)
        assert saved.status_code == 422, depth
        settings = browser_like.post("/console/topics/deep/settings", data={"backoff": data["body"]})
        assert settings.status_code == 422, depth


def test_saving_the_form_of_a_topic_keeps_its_partitions(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    with Producer(without_keys.url, "spread-out") as jobs:
        jobs.http.put("/topics/spread-out", json={"partitions": 4}).raise_for_status()
        page = browser_like.get("/console/topics/spread-out")
        assert 'name="partitions" value="4"' in page.text
        for form, partitions in (
            ({"ttr": "30", "partitions": "4"}, 4),
            ({"ttr": "31", "partitions": ""}, 4),
            ({"ttr": "32", "partitions": "8"}, 8),
        ):
            assert browser_like.post("/console/topics/spread-out/settings", data=form).status_code in {200, 303}
            settings = jobs.http.get("/topics/spread-out").json()["settings"]
            assert (str(settings["ttr"]), settings["partitions"]) == (form["ttr"], partitions)
        for refused, why in (("2", "at least 8"), ("2.5", "whole number"), ("65", "64"), ("1_6", "must be a number")):
            saved = browser_like.post("/console/topics/spread-out/settings", data={"partitions": refused})
            assert (saved.status_code, why in saved.text) == (422, True), refused
        links = re.findall(r'(?:href|hx-get)="(console/topics/spread-out(?:\?[^"]*)?)"', saved.text)
        assert links
        assert [link for link in links if browser_like.get(f"/{html.unescape(link)}").status_code != 200] == []
        assert jobs.http.get("/topics/spread-out").json()["settings"]["partitions"] == 8


def test_a_large_body_is_shown_as_it_was_put(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    body = '{"n":1.5,"rest":[' + ",".join(["[1]"] * 50_000) + "]}"
    path = "/console/topics/large/jobs/a"
    with Producer(without_keys.url, "large") as jobs:
        content = f'{{"topic":"large","id":"a","delay":600,"body":{body}}}'
        jobs.http.post("/jobs", content=content, headers={"content-type": "application/json"}).raise_for_status()
    assert browser_like.get(f"{path}/raw/body").text == body
    page = browser_like.get(f"{path}/part/body").text
    assert "The first 64,000 characters" in page
    assert "1.5," in page
    edited = browser_like.get(f"{path}/edit")
    assert (edited.status_code, "[1]" in edited.text) == (200, False)

"""Invalid input to every operation: the error names the field and the limit, and nothing is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.acceptance.http_calls import Http, ok, problem, refusal

_JSON = {"content-type": "application/json"}


async def nothing_is_stored(http: Http) -> bool:
    response = await http.get(http.topic_path())
    return bool(problem(response, 404, "topic_not_found"))


BAD_JOBS: list[tuple[dict[str, Any], str, str]] = [
    ({"id": "nul\0"}, "body.id", "1 to 255"),
    ({"delay": -0.001}, "body.delay", "at least 0 seconds"),
    ({"delay": 1, "run_at": "2030-01-01T00:00:00Z"}, "body", "exclude each other"),
    ({"backoff": {"kind": "fixed", "base": 2}}, "body.backoff.base", "not a known field"),
    ({"tags": ["a b"]}, "body.tags.0", "1 to 64"),
    ({"headers": {"x": "a\nb"}}, "body.headers.x", "no control characters"),
]
"""All rules are in tests/unit/contract/test_model.py."""


async def test_a_bad_job_is_refused_alone_and_in_a_batch(http: Http) -> None:
    for fields, field, message in BAD_JOBS:
        job = {"topic": http.topic, **fields}
        assert message in refusal(await http.post("/jobs", json=job), field)
        batch = {"jobs": [{"topic": http.topic}, job]}
        in_batch = field.replace("body", "body.jobs.1", 1)
        assert message in refusal(await http.post("/jobs/batch", json=batch), in_batch)
        assert await nothing_is_stored(http), fields


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
async def test_a_body_that_is_no_object_is_refused(http: Http, path: str) -> None:
    texts = [b"", b" ", b"{", b"[]", b"null", b"1", b'"text"', b"topic=t", b'{"topic":"t"}}', b"\x00"]
    for raw in (*texts, b'{"topic":"\xff"}'):
        refusal(await http.post(path, content=raw, headers=_JSON), "body")


async def test_a_body_over_the_limit_is_refused(http: Http) -> None:
    job = {"topic": http.topic, "body": "x" * 1024 * 1024}
    assert problem(await http.post("/jobs", json=job), 413, "payload_too_large")["limit_bytes"] == 1024 * 1024
    assert await nothing_is_stored(http)


async def test_a_body_of_exactly_the_limit_is_stored(http: Http) -> None:
    frame = json.dumps({"topic": http.topic, "id": "big", "body": ""}, separators=(",", ":"))
    raw = frame.replace('""', '"' + "x" * (1024 * 1024 - len(frame)) + '"')
    assert len(raw) == 1024 * 1024
    ok(await http.post("/jobs", content=raw, headers=_JSON), 201)
    assert len((await http.pop_one())["body"]) == 1024 * 1024 - len(frame)


async def test_all_invalid_values_are_listed_at_once(http: Http) -> None:
    job = {"topic": http.topic, "delay": -1, "ttr": 0, "colour": "red"}
    field_errors = problem(await http.post("/jobs", json=job), 422, "validation")["errors"]
    assert [(field_error["field"], field_error["value"], field_error["pointer"]) for field_error in field_errors] == [
        ("body.ttr", 0, "#/ttr"),
        ("body.delay", -1, "#/delay"),
        ("body.colour", "red", "#/colour"),
    ]


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("finish", {"receipt": 5}, "body.receipt"),
        ("release", {"delay": -1}, "body.delay"),
        ("release", {"error": "x" * 10_001}, "body.error"),
        ("bury", {"error": 5}, "body.error"),
        ("touch", {"ttr": 0.01}, "body.ttr"),
        ("touch", {"ttr": 86_401}, "body.ttr"),
        ("touch", {"progress": "x" * 1023}, "body.progress"),
        ("touch", {"progress": "é" * 600}, "body.progress"),
    ],
)
async def test_each_verb_checks_its_own_fields(http: Http, verb: str, body: dict[str, Any], field: str) -> None:
    await http.reserve("held")
    refusal(await http.post(http.job_path("held", verb), json=body), field)
    assert (await http.get_job("held"))["state"] == "reserved"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"delay": -1}, "body.delay"),
        ({"delay": 1, "run_at": "2030-01-01T00:00:00Z"}, "body"),
        ({"id": "other"}, "body.id"),
        ({"state": "ready"}, "body.state"),
    ],
)
async def test_a_bad_change_changes_nothing(http: Http, body: dict[str, Any], field: str) -> None:
    job = await http.put_job("same", delay=60)
    refusal(await http.patch(http.job_path("same"), json=body), field)
    assert await http.get_job("same") == job


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max_jobs": 0}, "body.max_jobs"),
        ({"ttr": "60"}, "body.ttr"),
        ({"paused": True}, "body.paused"),
        ({"backoff": {"kind": "schedule", "seconds": []}}, "body.backoff.seconds"),
    ],
)
async def test_bad_settings_are_refused(http: Http, body: dict[str, Any], field: str) -> None:
    refusal(await http.put(http.topic_path(), json=body), field)
    assert await nothing_is_stored(http)


@pytest.mark.parametrize("path", ["/jobs/{}/j", "/topics/{}", "/topics/{}/jobs", "/topics/{}/pop?wait=0"])
async def test_a_bad_topic_in_a_path_is_refused(http: Http, path: str) -> None:
    for topic in ("a b", "%2F", "a%2Fb", "..%2F..", "%00", "%ff", "é", "-", "x" * 129):
        assert "must match" in refusal(await http.get(path.format(topic)), "path.topic"), topic


async def test_invalid_topic_and_id_of_a_path_are_both_listed(http: Http) -> None:
    field_errors = problem(await http.get("/jobs/a b/c d"), 422, "validation")["errors"]
    assert [(field_error["field"], field_error["value"]) for field_error in field_errors] == [
        ("path.topic", "a b"),
        ("path.id", "c d"),
    ]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/jobs/t/j"),
        ("POST", "/jobs"),
        ("POST", "/jobs/batch"),
        ("PATCH", "/jobs/t/j"),
        ("POST", "/jobs/t/j/finish"),
        ("GET", "/topics/t"),
        ("PUT", "/topics/t"),
        ("POST", "/topics/t/pause"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
    ],
)
async def test_operations_without_parameters_refuse_any(http: Http, method: str, path: str) -> None:
    response = await http.client.request(method, path, params={"verbose": "1"})
    assert refusal(response, "query.verbose") == "is not a known parameter"


async def test_an_invalid_if_reserved_cancels_nothing(http: Http) -> None:
    await http.put_job("kept")
    response = await http.delete(http.job_path("kept"), params={"if_reserved": "ask"})
    assert refusal(response, "query.if_reserved") == "must be 'cancel' or 'refuse'"
    assert await http.has_job("kept")

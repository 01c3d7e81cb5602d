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
    ({"id": "a/b"}, "body.id", "1 to 255"),
    ({"id": "x" * 256}, "body.id", "1 to 255"),
    ({"id": ""}, "body.id", "1 to 255"),
    ({"id": "nul\0"}, "body.id", "1 to 255"),
    ({"delay": -1}, "body.delay", "at least 0 seconds"),
    ({"delay": -0.001}, "body.delay", "at least 0 seconds"),
    ({"delay": 1e18}, "body.delay", "at most 315576000 seconds"),
    ({"delay": 10**400}, "body.delay", "too large"),
    ({"delay": "1"}, "body.delay", "must be a number"),
    ({"delay": True}, "body.delay", "must be a number"),
    ({"delay": 1, "run_at": "2030-01-01T00:00:00Z"}, "body", "exclude each other"),
    ({"run_at": "2030-01-01T00:00:00"}, "body.run_at", "with a zone"),
    ({"run_at": "9999-12-31T23:59:59-12:00"}, "body.run_at", "10 years"),
    ({"run_at": 1893456000}, "body.run_at", "with a zone"),
    ({"ttr": 0}, "body.ttr", "at least 0.1 seconds"),
    ({"ttr": 86400.5}, "body.ttr", "at most 86400 seconds"),
    ({"ttl": 0}, "body.ttl", "at least 0.001 seconds"),
    ({"retain": -1}, "body.retain", "at least 0 seconds"),
    ({"dead_retain": -0.5}, "body.dead_retain", "at least 0 seconds"),
    ({"dead_retain": 315576001}, "body.dead_retain", "at most 315576000 seconds"),
    ({"time_limit": 0.09}, "body.time_limit", "at least 0.1 seconds"),
    ({"time_limit": "60"}, "body.time_limit", "must be a number"),
    ({"deadline": 0}, "body.deadline", "at least 0.001 seconds"),
    ({"deadline": 315576001}, "body.deadline", "at most 315576000 seconds"),
    ({"id": "a", "unique_for": 0}, "body.unique_for", "at least 0.001 seconds"),
    ({"unique_for": 5}, "body.unique_for", "needs an `id`"),
    ({"id": "a", "conflict_with": "dead"}, "body.conflict_with", "'any' or 'live'"),
    ({"id": "a", "if_reserved": "after"}, "body.if_reserved", "needs `on_conflict` `keep`, `replace` or `append`"),
    ({"if_reserved": "after", "on_conflict": "keep"}, "body.if_reserved", "needs an `id`"),
    ({"on_conflict": "append"}, "body.on_conflict", "`append` needs an `id`"),
    ({"id": "a", "max_items": 5}, "body.max_items", "needs `on_conflict` `append`"),
    ({"id": "a", "on_conflict": "append", "max_items": 10001}, "body.max_items", "at most 10000"),
    ({"id": "a", "max_wait": 5}, "body.max_wait", "needs `on_conflict` `replace` or `append`"),
    ({"max_wait": 5, "on_conflict": "replace"}, "body.max_wait", "needs an `id`"),
    (
        {"id": "a", "max_wait": 5, "delay": 6, "on_conflict": "replace"},
        "body.max_wait",
        "at least the `delay`, 6 seconds",
    ),
    ({"max_attempts": 0}, "body.max_attempts", "at least 1"),
    ({"backoff": {"kind": "linear"}}, "body.backoff", "exponential, fixed, schedule"),
    ({"backoff": {"kind": "fixed", "base": 2}}, "body.backoff.base", "not a known field"),
    ({"on_conflict": "ask"}, "body.on_conflict", "'reject', 'keep', 'replace' or 'append'"),
    ({"priority": 1}, "body.priority", "not a known field"),
    ({"tags": [f"t{number}" for number in range(9)]}, "body.tags", "at most 8 items"),
    ({"tags": ["x" * 65]}, "body.tags.0", "1 to 64"),
    ({"tags": ["a b"]}, "body.tags.0", "1 to 64"),
    ({"tags": ["x", "x"]}, "body.tags", "must not repeat a tag"),
    ({"tags": "x"}, "body.tags", "must be a list"),
    ({"headers": {f"h{number}": "" for number in range(17)}}, "body.headers", "at most 16 items"),
    ({"headers": {"x": "y" * 4096}}, "body.headers", "at most 4096 bytes"),
    ({"headers": {"x": "a\nb"}}, "body.headers.x", "no control characters"),
    ({"headers": {"x\x7f": ""}}, "body.headers", "without control characters"),
    ({"headers": {"": "x"}}, "body.headers", "not empty"),
    ({"headers": {"x": 1}}, "body.headers.x", "must be a string"),
]


async def test_a_bad_job_is_refused_alone_and_in_a_batch(http: Http) -> None:
    for fields, field, message in BAD_JOBS:
        job = {"topic": http.topic, **fields}
        assert message in refusal(await http.post("/jobs", json=job), field)
        batch = {"jobs": [{"topic": http.topic}, job]}
        in_batch = field.replace("body", "body.jobs.1", 1)
        assert message in refusal(await http.post("/jobs/batch", json=batch), in_batch)
        assert await nothing_is_stored(http), fields


async def test_a_bad_topic_is_refused(http: Http) -> None:
    for topic in ("", "-a", "a b", "a/b", "a,b", "é", "x" * 129, "a\0", "a\n", "a*", "{1}"):
        assert "1 to 128" in refusal(await http.post("/jobs", json={"topic": topic}), "body.topic"), topic


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400 + ".0", "0x10", "+1", "1."])
async def test_a_number_that_json_or_a_float_does_not_have_is_refused(http: Http, number: str) -> None:
    for field in ("delay", "body"):
        raw = f'{{"topic": "{http.topic}", "{field}": {number}}}'
        problem(await http.post("/jobs", content=raw, headers=_JSON), 422, "validation")
    assert await nothing_is_stored(http)


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
async def test_a_body_that_is_no_object_is_refused(http: Http, path: str) -> None:
    texts = [b"", b" ", b"{", b"[]", b"null", b"1", b'"text"', b"topic=t", b'{"topic":"t"}}', b"\x00"]
    for raw in (*texts, b'{"topic":"\xff"}'):
        refusal(await http.post(path, content=raw, headers=_JSON), "body")


async def test_half_a_surrogate_pair_is_refused(http: Http) -> None:
    raw = f'{{"topic": "{http.topic}", "body": "\\ud800"}}'
    assert "not valid JSON" in refusal(await http.post("/jobs", content=raw, headers=_JSON), "body")
    assert await nothing_is_stored(http)


async def test_deep_nesting_is_refused_with_the_limit(http: Http) -> None:
    raw = f'{{"topic": "{http.topic}", "body": ' + "[" * 10_000 + "]" * 10_000 + "}"
    message = refusal(await http.post("/jobs", content=raw, headers=_JSON), "body")
    assert message == "is nested deeper than 200 levels"
    assert await nothing_is_stored(http)


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


@pytest.mark.parametrize("count", [0, 1001])
async def test_a_batch_of_too_few_or_too_many_is_refused(http: Http, count: int) -> None:
    response = await http.post("/jobs/batch", json={"jobs": [{"topic": http.topic}] * count})
    assert ("1000 items" if count else "1 items") in refusal(response, "body.jobs")
    assert await nothing_is_stored(http)


async def test_all_invalid_values_are_listed_at_once(http: Http) -> None:
    job = {"topic": http.topic, "delay": -1, "ttr": 0, "colour": "red"}
    field_errors = problem(await http.post("/jobs", json=job), 422, "validation")["errors"]
    assert [(field_error["field"], field_error["value"], field_error["pointer"]) for field_error in field_errors] == [
        ("body.ttr", 0, "#/ttr"),
        ("body.delay", -1, "#/delay"),
        ("body.colour", "red", "#/colour"),
    ]


@pytest.mark.parametrize("verb", ["finish", "release", "touch", "bury"])
@pytest.mark.parametrize(
    ("body", "field"),
    [({"receipt": 5}, "body.receipt"), ({"receipt": "x" * 65}, "body.receipt"), ({"why": "x"}, "body.why")],
)
async def test_invalid_requests_about_a_delivery_change_nothing(
    http: Http, verb: str, body: dict[str, Any], field: str
) -> None:
    await http.reserve("held")
    before = await http.get_job("held")
    refusal(await http.post(http.job_path("held", verb), json=body), field)
    assert await http.get_job("held") == before


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("release", {"delay": -1}, "body.delay"),
        ("release", {"error": "x" * 10_001}, "body.error"),
        ("bury", {"error": 5}, "body.error"),
        ("touch", {"ttr": 0.01}, "body.ttr"),
        ("touch", {"ttr": 86_401}, "body.ttr"),
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

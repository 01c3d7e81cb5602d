"""Which requests are accepted, and the error messages for the others."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from deferd.api.validation_errors import field_errors
from deferd.contract import limits
from deferd.contract.backoff import ExponentialBackoff, FixedBackoff, ScheduleBackoff
from deferd.contract.errors import FieldError
from deferd.contract.model import (
    BuryJob,
    CancelBatch,
    ChangeJob,
    FinishBatch,
    PutBatch,
    PutJob,
    Redrive,
    ReleaseJob,
    TopicSettings,
    TouchJob,
)


def errors_of(model: type[BaseModel], value: Any) -> list[FieldError]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return field_errors(caught.value, "body", value)


def error_of(model: type[BaseModel], value: Any) -> tuple[str, str]:
    (field_error,) = errors_of(model, value)
    return ".".join(map(str, field_error.path)), field_error.message


def test_only_the_topic_is_needed() -> None:
    job = PutJob.model_validate({"topic": "orders"})
    assert (job.id, job.body, job.delay, job.run_at, job.on_conflict) == (None, None, None, None, "reject")


@pytest.mark.parametrize("name", ["a", "A.b_c:d-e", "0" * 128])
def test_topics_that_match_the_pattern_are_accepted(name: str) -> None:
    assert PutJob.model_validate({"topic": name}).topic == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "a\n", "a\0", "ä", "a,b", "a*", "x" * 129, "{a}"])
def test_topics_outside_the_pattern_are_refused(name: str) -> None:
    field, message = error_of(PutJob, {"topic": name})
    assert field == "body.topic"
    assert limits.TOPIC_PATTERN in message
    assert "1 to 128" in message


def test_ids_may_be_longer_than_topics() -> None:
    assert PutJob.model_validate({"topic": "t", "id": "x" * 255}).id == "x" * 255
    field, message = error_of(PutJob, {"topic": "t", "id": "x" * 256})
    assert field == "body.id"
    assert "1 to 255" in message


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"delay": -1}, "body.delay", "must be at least 0 seconds"),
        ({"delay": 315_576_001}, "body.delay", "must be at most 315576000 seconds"),
        ({"delay": 1e300}, "body.delay", "must be at most 315576000 seconds"),
        ({"delay": 10**400}, "body.delay", "is too large"),
        ({"delay": "5"}, "body.delay", "must be a number of seconds"),
        ({"delay": True}, "body.delay", "must be a number of seconds"),
        ({"delay": [1]}, "body.delay", "must be a number of seconds"),
        ({"delay": math.nan}, "body.delay", "must be a finite number"),
        ({"delay": math.inf}, "body.delay", "must be a finite number"),
        ({"ttr": 0.05}, "body.ttr", "must be at least 0.1 seconds"),
        ({"ttr": 86_401}, "body.ttr", "must be at most 86400 seconds"),
        ({"ttl": 0}, "body.ttl", "must be at least 0.001 seconds"),
        ({"retain": -0.1}, "body.retain", "must be at least 0 seconds"),
        ({"max_attempts": 0}, "body.max_attempts", "must be at least 1"),
        ({"max_attempts": 1_000_001}, "body.max_attempts", "must be at most 1000000"),
        ({"max_attempts": 1.5}, "body.max_attempts", "must be a whole number"),
        ({"max_attempts": True}, "body.max_attempts", "must be a whole number"),
        ({"max_attempts": 10**30}, "body.max_attempts", "must be at most 1000000"),
        ({"on_conflict": "ask"}, "body.on_conflict", "must be 'reject', 'keep', 'replace' or 'append'"),
        ({"id": 7}, "body.id", "must be a string"),
        ({"colour": "red"}, "body.colour", "is not a known field"),
        ({"backoff": {}}, "body.backoff", "must have a `kind` that is one of exponential, fixed, schedule"),
        ({"backoff": {"kind": "x"}}, "body.backoff", "must have a `kind` that is one of exponential, fixed, schedule"),
        ({"backoff": 3}, "body.backoff", "must be a JSON object"),
        ({"backoff": {"kind": "exponential", "base": 0}}, "body.backoff.base", "must be at least 1 seconds"),
        ({"backoff": {"kind": "fixed", "seconds": -1}}, "body.backoff.seconds", "must be at least 0 seconds"),
        ({"backoff": {"kind": "fixed", "jitter": 2}}, "body.backoff.jitter", "must be at most 1"),
        ({"backoff": {"kind": "fixed", "fixed": 2}}, "body.backoff.fixed", "is not a known field"),
        ({"backoff": {"kind": "schedule"}}, "body.backoff.seconds", "is required"),
        ({"backoff": {"kind": "schedule", "seconds": []}}, "body.backoff.seconds", "must have at least 1 items"),
        ({"backoff": {"kind": "schedule", "seconds": [1, -1]}}, "body.backoff.seconds.1", "must be at least 0 seconds"),
        (
            {"backoff": {"kind": "schedule", "seconds": [1] * 101}},
            "body.backoff.seconds",
            "must have at most 100 items",
        ),
    ],
)
def test_a_refusal_names_the_field_and_the_limit(fields: dict[str, Any], field: str, message: str) -> None:
    assert error_of(PutJob, {"topic": "t", **fields}) == (field, message)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"id": ""}, "body.id", "1 to 255"),
        ({"id": "nul\0"}, "body.id", "1 to 255"),
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
        ({"batch": "x" * 59}, "body.batch", "1 to 58"),
        (
            {"id": "a", "on_conflict": "append", "batch": "b"},
            "body.batch",
            "must be left out with `append` and `after`",
        ),
        (
            {"id": "a", "on_conflict": "keep", "if_reserved": "after", "batch": "b"},
            "body.batch",
            "must be left out with `append` and `after`",
        ),
        (
            {"id": "a", "max_wait": 5, "delay": 6, "on_conflict": "replace"},
            "body.max_wait",
            "at least the `delay`, 6 seconds",
        ),
        ({"tags": [f"t{number}" for number in range(9)]}, "body.tags", "at most 8 items"),
        ({"tags": ["x" * 65]}, "body.tags.0", "1 to 64"),
        ({"tags": ["a b"]}, "body.tags.0", "1 to 64"),
        ({"tags": ["x", "x"]}, "body.tags", "must not repeat a tag"),
        ({"tags": "x"}, "body.tags", "must be a list"),
        ({"group": "a b"}, "body.group", "1 to 128"),
        ({"group": "g" * 129}, "body.group", "1 to 128"),
        ({"group": 7}, "body.group", "must be a string"),
        ({"priority": 10}, "body.priority", "at most 9"),
        ({"priority": -1}, "body.priority", "at least 0"),
        ({"priority": 1.5}, "body.priority", "whole number"),
        ({"headers": {f"h{number}": "" for number in range(17)}}, "body.headers", "at most 16 items"),
        ({"headers": {"x": "y" * 4096}}, "body.headers", "at most 4096 bytes"),
        ({"headers": {"x": "a\nb"}}, "body.headers.x", "no control characters"),
        ({"headers": {"x\x7f": ""}}, "body.headers", "without control characters"),
        ({"headers": {"": "x"}}, "body.headers", "not empty"),
        ({"headers": {"x": 1}}, "body.headers.x", "must be a string"),
    ],
)
def test_the_terms_of_a_put_are_checked(fields: dict[str, Any], field: str, message: str) -> None:
    found_field, found_message = error_of(PutJob, {"topic": "t", **fields})
    assert found_field == field
    assert message in found_message


@pytest.mark.parametrize("instant", ["2030-01-01T00:00:00", "2030-01-01", "tomorrow", "", 1893456000, True])
def test_an_instant_must_be_rfc_3339_with_an_offset(instant: Any) -> None:
    field, message = error_of(PutJob, {"topic": "t", "run_at": instant})
    assert field == "body.run_at"
    assert "must be an RFC 3339 instant with a zone" in message


def test_an_instant_is_at_most_ten_years_ahead() -> None:
    near = datetime.fromtimestamp(time.time(), UTC) + timedelta(seconds=limits.DELAY_MAX_S - 60)
    assert PutJob.model_validate({"topic": "t", "run_at": near.isoformat()}).run_at == near
    far = near + timedelta(minutes=2)
    field, message = error_of(PutJob, {"topic": "t", "run_at": far.isoformat()})
    assert field == "body.run_at"
    assert message == "must be at most 315576000 seconds (10 years) ahead"


@pytest.mark.parametrize("model", [PutJob, ChangeJob])
def test_delay_and_run_at_exclude_each_other(model: type[BaseModel]) -> None:
    value = {"delay": 1, "run_at": "2030-01-01T00:00:00Z"} | ({"topic": "t"} if model is PutJob else {})
    field, message = error_of(model, value)
    assert field == "body"
    assert message == "`delay` and `run_at` exclude each other: give one of them"


def test_a_missing_topic_is_named() -> None:
    (field_error,) = errors_of(PutJob, {})
    assert (field_error.path, field_error.message, field_error.value) == (("body", "topic"), "is required", None)


def test_every_field_error_of_a_batch_is_reported_with_its_index() -> None:
    jobs = [{"topic": "t"}, {"topic": "t", "delay": -1}, {"topic": "t", "backoff": {"kind": "fixed", "seconds": -2}}]
    found = {field_error.path: field_error.value for field_error in errors_of(PutBatch, {"jobs": jobs})}
    assert found == {("body", "jobs", 1, "delay"): -1, ("body", "jobs", 2, "backoff", "seconds"): -2}


@pytest.mark.parametrize(
    ("model", "item"),
    [(PutBatch, {"topic": "t"}), (FinishBatch, {"id": "j"}), (CancelBatch, {"id": "j", "if_reserved": "refuse"})],
    ids=["put", "finish", "cancel"],
)
def test_a_batch_holds_1_to_1000_jobs(model: type[BaseModel], item: dict[str, Any]) -> None:
    model.model_validate({"jobs": [item] * 1000})
    assert error_of(model, {"jobs": [item] * 1001}) == ("body.jobs", "must have at most 1000 items")
    assert error_of(model, {"jobs": []}) == ("body.jobs", "must have at least 1 items")
    assert error_of(model, {"jobs": {}}) == ("body.jobs", "must be a list")


def test_thousands_of_field_errors_are_reported_as_one() -> None:
    value = {"topic": "t"} | {f"x{number}": 1 for number in range(6000)}
    assert error_of(PutJob, value) == ("body", "has 6000 invalid values, too many to list")


@pytest.mark.parametrize(
    ("model", "value", "field", "message"),
    [
        (ReleaseJob, {"delay": -1}, "body.delay", "must be at least 0 seconds"),
        (ReleaseJob, {"error": "x" * 10_001}, "body.error", "must have at most 10000 characters"),
        (ReleaseJob, {"receipt": "x" * 65}, "body.receipt", "must have at most 64 characters"),
        (BuryJob, {"reason": "x"}, "body.reason", "is not a known field"),
        (TouchJob, {"ttr": 0}, "body.ttr", "must be at least 0.1 seconds"),
        (TopicSettings, {"max_jobs": 0}, "body.max_jobs", "must be at least 1"),
        (TopicSettings, {"paused": True}, "body.paused", "is not a known field"),
        *(
            (TopicSettings, {"limits": given}, f"body.limits{field}", message)
            for given, field, message in (
                (5, "", "must be a JSON object"),
                ({"max_in_flight": 0}, ".max_in_flight", "must be at least 1"),
                ({"max_in_flight": 1_000_001}, ".max_in_flight", "must be at most 1000000"),
                ({"max_in_flight": 1.0}, ".max_in_flight", "must be a whole number"),
                ({"rate": {}}, ".rate.count", "is required"),
                ({"rate": {"count": 1_000_001}}, ".rate.count", "must be at most 1000000"),
                ({"rate": {"count": 1, "per": 0.09}}, ".rate.per", "must be at least 0.1 seconds"),
                ({"rate": {"count": 1, "per": 86_400.1}}, ".rate.per", "must be at most 86400 seconds"),
                ({"rate": {"count": 5, "burst": 0}}, ".rate.burst", "must be at least 1"),
                ({"rate": {"count": 5, "burst": 6}}, ".rate.burst", "must be at most the `count`, 5"),
                (
                    {"rate": {"count": 2500, "burst": 2}},
                    ".rate.burst",
                    "must be at least 3, what the rate allows in a millisecond",
                ),
                ({"per_group": {"weight": 2}}, ".per_group.weight", "is not a known field"),
                ({"groups": {"a": {"weight": 101}}}, ".groups.a.weight", "must be at most 100"),
                ({"groups": {f"g{number}": {} for number in range(101)}}, ".groups", "must have at most 100 items"),
                (
                    {"groups": {"a b": {"weight": 1}}},
                    ".groups.a b",
                    f"must match {limits.GROUP_PATTERN} (1 to 128 of A-Z a-z 0-9 . _ : -, the first a letter or digit)",
                ),
            )
        ),
        (Redrive, {"ids": []}, "body.ids", "must have at least 1 items"),
        (Redrive, {"limit": 0}, "body.limit", "must be at least 1"),
        (FinishBatch, {"jobs": [{}]}, "body.jobs.0.id", "is required"),
        (CancelBatch, {"jobs": [{}]}, "body.jobs.0.id", "is required"),
        (CancelBatch, {"jobs": [{"id": "a", "force": True}]}, "body.jobs.0.force", "is not a known field"),
    ],
)
def test_the_other_requests_are_as_strict(model: type[BaseModel], value: Any, field: str, message: str) -> None:
    assert error_of(model, value) == (field, message)


def test_backoffs_have_the_documented_defaults() -> None:
    exponential = PutJob.model_validate({"topic": "t", "backoff": {"kind": "exponential"}}).backoff
    fixed = PutJob.model_validate({"topic": "t", "backoff": {"kind": "fixed"}}).backoff
    schedule = PutJob.model_validate({"topic": "t", "backoff": {"kind": "schedule", "seconds": [120, 600]}}).backoff
    assert exponential == ExponentialBackoff(kind="exponential", base=2, cap=212, jitter=0)
    assert fixed == FixedBackoff(kind="fixed", seconds=10, jitter=0)
    assert schedule == ScheduleBackoff(kind="schedule", seconds=[120, 600], then="dead", jitter=0)


def test_null_differs_from_an_omitted_field() -> None:
    assert ChangeJob.model_validate({"ttl": None}).model_fields_set == {"ttl"}
    assert ChangeJob.model_validate({}).model_fields_set == set()

"""The form of a topic's settings: every setting of the API is in it, and text becomes what the API takes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from deferd.console.views.forms import Form
from deferd.console.views.topics import FIELDS
from deferd.contract.model import TopicSettings


def read(texts: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    form = Form(FIELDS, texts)
    return form.body(), form.errors


def test_the_form_has_every_setting() -> None:
    assert {field.name for field in FIELDS} == set(TopicSettings.model_fields)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ttr", "30", 30),
        ("ttr", " 0.5 ", 0.5),
        ("ttr", "1h30m", 5400),
        ("max_jobs", "1e3", 1000),
        ("backoff", '{"kind": "fixed", "seconds": 10}', {"kind": "fixed", "seconds": 10}),
        ("limits", '{"rate": {"count": 5}}', {"rate": {"count": 5}}),
        ("window", "office", "office"),
        ("durability", "replicated:1", "replicated:1"),
    ],
)
def test_text_becomes_a_value_and_back(name: str, text: str, value: Any) -> None:
    settings, errors = read({name: text, "unknown": "1"})
    assert (settings, errors) == ({name: value}, {})
    assert read(dict(Form.of_stored(FIELDS, settings).texts)) == (settings, {})


@pytest.mark.parametrize(
    ("name", "text"),
    [("ttr", "soon"), ("ttr", "nan"), ("ttr", "inf"), ("max_jobs", "1_000"), ("backoff", "{"), ("window", "[")],
)
def test_what_is_no_value_is_an_error_at_its_field(name: str, text: str) -> None:
    form = Form(FIELDS, {name: text, "retain": "1"})
    assert form.body() == {"retain": 1}
    assert list(form.errors) == [name]
    shown = {field.name: field for field in form.shown()}
    assert (shown[name].value, shown[name].error) == (text, form.errors[name])
    assert shown["retain"].error is None


@pytest.mark.parametrize(
    "text", ['{"a":' * 300 + "1" + "}" * 300, "[" * 100_000, '{"seconds": 123456789012345678901234567890}']
)
def test_what_can_not_be_sent_is_an_error_at_its_field(text: str) -> None:
    settings, errors = read({"backoff": text})
    assert (settings, list(errors)) == ({}, ["backoff"])


def test_a_large_number_can_be_sent() -> None:
    settings, errors = read({"max_jobs": "1e300"})
    assert not errors
    orjson.dumps(settings)


def test_settings_without_a_field_are_kept() -> None:
    assert Form(FIELDS, {}).unshown({"ttr": 1, "later": {"a": 1}}) == {"later": {"a": 1}}


def test_all_errors_of_settings_are_named_each_at_its_field() -> None:
    backoff = '{"kind": "fixed", "seconds": -1, "jitter": 7}'
    form = Form(FIELDS, {"ttr": "soon", "max_attempts": "-1", "retain": "5", "backoff": backoff})
    form.check(TopicSettings, form.body())
    assert form.errors == {
        "ttr": "is not a duration: write seconds, such as 90, or 90s, 30m, 24h, 7d, 1h30m, 250ms",
        "max_attempts": "must be at least 1",
        "backoff": "seconds must be at least 0 seconds; jitter must be at most 1",
    }

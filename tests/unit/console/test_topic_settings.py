"""The form of a topic's settings: every setting of the API is in it, and text becomes what the API takes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from deferd.console.views.topics import (
    FIELDS,
    field_values,
    fields_of,
    refused_settings,
    settings_of,
    unknown_settings,
)
from deferd.contract.model import TopicSettings


def test_the_form_has_every_setting() -> None:
    assert {field.name for field in FIELDS} == set(TopicSettings.model_fields)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ttr", "30", 30),
        ("ttr", " 0.5 ", 0.5),
        ("max_jobs", "1e3", 1000),
        ("backoff", '{"kind": "fixed", "seconds": 10}', {"kind": "fixed", "seconds": 10}),
        ("window", "office", "office"),
        ("durability", "replicated:1", "replicated:1"),
    ],
)
def test_text_becomes_a_value_and_back(name: str, text: str, value: Any) -> None:
    settings, errors = settings_of({name: text, "unknown": "1"})
    assert (settings, errors) == ({name: value}, {})
    assert settings_of(field_values(settings)) == (settings, {})


@pytest.mark.parametrize(
    ("name", "text"), [("ttr", "soon"), ("ttr", "nan"), ("ttr", "inf"), ("backoff", "{"), ("window", "[")]
)
def test_what_is_no_value_is_an_error_at_its_field(name: str, text: str) -> None:
    settings, errors = settings_of({name: text, "retain": "1"})
    assert settings == {"retain": 1}
    assert list(errors) == [name]
    shown = {field.name: field for field in fields_of({name: text}, errors)}
    assert (shown[name].value, shown[name].error) == (text, errors[name])
    assert shown["retain"].error is None


@pytest.mark.parametrize(
    "text", ['{"a":' * 300 + "1" + "}" * 300, "[" * 100_000, '{"seconds": 123456789012345678901234567890}']
)
def test_what_can_not_be_sent_is_an_error_at_its_field(text: str) -> None:
    settings, errors = settings_of({"backoff": text})
    assert (settings, list(errors)) == ({}, ["backoff"])


def test_a_large_number_can_be_sent() -> None:
    settings, errors = settings_of({"max_jobs": "1e300"})
    assert not errors
    orjson.dumps(settings)


def test_settings_without_a_field_are_kept() -> None:
    assert unknown_settings({"ttr": 1, "later": {"a": 1}}) == {"later": {"a": 1}}


def test_all_errors_of_settings_are_named_each_at_its_field() -> None:
    backoff = '{"kind": "fixed", "seconds": -1, "jitter": 7}'
    settings, errors = settings_of({"ttr": "soon", "max_attempts": "-1", "retain": "5", "backoff": backoff})
    errors |= refused_settings(settings)
    assert errors == {
        "ttr": "must be a number",
        "max_attempts": "must be at least 1",
        "backoff": "seconds must be at least 0 seconds; jitter must be at most 1",
    }

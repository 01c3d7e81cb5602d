"""Fields that the console hides."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from deferd.console.json_text import parse
from deferd.console.masks import MASKED, Masks


def masked(patterns: str, response: Any) -> Any:
    return json.loads(Masks(patterns.split(",")).response(json.dumps(response).encode()))


@pytest.mark.parametrize(
    ("patterns", "body", "shown"),
    [
        ("password", {"password": "x", "user": "y"}, {"password": MASKED, "user": "y"}),
        ("password", {"deep": [{"Password": {"any": 1}}]}, {"deep": [{"Password": MASKED}]}),
        ("*.token", {"token": 1, "a": {"token": 2}}, {"token": MASKED, "a": {"token": MASKED}}),
        ("card.*", {"card": {"number": 1, "cvc": [2]}, "n": 3}, {"card": {"number": MASKED, "cvc": MASKED}, "n": 3}),
        ("card.number", {"number": 1, "card": [{"number": 2}]}, {"number": 1, "card": [{"number": MASKED}]}),
        ("*secret*", {"my_secret_key": 1, "secrets": 2, "x": 3}, {"my_secret_key": MASKED, "secrets": MASKED, "x": 3}),
        ("body", [1, 2], MASKED),
        ("none", "text", "text"),
    ],
)
def test_fields_are_hidden_by_the_end_of_their_path(patterns: str, body: Any, shown: Any) -> None:
    assert masked(patterns, {"jobs": [{"id": "a", "body": body}]}) == {"jobs": [{"id": "a", "body": shown}]}


def test_headers_results_and_waiting_bodies_are_searched_too() -> None:
    job = {
        "body": 1,
        "headers": {"authorization": "x"},
        "result": {"token": "y"},
        "progress": {"token": 4, "done": 5},
        "followed_by": {"body": {"token": 3}},
    }
    assert masked("token,headers.authorization", job) == {
        "body": 1,
        "headers": {"authorization": MASKED},
        "result": {"token": MASKED},
        "progress": {"token": MASKED, "done": 5},
        "followed_by": {"body": {"token": MASKED}},
    }


def test_only_fields_of_jobs_are_hidden() -> None:
    topic = {"topic": "token", "settings": {"token": 1}, "next_cursor": "token=a"}
    assert masked("token", topic) == topic


def test_errors_are_hidden_whole() -> None:
    job = {"last_error": "timeout", "attempts_log": [{"attempt": 1, "error": "timeout"}, {"attempt": 2}]}
    assert masked("password", job) == {
        "last_error": MASKED,
        "attempts_log": [{"attempt": 1, "error": MASKED}, {"attempt": 2}],
    }
    no_error = {"error": None, "last_error": "", "text": "paused for 1 h", "errors": ["SMTP 421"]}
    assert masked("password", no_error) == no_error


@pytest.mark.parametrize(
    ("error", "text", "shown"),
    [
        ("no hunter22", 'Attempt 1 failed with "no hunter22"; the next is due.', f'Attempt 1 failed with "{MASKED}'),
        (" no hunter22\nat line 1", 'It was buried: "no hunter22".', f'It was buried: "{MASKED}'),
        ("no user hunter22 in this list", 'It was buried: "no user hunter22 in …".', f'It was buried: "{MASKED}'),
        ("hunter22", "quoted in another form: HUNTER22", MASKED),
        (" \n", 'It was buried: "".', MASKED),
    ],
)
def test_sentences_end_where_they_quote_the_error(error: str, text: str, shown: str) -> None:
    assert masked("password", {"reasons": [{"text": text, "error": error}]}) == {
        "reasons": [{"text": shown, "error": MASKED}]
    }


def test_alerts_do_not_quote_the_most_frequent_error() -> None:
    alert = {
        "code": "dying",
        "text": "t: 3 jobs died in the last hour, all of them with the error no user hunter*",
        "top_error": "no user hunter*",
    }
    late = {"code": "late", "text": "late", "top_error": None}
    assert masked("password", {"alerts": [alert, late]}) == {
        "alerts": [
            {
                **alert,
                "text": f"t: 3 jobs died in the last hour, all of them with the error {MASKED}",
                "top_error": MASKED,
            },
            late,
        ]
    }


def test_filters_of_changes_and_tasks_have_no_error() -> None:
    filters = ['{"error":"no hunter22","state":"dead"}', '{"state":"dead"}', '{"error":"no hunter22 and more…']
    shown = masked("password", {"activity": [{"filter": one} for one in filters]})["activity"]
    assert [change["filter"] for change in shown] == [MASKED, filters[1], MASKED]
    task = {"id": "a", "select": {"error": "no hunter22", "reason": "buried"}}
    assert masked("password", task) == {"id": "a", "select": {"error": MASKED, "reason": "buried"}}


def test_numbers_stay_exact() -> None:
    content = b'{"body":{"n":12345678901234567890.000000000000000000001,"password":1}}'
    expected = '{"body":{"n":12345678901234567890.000000000000000000001,"password":"•••••"}}'
    assert Masks(["password"]).response(content).decode() == expected


def test_without_patterns_a_response_is_not_touched() -> None:
    content = b"not even JSON"
    assert Masks().response(content) is content
    assert not Masks()


def test_what_can_not_be_read_is_not_shown() -> None:
    assert Masks(["a"]).response(b"{password}") == b"null"


def test_whether_something_is_hidden() -> None:
    masks = Masks(["password", "headers.key"])
    assert masks.hides(parse('{"a":[{"password":null}]}'))
    assert not masks.hides(parse('{"key":1}'))
    assert masks.hides(parse('{"key":"1"}'), "headers")


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("item", [1, [[[[{"x": 1}]]]]], ids=["flat", "nested"])
def test_a_body_is_masked_in_a_time_linear_in_its_size(item: Any) -> None:
    masks = Masks(["password", "*.token", "card.*", "*secret*"])

    def masked_in_s(items: int) -> float:
        content, taken = json.dumps({"body": [item] * items}).encode(), []
        for _ in range(3):
            began_s = time.thread_time()
            masks.response(content)
            taken.append(time.thread_time() - began_s)
        return max(min(taken), 0.0005)

    small, large = masked_in_s(1000), masked_in_s(8000)
    assert large < small * 8 * 4, f"8 times the body: {small} s, {large} s"

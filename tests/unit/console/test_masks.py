"""Fields that the console hides."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from deferd.console.json_text import parse
from deferd.console.masks import MASKED, Masks


def masked(patterns: str, response: Any, more: Any = None) -> Any:
    content = Masks(patterns.split(",")).response(
        json.dumps(response).encode(), json.dumps(more).encode() if more is not None else b""
    )
    return json.loads(content)


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
        "followed_by": {"body": {"token": 3}},
    }
    assert masked("token,headers.authorization", job) == {
        "body": 1,
        "headers": {"authorization": MASKED},
        "result": {"token": MASKED},
        "followed_by": {"body": {"token": MASKED}},
    }


def test_only_fields_of_jobs_are_hidden() -> None:
    topic = {"topic": "token", "settings": {"token": 1}, "next_cursor": "token=a"}
    assert masked("token", topic) == topic


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("no such user: hunter22", f"no such user: {MASKED}"),
        ('sent {"password": "a b", "x": 1}', f'sent {{"password": {MASKED}'),
        (r'sent "{\"password\": \"a b\"}"', rf'sent "{{\"password\": {MASKED}'),
        ("GET /?password=abc&x=1", f"GET /?password={MASKED}"),
        ("Password: abc", f"Password: {MASKED}"),
        ("{'password': 'a b'}", f"{{'password': {MASKED}"),
        (r'sent {"password": "a\"b", "x": 1}', f'sent {{"password": {MASKED}'),
        ("password: Bearer x\nnext", f"password: {MASKED}\nnext"),
        ('password={"x":\n "y"}', f"password={MASKED}"),
        ('{"password" => "x"}', f'{{"password" => {MASKED}'),
        ('data["password"] = a\\b', f'data["password"] = {MASKED}'),
        ("password:\n  x\n  y", f"password:\n  {MASKED}\n  y"),
        ("refused hunter2", f"refused {MASKED}"),
        ('failed with "no hunt…" (released)', f'failed with "no {MASKED}…" (released)'),
        ("went hun", "went hun"),
        ('cut off {"password": "abc', f'cut off {{"password": {MASKED}'),
        ("the password is wrong", "the password is wrong"),
    ],
)
def test_texts_of_errors_do_not_quote_hidden_values(error: str, shown: str) -> None:
    job = {"body": {"password": "hunter22"}, "last_error": error, "attempts_log": [{"error": error}]}
    found = masked("password", job)
    assert found["last_error"] == found["attempts_log"][0]["error"] == shown


def test_texts_of_another_response_about_the_job_are_searched_for_its_values() -> None:
    why = {"reasons": [{"text": 'Attempt 1 failed with "hunter22 and 4111"', "error": "hunter22 and 4111"}]}
    job = {"body": {"password": ["hunter22", {"pin": 4111}]}}
    found = masked("password", why, job)
    assert found["reasons"][0]["error"] == f"{MASKED} and {MASKED}"
    assert "hunter22" not in str(found)


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


def test_texts_with_too_many_hidden_values_are_hidden_whole() -> None:
    job = {"body": {"password": [f"secret-{number}" for number in range(10_001)]}, "last_error": "timeout"}
    assert masked("password", job)["last_error"] == MASKED


def cpu_s(patterns: str, text: str) -> float:
    masks, taken = Masks(patterns.split(",")), []
    for _ in range(3):
        began_s = time.thread_time()
        masks.text(text)
        taken.append(time.thread_time() - began_s)
    return max(min(taken), 0.0005)


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("patterns", ["*token", "pass*", "*a*b*c", "a*a*a*b", "token"])
@pytest.mark.parametrize("unit", ["a", "a-", "token ", "token", "pass=", "ab", '"', "a: \n", "token\\"])
def test_the_search_for_names_takes_time_linear_in_the_text(patterns: str, unit: str) -> None:
    small, large = (cpu_s(patterns, unit * (size // len(unit))) for size in (8_000, 64_000))
    assert large < small * 8 * 4, f"8 times the text: {small} s, {large} s"


@pytest.mark.parametrize(
    ("patterns", "name", "matches"),
    [("*token", "my-token", True), ("a*b*c", "axxbyyc", True), ("a*b*c", "acb", False), ("*a*", "bab", True)],
)
def test_stars_in_names_of_texts(patterns: str, name: str, matches: bool) -> None:
    assert (Masks([patterns]).text(f"{name}=1") == f"{name}={MASKED}") == matches


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


@pytest.mark.parametrize(
    ("secrets", "error"),
    [
        ([f"aaaa{number:04x}" for number in range(3900)], "aaaa0…" * 20 + "z" * 9880),
        ([f"aaaa{number:04x}" for number in range(1000)], "aaaa0…" * 20 + "z" * 9880),
        (["a" * 9000 + "b", "a" * 9000 + "d"], "a" * 9979 + "c" + "…" * 20),
    ],
    ids=["many values", "many cuts", "long values"],
)
def test_a_search_takes_a_short_time_for_any_job(secrets: list[str], error: str) -> None:
    """It is made on the event loop for responses of up to 64 kB: others wait for it."""
    attempts = [{"attempt": number, "error": error[:1000]} for number in range(20)]
    job = {"id": "x", "body": {"password": secrets}, "last_error": error, "attempts_log": attempts}
    content = json.dumps(job, ensure_ascii=False).encode()
    assert len(content) < 128 * 1024
    began_s = time.process_time()
    shown = Masks(["password"]).response(content)
    assert time.process_time() - began_s < 0.2
    assert secrets[0].encode() not in shown
    assert b"aaaa0" not in shown


def test_overlapping_beginnings_of_values_are_hidden_together() -> None:
    """A value that ends like what follows a cut has two ends, with beginnings of two values before them."""
    assert Masks(["password"]).text("no abbab...…", {"abbab.a", "b...aaa"}) == f"no {MASKED}…"

"""A body of which the values are not parsed has those of one that is, and the same errors."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.api import large_values, request_body
from deferd.contract import limits
from deferd.contract.errors import InvalidInput
from deferd.contract.json_depth import is_deeper
from deferd.contract.model import PutJob
from deferd.engine.record import json_bytes

MANY = b"[]," * 100_000 + b"0"
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner, max_size=6), max_leaves=60
)

TOO_DEEP = f"body.body: is nested deeper than {limits.VALUE_DEPTH_MAX} levels"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_values, "_PIECE_BYTES", 16)


def read(raw: bytes) -> Any:
    return large_values.read_object(raw, ("body",))


def plain(value: Any) -> Any:
    """What a reader of the stored JSON gets."""
    return json.loads(json_bytes(value))


@pytest.mark.usefixtures("small_pieces")
@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_any_value_is_kept_without_whitespace(value: Any, indent: int | None, ascii_only: bool) -> None:
    raw = json.dumps({"body": value}, indent=indent, ensure_ascii=ascii_only).encode()
    kept = orjson.dumps(read(raw)["body"])
    assert kept.decode() == json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only)


@pytest.mark.usefixtures("small_pieces")
@given(
    value=VALUES.filter(lambda value: isinstance(value, list | dict) and len(value) > 1),
    ascii_only=st.booleans(),
    at=st.integers(0, 10_000),
    put=st.sampled_from([b"", b",", b"]", b"[", b"}", b'"', b"\\", b"\xff", b"0", b"1e999", b" ", b":"])
    | st.lists(st.sampled_from([b"\\", b"\\\\", b"\\ud83d", b"\\uDE00"]), max_size=3).map(b"".join),
)
def test_a_damaged_value_is_refused_or_read_as_at_once(value: Any, ascii_only: bool, at: int, put: bytes) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    at %= len(text)
    raw = b'{"body":%b%b%b}' % (text[:at], put, text[at + 1 :])
    try:
        expected = request_body.parse_object(raw)["body"]
    except InvalidInput:
        with pytest.raises((ValueError, InvalidInput)):
            read(raw)
        return
    assert plain(read(raw)["body"]) == plain(expected)


@given(value=VALUES)
def test_the_depth_of_a_value_is_that_of_its_lists_and_objects(value: Any) -> None:
    depth = large_values._depth(large_values._outside_of_strings(json.dumps(value).encode()))
    assert is_deeper(value, depth - 1) is (depth > 0)
    assert not is_deeper(value, depth)


def test_values_of_users_are_kept_as_json_wherever_they_are() -> None:
    job = b'{"topic":"t","tags":["a"],"body":[%b]}' % MANY
    raw = b'{"jobs":[{"topic":"t","body":{"a": 1}}, %b],"job":%b,"result":[[1 ]],"put":[{"body":[2]}],"n":[7]}' % (
        job,
        job,
    )
    assert large_values.has_many_parts(raw)
    value = request_body.parse_object(raw)
    assert [type(one["body"]) for one in (*value["jobs"], value["job"], *value["put"])] == [orjson.Fragment] * 4
    assert plain(value) == json.loads(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"topic":"t","body":[%b,]}' % MANY, "body: is not valid JSON: trailing comma in array (byte 300023)"),
        (b'{"topic":"t","body":[,%b]}' % MANY, "body: is not valid JSON: "),
        (b'{"topic":"t","body":[%b}' % MANY, "body: is not valid JSON: "),
        (b'{"topic":"t","body":[%b]}]' % MANY, "body: is not valid JSON: "),
        (b'[{"topic":"t","body":[%b]}]' % MANY, "body: must be a JSON object"),
        (b'{"body":[%b,1e400]}' % MANY, "body.body: has a number beyond 1.8e308"),
        (b'{"jobs":[{},{"body":[%b,1e400]}]}' % MANY, "body.jobs.1.body: has a number beyond"),
        (b'{"body":[%b,-%b]}' % (MANY, b"1" * 4301), "body.body: has a number beyond 1.8e308"),
        (b'{"body":%b%b%b}' % (b"[" * 190, MANY, b"]" * 190), TOO_DEEP),
        (b'{"body":[%b,%b%b]}' % (MANY, b"[" * 190, b"]" * 190), TOO_DEEP),
        (b'{"body":' + b"[" * 200_000, f"body: is nested deeper than {limits.JSON_DEPTH_MAX} levels"),
        (b'{"body":{"a\xff":[%b]},"body":1}' % MANY, "body: is not valid JSON: "),
        (b'{"body":["\\ud83d",%b]}' % MANY, "body: is not valid JSON: "),
        (b'{"topic":"t","tags":[%b]}' % MANY, "body: has more lists and objects"),
        (b'{"jobs":[{"tags":[%b]}]}' % MANY, "body.jobs.0: has more lists and objects"),
        (b'{"jobs":[%b]}' % (b"{}," * 60_000 + b"{}"), "body.jobs: has more lists and objects"),
        (b'{"jobs":[%b]}' % MANY, "body.jobs: has more lists and objects"),
        (b'{"jobs":[{"body":[%b]}%b]}' % (MANY, b",1" * 1000), "body.jobs: has more lists and objects"),
        (b'{"jobs":[{"put":[{"body":[%b]}]}]}' % MANY, "body.jobs.0: has more lists and objects"),
        (b'{"job":{"job":{"body":[%b]}}}' % MANY, "body.job: has more lists and objects"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        request_body.parse_object(raw)
    assert str(refused.value).startswith(message)


def test_an_integer_of_as_many_digits_as_parsers_read_is_kept() -> None:
    raw = b'{"body":[%b,%b]}' % (MANY, b"1" * 4300)
    assert json_bytes(request_body.parse_object(raw)["body"]) == raw[len(b'{"body":') : -1]


def test_null_is_no_value() -> None:
    raw = b'{"result":null,"body": null ,"put":[{"body":[%b]}]}' % MANY
    assert {name: value for name, value in read(raw).items() if name != "put"} == {"result": None, "body": None}


def test_the_deepest_value_is_read_and_its_model_accepts_it() -> None:
    raw = b'{"topic":"t","body":%b%b%b}' % (b"[" * 188, MANY, b"]" * 188)
    job = PutJob.model_validate(request_body.parse_object(raw))
    assert json_bytes(job.body) == raw[len(b'{"topic":"t","body":') : -1]

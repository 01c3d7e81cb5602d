"""Reading JSON bodies: limits, media types, and invalid JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from deferd.api import request_body
from deferd.api.problem_details import UnsupportedMediaType
from deferd.api.request_body import parse_object, read_body
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput, PayloadTooLarge
from deferd.contract.json_values import is_deeper
from deferd.contract.model import PutJob
from deferd.engine.record import json_bytes

_LIMIT = 10


def receive_from(messages: list[Message]) -> Receive:
    async def receive() -> Message:
        return messages.pop(0)

    return receive


def pieces(*bodies: bytes) -> list[Message]:
    last = len(bodies) - 1
    return [{"type": "http.request", "body": body, "more_body": index < last} for index, body in enumerate(bodies)]


async def read(messages: list[Message], headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    return await read_body({"type": "http", "headers": list(headers)}, receive_from(messages), _LIMIT)


def field_error_in(raw: bytes) -> FieldError:
    with pytest.raises(InvalidInput) as caught:
        parse_object(raw)
    assert len(caught.value.field_errors) == 1
    return caught.value.field_errors[0]


async def test_pieces_of_exactly_the_limit_are_read() -> None:
    assert await read(pieces(b"{", b"", b"x" * (_LIMIT - 1))) == b"{" + b"x" * (_LIMIT - 1)


async def test_an_announced_length_over_the_limit_is_refused_without_reading() -> None:
    messages = pieces(b"never read")
    with pytest.raises(PayloadTooLarge) as caught:
        await read(messages, [(b"content-length", b"11")])
    assert caught.value.limit_bytes == _LIMIT
    assert len(messages) == 1


async def test_reading_ends_as_soon_as_the_limit_is_passed() -> None:
    messages = pieces(b"123456", b"123456", b"never read")
    with pytest.raises(PayloadTooLarge):
        await read(messages)
    assert len(messages) == 1


async def test_a_disconnect_within_the_body_is_noticed() -> None:
    with pytest.raises(ClientDisconnect):
        await read([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])


@pytest.mark.parametrize(
    "media_type",
    [b"application/json", b"Application/JSON; charset=utf-8", b"application/problem+json", b" application/vnd.x+json "],
)
async def test_json_media_types_are_read(media_type: bytes) -> None:
    assert await read(pieces(b"{}"), [(b"content-type", media_type)]) == b"{}"


@pytest.mark.parametrize("media_type", [b"text/plain", b"application/xml", b"", b"application/jsonp", b"json", b"\xff"])
async def test_other_media_types_are_refused(media_type: bytes) -> None:
    with pytest.raises(UnsupportedMediaType):
        await read(pieces(b"{}"), [(b"content-type", media_type)])


async def test_without_a_body_the_media_type_does_not_matter() -> None:
    assert await read(pieces(b""), [(b"content-type", b"text/plain")]) == b""


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a":1}', {"a": 1}),
        (b' \n{"a":"\\u0000"}\t', {"a": "\0"}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":1e100}', {"a": 1e100}),
        (b'{"a":' + b"9" * 300 + b"}", {"a": int("9" * 300)}),
        (b'{"a":"1e999 is a text"}', {"a": "1e999 is a text"}),
        (b'{"a":1e-999}', {"a": 0.0}),
        ('{"a":"é\\ud83d\\ude00"}'.encode(), {"a": "é😀"}),
    ],
)
def test_objects_are_read(raw: bytes, value: dict[str, Any]) -> None:
    assert parse_object(raw) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"nothing",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":01}',
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":1}{"a":1}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":' + b"9" * 5000 + b"}",
        '{"a":1}'.encode("utf-16"),
        b"\x00",
    ],
)
def test_invalid_json_is_refused(raw: bytes) -> None:
    field_error = field_error_in(raw)
    assert field_error.path == ("body",)
    assert field_error.message.startswith("is not valid JSON: ")


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"text"', b"null", b"true"])
def test_json_other_than_an_object_is_refused(raw: bytes) -> None:
    assert field_error_in(raw).message == "must be a JSON object"


@pytest.mark.parametrize("depth", [limits.JSON_DEPTH_MAX + 2, 10_000])
def test_deep_nesting_is_refused_with_the_limit(depth: int) -> None:
    assert field_error_in(b'{"a":' + b"[" * depth + b"]" * depth + b"}").message == "is nested deeper than 200 levels"


def test_nesting_up_to_the_limit_is_read() -> None:
    depth = limits.JSON_DEPTH_MAX - 1
    assert "a" in parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"a":1e400}', ("body", "a")),
        (b'{"a":-1E+0400}', ("body", "a")),
        (b'{"a":{"b":[0,1e309]}}', ("body", "a", "b", 1)),
        (b'{"a":' + b"9" * 400 + b".0}", ("body", "a")),
        (b'{"a":1' + b"0" * 250 + b"e99}", ("body", "a")),
    ],
)
def test_a_number_beyond_a_float_is_refused_with_its_location(raw: bytes, path: tuple[str | int, ...]) -> None:
    field_error = field_error_in(raw)
    assert field_error.path == path
    assert "1.8e308" in field_error.message


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(inner) for inner in value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


_TEXTS = st.text(alphabet='a"\\[]{}é\n', max_size=6)
_VALUES = st.recursive(
    st.none() | _TEXTS | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(_VALUES, st.integers(0, 6))
def test_the_depth_of_a_value_is_counted(value: Any, levels: int) -> None:
    assert (depth(value) > levels) is is_deeper(value, levels)


@pytest.mark.parametrize(
    "text",
    ["1.7976931348623157e308", "1.7976931348623158e308", "17976931348623157" + "0" * 292, "1e-400", "0e999"],
)
def test_the_largest_and_smallest_numbers_are_read(text: str) -> None:
    assert parse_object(b'{"a":%b}' % text.encode()) == {"a": json.loads(text)}


@pytest.mark.parametrize("text", ["1.7976931348623159e308", "0." + "9" * 10 + "e310", "-1e+000309", "1E999"])
def test_numbers_just_beyond_the_largest_are_refused(text: str) -> None:
    assert field_error_in(b'{"a":[%b]}' % text.encode()).path == ("body", "a", 0)


MANY = b"[]," * 100_000 + b"0"
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner, max_size=6), max_leaves=60
)

TOO_DEEP = f"body.body: is nested deeper than {limits.VALUE_DEPTH_MAX} levels"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "_PIECE_BYTES", 16)


def read_values(raw: bytes) -> Any:
    return request_body.read_object(raw, ("body",))


def plain(value: Any) -> Any:
    """What a reader of the stored JSON gets."""
    return json.loads(json_bytes(value))


@pytest.mark.usefixtures("small_pieces")
@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_any_value_is_kept_without_whitespace(value: Any, indent: int | None, ascii_only: bool) -> None:
    raw = json.dumps({"body": value}, indent=indent, ensure_ascii=ascii_only).encode()
    kept = orjson.dumps(read_values(raw)["body"])
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
            read_values(raw)
        return
    assert plain(read_values(raw)["body"]) == plain(expected)


@given(value=VALUES)
def test_the_depth_of_a_value_is_that_of_its_lists_and_objects(value: Any) -> None:
    depth = request_body._depth(request_body._outside_of_strings(json.dumps(value).encode()))
    assert is_deeper(value, depth - 1) is (depth > 0)
    assert not is_deeper(value, depth)


def test_values_of_users_are_kept_as_json_wherever_they_are() -> None:
    job = b'{"topic":"t","tags":["a"],"body":[%b]}' % MANY
    raw = b'{"jobs":[{"topic":"t","body":{"a": 1}}, %b],"job":%b,"result":[[1 ]],"put":[{"body":[2]}],"n":[7]}' % (
        job,
        job,
    )
    assert request_body.has_many_parts(raw)
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
    assert {name: value for name, value in read_values(raw).items() if name != "put"} == {"result": None, "body": None}


def test_the_deepest_value_is_read_and_its_model_accepts_it() -> None:
    raw = b'{"topic":"t","body":%b%b%b}' % (b"[" * 188, MANY, b"]" * 188)
    job = PutJob.model_validate(request_body.parse_object(raw))
    assert json_bytes(job.body) == raw[len(b'{"topic":"t","body":') : -1]

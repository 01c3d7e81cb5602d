"""Reading JSON bodies: limits, media types, and invalid JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from deferd.api.problem_details import UnsupportedMediaType
from deferd.api.request_body import parse_object, read_body
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput, PayloadTooLarge
from deferd.contract.json_depth import is_deeper

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


async def test_pieces_are_put_together() -> None:
    assert await read(pieces(b"{", b"", b"}")) == b"{}"


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert await read(pieces(b"x" * _LIMIT)) == b"x" * _LIMIT


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


async def test_a_compressed_body_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType, match="gzip"):
        await read(pieces(b"{}"), [(b"content-encoding", b"gzip")])


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

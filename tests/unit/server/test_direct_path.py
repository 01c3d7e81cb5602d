"""Which request lines have a direct path, which blocks of headers are remembered, and which requests have the same."""

from __future__ import annotations

import pytest

from deferd.api.app import create_app
from deferd.api.operation import OperationRoute
from deferd.api.responses import Header
from deferd.server.http.direct_path import _KNOWN_MAX, _LINE_MAX_BYTES, _SEEN_MAX, DirectPath, _is_usual, _key
from deferd.settings import Settings

JSON = b"\r\nHost: x\r\nContent-Type: application/json"


def headers_of(block: bytes) -> list[Header]:
    """The headers as httptools finds them."""
    lines = [line.partition(b":") for line in block.strip(b"\r\n").split(b"\r\n")]
    return [(name.lower(), value.strip(b" \t")) for name, _, value in lines]


def test_blocks_that_differ_in_the_length_of_the_body_have_the_same_key() -> None:
    keys = {_key(b"%b\r\nContent-Length: %d\r\n" % (JSON, length), length) for length in (0, 7, 4096)}
    assert len(keys) == 1
    assert None not in keys


@pytest.mark.parametrize(
    ("block", "body_bytes"),
    [
        (b"\r\nHost: x\r\nContent-Length: 7\r\n", 8),
        (b"\r\nHost: x\r\nContent-Length: 07\r\n", 7),
        (b"\r\nHost: x\r\nContent-Length:7\r\n", 7),
        (b"\r\nHost: x\r\nCONTENT-LENGTH: 7\r\n", 7),
        (b"\r\nHost: x\r\n", 7),
        (b"\r\nHost: x\r\nContent-L\0\r\n", 0),
    ],
)
def test_a_block_that_does_not_say_the_length_of_the_body_has_no_key(block: bytes, body_bytes: int) -> None:
    assert _key(block, body_bytes) is None


@pytest.mark.parametrize(
    "block",
    [
        b"\r\nHost: xength: 7\r\nContent-L\r\n",
        b"\r\nHost: x\r\nContent-Length: 7\r\nContent-Length: 7\r\n",
        b"\r\nHost: x\r\nContent-Length: 7\r\nX-Strength: 7\r\n",
        b"\r\nHost: x\r\nX-Strength: 7\r\n",
        b"\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n",
    ],
)
def test_no_other_block_has_the_key_of_a_usual_one(block: bytes) -> None:
    assert _key(block, 7) != _key(b"\r\nHost: x\r\nContent-Length: 7\r\n", 7)


@pytest.mark.parametrize(
    ("block", "is_usual"),
    [
        (b"%b\r\nContent-Length: 7\r\n" % JSON, True),
        (b"\r\nhost: x\r\ncontent-length: 7\r\n", True),
        (b"\r\nHost: x\r\nAccept: */*\r\n", True),
        (b"\r\nHost: x\r\nX-Strength: 7\r\nCONTENT-LENGTH: 7\r\n", False),
        (b"\r\nHost: x\r\nX-Strength: 7\r\nContent-Length: 7\r\n", False),
        (b"\r\nHost: x\r\nX-Strength: 7\r\n", False),
        (b"\r\nHost:x\r\n", False),
        (b"\r\nHost: x \r\n", False),
        (b"\r\nHost: x\r\nContent-Type: text/plain\r\n", False),
        (b"\r\nHost: x\r\nContent-Encoding: gzip\r\n", False),
        (b"\r\nHost: x\r\nTraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n", False),
        (b"\r\nHost: x\r\nX-Long: %b\r\n" % (b"x" * 1024), False),
        (b"\r\nHost: x" + b"\r\na: b" * 97 + b"\r\n", True),
        (b"\r\nHost: x" + b"\r\na: b" * 98 + b"\r\n", False),  # with an instant and a trace context they are 101
    ],
)
def test_only_usual_blocks_are_remembered(block: bytes, is_usual: bool) -> None:
    key = _key(block, 7) or block
    assert _is_usual(block, headers_of(block), key) is is_usual


@pytest.mark.parametrize("length", [b"Content-Length: 2", b"CONTENT-LENGTH: 0"])
def test_a_block_without_its_body_is_not_remembered(length: bytes) -> None:
    block = b"\r\nHost: x\r\n%b\r\n" % length
    key = _key(block, 0)
    assert key is not None
    assert not _is_usual(block, headers_of(block), key)


@pytest.mark.parametrize("times", [1, 2])
def test_a_bounded_number_of_blocks_is_remembered(times: int) -> None:
    service = create_app(Settings(), "")
    [put] = [one for one in service.routes if isinstance(one, OperationRoute) and one.operation_id == "put_job"]
    direct_path = DirectPath(service)
    for number in range(_SEEN_MAX + 10):
        head = b"POST /jobs HTTP/1.1\r\nHost: x\r\nX-Request-Id: %d\r\n\r\n" % number
        for _ in range(times):
            direct_path.learn(head, put, [(b"host", b"x"), (b"x-request-id", b"%d" % number)])
    assert len(direct_path._known) == (0 if times == 1 else 10)
    assert len(direct_path._known) <= _KNOWN_MAX
    assert len(direct_path._seen_once) == (10 if times == 1 else 0)


# Request lines


@pytest.fixture(scope="module")
def direct_path() -> DirectPath:
    return DirectPath(create_app(Settings(), ""))


@pytest.mark.parametrize(
    ("line", "is_found", "is_kept"),
    [
        (b"POST /jobs HTTP/1.1", True, True),
        (b"GET /topics/mail/pop HTTP/1.1", True, True),
        (b"POST /topics/mail/pop?wait=5&count=2 HTTP/1.1", True, True),
        (b"POST /jobs/mail/1/finish HTTP/1.1", True, False),
        (b"DELETE /jobs/mail/1 HTTP/1.1", True, False),
        (b"POST /jobs HTTP/1.0", False, False),
        (b"POST /jobs\xff HTTP/1.1", False, False),
        (b"", False, False),
        (b"GET /topics/mail/pop?consumer=%b HTTP/1.1" % (b"x" * _LINE_MAX_BYTES), True, False),
    ],
)
def test_only_short_lines_that_repeat_are_kept(
    direct_path: DirectPath, line: bytes, is_found: bool, is_kept: bool
) -> None:
    assert (direct_path._find_verb(line) is not None) is is_found
    assert (line in direct_path._lines) is is_kept


def test_a_bounded_number_of_lines_is_kept(direct_path: DirectPath) -> None:
    for number in range(_KNOWN_MAX + 10):
        assert direct_path._find_verb(b"GET /topics/t%d/pop HTTP/1.1" % number) is not None
        assert len(direct_path._lines) <= _KNOWN_MAX


def test_a_kept_line_means_what_it_meant_before(direct_path: DirectPath) -> None:
    line = b"GET /topics/mail/pop?wait=3 HTTP/1.1"
    found = direct_path._find_verb(line)
    assert found is not None
    assert direct_path._lines[line] == found == (found[0], ("mail", "wait=3"))


def test_a_line_without_a_query_has_an_empty_one(direct_path: DirectPath) -> None:
    found = direct_path._find_verb(b"POST /topics/mail,post.*/pop HTTP/1.1")
    assert found is not None
    assert found[1] == ("mail,post.*", "")

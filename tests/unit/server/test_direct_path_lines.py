"""Which first lines of requests are remembered by the direct path."""

from __future__ import annotations

import pytest

from deferd.api.app import create_app
from deferd.server.http.direct_path import _KNOWN_MAX, _LINE_MAX_BYTES, DirectPath
from deferd.settings import Settings


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

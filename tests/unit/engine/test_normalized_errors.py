"""Error texts that differ only in their values count as one."""

from __future__ import annotations

import pytest

from deferd.engine.inspection.normalized_errors import normalized


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("order 1042 not found", "order * not found"),
        ("order-1042 not found", "order-* not found"),
        ("order 502 not found", "order * not found"),
        ("timeout after 3.21s", "timeout after *s"),
        ("KeyError: 'customer-12'", "KeyError: '*'"),
        ('could not open "/tmp/x"', 'could not open "*"'),
        ("no user 'mary@example.org'", "no user '*'"),
        ('said "no such user here"', 'said "*"'),
        (f"KeyError: '{'k' * 61}'", "KeyError: '*'"),
        ("exit of 17 workers", "exit of * workers"),
        ("can't open file '/x/y': it isn't there", "can't open file '*': it isn't there"),
        ("job 550e8400-e29b-dead-a716-446655440000 is gone", "job * is gone"),
        ("at 0x7f3a9c", "at *"),
        ("object deadbeef01 is bad", "object * is bad"),
        ("it is a bad face", "it is a bad face"),
        ("refused at 2026-11-22T10:20:30.123Z", "refused at *"),
        ("no route to 10.1.2.3:5432", "no route to *"),
        ("first line 1\nsecond line", "first line *"),
        ("\n\n  indented  ", "indented"),
        ("", ""),
        ("an unclosed \"quote 'here", "an unclosed \"quote 'here"),
    ],
)
def test_what_varies_is_replaced(error: str, line: str) -> None:
    assert normalized(error) == line


@pytest.mark.parametrize(
    "error",
    [
        "the payment service responded with 502",
        "HTTP 503: Service Unavailable",
        "status=404",
        "SMTP 421",
        "error: 550 no such user",
        "[Errno 111] Connection refused",
        "HTTPError: 502 Bad Gateway",
        "requests.exceptions.HTTPError: 404 Client Error",
        "ApiError(503)",
        "Timeout: 504",
        "job failed: ServiceUnavailableError: 503",
        "caused by HTTPException(404)",
        "<Response [502]>",
        "HTTPStatusError: Server error '502 Bad Gateway'",
        "[Errno 2] No such file or directory",
        "[WinError 10061] refused",
        "exit code 1",
        "killed by signal 9",
        "ORA-00942: table or view does not exist",
    ],
)
def test_statuses_say_what_went_wrong_and_stay(error: str) -> None:
    assert normalized(error) == error


@pytest.mark.parametrize(
    "error",
    [
        "KeyError: 'tax_rate'",
        "KeyError: 'email'",
        "'NoneType' object has no attribute 'total'",
        "No module named 'shop.orders'",
        'duplicate key value violates unique constraint "orders_pkey"',
        "no header `content-type`",
    ],
)
def test_quoted_names_say_what_went_wrong_and_stay(error: str) -> None:
    assert normalized(error) == error


def test_a_status_at_the_beginning_stays() -> None:
    assert normalized("421 4.7.0 try again") == "421 * try again"
    assert normalized("621 times") == "* times"


def test_long_lines_are_cut() -> None:
    line = normalized("x" * 10_000)
    assert (len(line), line[-1]) == (200, "…")

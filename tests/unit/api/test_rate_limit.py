"""The rate limit of a key, on a clock that the test controls."""

from __future__ import annotations

import pytest

from deferd.api.auth.api_keys import Limit
from deferd.api.auth.rate_limit import Bucket


def headers(bucket: Bucket, now_s: float = 0) -> dict[bytes, bytes]:
    lines = (bucket.header_lines % bucket.state(now_s)).decode().splitlines()
    return dict(line.encode().split(b": ") for line in lines)


def test_a_burst_passes_and_further_requests_wait() -> None:
    bucket = Bucket(Limit(2, 3), now_s=100)
    assert [bucket.take(100) for _ in range(3)] == [0, 0, 0]
    assert bucket.take(100) == pytest.approx(0.5)
    assert bucket.take(100.25) == pytest.approx(0.25)
    assert bucket.take(100.5) == 0


def test_a_refused_request_takes_no_token() -> None:
    bucket = Bucket(Limit(1, 1), now_s=0)
    assert bucket.take(0) == 0
    for _ in range(100):
        assert bucket.take(0.5) == pytest.approx(0.5)
    assert bucket.take(1) == 0


def test_the_average_is_the_rate() -> None:
    bucket = Bucket(Limit(10, 5), now_s=0)
    passed = sum(bucket.take(ms / 1000) == 0 for ms in range(10_000))
    assert passed == pytest.approx(5 + 100, abs=1)


def test_an_idle_bucket_holds_no_more_than_the_burst() -> None:
    bucket = Bucket(Limit(100, 2), now_s=0)
    assert [bucket.take(1e6) == 0 for _ in range(3)] == [True, True, False]


def test_headers_report_the_state() -> None:
    bucket = Bucket(Limit(2, 5), now_s=0)
    assert headers(bucket) == {b"ratelimit-policy": b'"requests";q=5;w=3', b"ratelimit": b'"requests";r=5;t=0'}
    bucket.take(0)
    assert headers(bucket)[b"ratelimit"] == b'"requests";r=4;t=1'
    for _ in range(9):
        bucket.take(0)
    assert headers(bucket)[b"ratelimit"] == b'"requests";r=0;t=3'


def test_headers_report_the_state_when_they_are_written() -> None:
    """The response to a pop is sent up to a minute after the request was counted."""
    bucket = Bucket(Limit(0.5, 4), now_s=0)
    for _ in range(4):
        bucket.take(0)
    assert headers(bucket, 0)[b"ratelimit"] == b'"requests";r=0;t=8'
    assert headers(bucket, 5)[b"ratelimit"] == b'"requests";r=2;t=3'
    assert headers(bucket, 60)[b"ratelimit"] == b'"requests";r=4;t=0'
    assert [bucket.take(60) == 0 for _ in range(5)] == [True] * 4 + [False]

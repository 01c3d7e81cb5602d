"""Input that people type or pipe into the command line is parsed, or is a usage error."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deferd.cli.framework import values
from deferd.cli.jobs.put_stream import BadLine, JobLines
from deferd.contract.durations import UNITS_S
from tests.drawn_input import contents, drawn, json_scalars, json_values, objects_with, outcome, plain_texts, texts

READERS: list[Callable[[str], Any]] = [
    values.duration,
    values.duration_or_none,
    values.whole,
    values.whole_or_none,
    values.instant,
    values.json_value,
    values.json_object,
    values.names,
    values.window,
    values.body,
    values.backoff,
    values.service_urls,
    values.key,
    values.timeout,
    values.retry_time,
    values.count_from_1,
]
near_values = st.one_of(
    texts,
    st.lists(st.sampled_from(["1", "30", "0.5", "ms", "s", "m", "h", "d", "w", "-", ".", "9" * 320]), max_size=6).map(
        "".join
    ),
    st.lists(
        st.sampled_from(
            ["exponential", "fixed", "schedule", ":", ",", "2", "1h", "0.1", "inf", "nan", "dead", "9" * 320]
        ),
        max_size=8,
    ).map("".join),
    st.lists(
        st.sampled_from(["http", "https", "://", "a", "[", "]", "::1", ":80", ":x", "@", "?", "/", ",", "%"]),
        max_size=8,
    ).map("".join),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    contents.map(os.fsdecode),
)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@drawn(200)
@given(text=near_values)
@example("{" * 5000)
@example("9" * 5000)
def test_a_text_is_read_or_refused_in_a_few_words(read: Callable[[str], Any], text: str) -> None:
    value, refused = outcome(lambda: read(text), click.BadParameter)
    assert len(str(refused)) < 1000
    if isinstance(value, float):
        assert math.isfinite(value)


@drawn(300)
@given(parts=st.dictionaries(st.sampled_from([*UNITS_S]), st.integers(0, 10_000), min_size=1), data=st.data())
def test_a_duration_is_the_sum_of_its_parts(parts: dict[str, int], data: st.DataObject) -> None:
    order = data.draw(st.permutations([*parts]))
    text = "".join(f"{parts[unit]}{unit}" for unit in order)
    assert values.duration(text) == pytest.approx(sum(parts[unit] * UNITS_S[unit] for unit in parts), abs=0.001)


@drawn(200)
@given(seconds=st.integers(0, 10**12).map(lambda ms: ms / 1000))
def test_seconds_are_read_as_they_were_written(seconds: float) -> None:
    assert seconds == values.duration(f"{seconds:.3f}")


# Lines of jobs


def read_jobs(content: bytes, cuts: list[int], **options: Any) -> tuple[list[dict[str, Any]], list[int], int | None]:
    """The jobs of a pipe into which `content` comes in pieces, the lines they stood on, and the bad line, if any."""
    reading, writing = os.pipe()
    edges = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    pieces = [content[start:end] for start, end in itertools.pairwise(edges)]
    lines = JobLines(reading, {"topic": "t", "delay": 5}, **options)
    jobs: list[dict[str, Any]] = []
    numbers: list[int] = []
    try:
        os.set_blocking(writing, False)
        for piece in pieces:
            with contextlib.suppress(BlockingIOError):
                os.write(writing, piece)
        os.close(writing)
        while (batch := lines.batch()) is not None:
            jobs += batch.jobs
            numbers += batch.lines
    except BadLine as bad:
        return jobs, numbers, bad.number
    finally:
        os.close(reading)
    return jobs, numbers, None


line_ends = st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n"])


@drawn(200)
@given(bodies=st.lists(st.tuples(json_values, line_ends), max_size=12), cuts=st.lists(st.integers(0, 2000), max_size=4))
def test_every_line_becomes_a_job_however_it_is_cut(bodies: list[tuple[Any, bytes]], cuts: list[int]) -> None:
    content = b"".join(json.dumps(body).encode() + end for body, end in bodies)
    jobs, numbers, bad = read_jobs(content, cuts, whole_jobs=False)
    assert bad is None
    assert [body for body, _ in bodies] == [job["body"] for job in jobs]
    assert numbers == sorted(set(numbers))


whole_jobs = objects_with(
    {
        "id": st.sampled_from(["a", "no id", ""]),
        "body": json_scalars,
        "delay": st.integers(-1, 5),
        "run_at": st.sampled_from(["2030-01-31T09:30:00Z", "soon"]),
        "topic": plain_texts,
    },
    other=json_scalars,
)


@drawn(300)
@given(
    lines=st.lists(
        st.one_of(contents, whole_jobs.map(lambda job: json.dumps(job).encode()), st.just(b"\0")), max_size=6
    ),
    whole=st.booleans(),
)
def test_bytes_are_jobs_up_to_a_line_that_is_named(lines: list[bytes], whole: bool) -> None:
    content = b"\n".join(lines)
    jobs, numbers, bad = read_jobs(content, [], whole_jobs=whole)
    count = content.count(b"\n") + 1
    assert len(jobs) == len(numbers)
    assert all(1 <= number <= count for number in numbers)
    assert bad is None or (numbers[-1:] < [bad] and bad <= count)


def test_a_line_with_only_a_nul_is_not_reported_as_too_long() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\0\n")
    os.close(writing)
    with os.fdopen(reading), pytest.raises(BadLine, match="not JSON"):
        JobLines(reading, {"topic": "t"}, whole_jobs=False).batch()


@pytest.mark.parametrize("line", [b"1e999", b"[1, -1E+400]", b"9" * 400 + b".0"])
def test_a_line_with_an_infinite_number_is_named(line: bytes) -> None:
    assert read_jobs(b"1\n" + line, [], whole_jobs=False)[2] == 2

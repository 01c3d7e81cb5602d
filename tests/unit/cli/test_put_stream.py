"""Lines of JSON become batches of jobs: all of them, in order, as they come, and none after a bad one."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferd.cli.jobs import put_stream
from deferd.cli.jobs.put_stream import BadLine, Batch, JobLines


class Pipe:
    """A pipe; JobLines reads what is written to it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._writer: threading.Thread | None = None

    def lines(self, text: bytes, *, whole_jobs: bool = False, **job: Any) -> JobLines:
        """Write it all, in a thread since a pipe holds little, and close."""

        def write() -> None:
            with contextlib.suppress(BrokenPipeError), os.fdopen(self.writing, "wb") as file:
                file.write(text)

        self._writer = threading.Thread(target=write)
        self._writer.start()
        return JobLines(self.reading, {"topic": "t", **job}, whole_jobs=whole_jobs)

    def close(self) -> None:
        os.close(self.reading)
        if self._writer is not None:
            self._writer.join(10)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def batches(lines: JobLines) -> list[Batch]:
    found = []
    while (batch := lines.batch()) is not None:
        found.append(batch)
    return found


def test_every_line_is_a_body(pipe: Pipe) -> None:
    found = batches(pipe.lines(b'{"n": 1}\n"text"\nnull\n[1, 2]', delay=60))  # the last one may come on its own
    jobs = [job for batch in found for job in batch.jobs]

    assert [{"n": 1}, "text", None, [1, 2]] == [job["body"] for job in jobs]
    assert {("t", 60)} == {(job["topic"], job["delay"]) for job in jobs}
    assert [1, 2, 3, 4] == [line for batch in found for line in batch.lines]


def test_batches_hold_up_to_1000_jobs_in_order(pipe: Pipe) -> None:
    found = batches(pipe.lines(b"".join(b"%d\n" % number for number in range(25_000))))

    assert list(range(25_000)) == [job["body"] for batch in found for job in batch.jobs]
    assert max(len(batch.jobs) for batch in found) <= 1000
    assert sum(len(str(number)) + 1 for number in range(25_000)) == found[-1].end_byte


def test_long_lines_make_small_batches(tmp_path: Path) -> None:
    path = tmp_path / "bodies.ndjson"
    path.write_bytes((b'"' + b"x" * 200_000 + b'"\n') * 7)
    with path.open("rb") as file:
        found = batches(JobLines(file.fileno(), {"topic": "t"}, whole_jobs=False))

    assert [3, 3, 1] == [len(batch.jobs) for batch in found]


def test_empty_lines_and_foreign_line_ends_are_skipped(pipe: Pipe) -> None:
    [batch] = batches(pipe.lines(b"\xef\xbb\xbf1\r\n\r\n  \n2\r\n"))

    assert ([1, 2], [1, 4]) == ([job["body"] for job in batch.jobs], batch.lines)


def test_lines_that_have_arrived_do_not_wait_for_more() -> None:
    reading, writing = os.pipe()
    lines = JobLines(reading, {"topic": "t"}, whole_jobs=False)
    try:
        os.write(writing, b'1\n2\n{"unfinished": ')
        first = lines.batch()
        os.write(writing, b"3}\n")
        second = lines.batch()
    finally:
        os.close(writing)
    third = lines.batch()
    os.close(reading)

    assert first is not None
    assert second is not None
    assert [[1, 2], [{"unfinished": 3}]] == [[job["body"] for job in batch.jobs] for batch in (first, second)]
    assert third is None


def test_a_bad_line_comes_after_the_jobs_before_it(pipe: Pipe) -> None:
    lines = pipe.lines(b'1\n2\n{"a": \n4\n')
    batch = lines.batch()

    assert batch is not None
    assert [1, 2] == batch.lines
    for _ in range(2):
        with pytest.raises(BadLine, match=r'^line 3: not JSON \(.*\): \{"a": $'):
            lines.batch()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"NaN", "not JSON"),
        (b"\xff", "not JSON"),
        (b'"\\ud800"', "not JSON"),
        (b"1 2", "not JSON"),
    ],
)
def test_values_that_are_not_json_are_refused(pipe: Pipe, line: bytes, problem: str) -> None:
    with pytest.raises(BadLine, match=f"line 1: {problem}"):
        pipe.lines(line).batch()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"1", "not a JSON object"),
        (b'{"delay": -1}', "delay: Input should be greater than or equal to 0"),
        (b'{"delay": 1, "run_at": "2030-01-31T09:30:00Z"}', "exclude each other"),
        (b'{"bdy": 1}', "bdy: Extra inputs are not permitted"),
        (b'{"topic": "no topic"}', "topic: "),
        (b'{"on_conflict": "append"}', "on_conflict: `append` needs an `id`"),
    ],
)
def test_a_whole_job_is_checked(pipe: Pipe, line: bytes, problem: str) -> None:
    with pytest.raises(BadLine, match=f"line 1: .*{problem}"):
        pipe.lines(line, whole_jobs=True).batch()


def test_the_fields_of_a_whole_job_override_the_options(pipe: Pipe) -> None:
    text = b'{"id": "a"}\n{"topic": "u", "delay": 5}\n{"run_at": "2030-01-31T09:30:00Z", "body": 1}\n'
    [batch] = batches(pipe.lines(text, whole_jobs=True, delay=60, ttr=7))

    assert [
        {"topic": "t", "delay": 60, "ttr": 7, "id": "a"},
        {"topic": "u", "delay": 5, "ttr": 7},
        {"topic": "t", "ttr": 7, "run_at": "2030-01-31T09:30:00Z", "body": 1},
    ] == batch.jobs


def test_a_line_without_end_is_refused_before_it_fills_the_memory(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_stream, "LINE_MAX_BYTES", 300_000)
    lines = pipe.lines(b'1\n"' + b"x" * 350_000 + b'"\n2\n')

    batch = lines.batch()
    assert batch is not None
    assert [1] == batch.lines
    with pytest.raises(BadLine, match="line 2: longer than 300000 bytes"):
        lines.batch()

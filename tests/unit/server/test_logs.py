"""Log lines: one per record, for people or for machines."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from deferd.server import logs
from deferd.server.logs import LogWriter


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def logged(capfd: pytest.CaptureFixture[str], form: Literal["console", "json"], text: str) -> str:
    logs.configure(form, "info")
    logger = logging.getLogger("deferd.test")
    logger.debug("not this")
    try:
        os.environ["DEFERD_NO_SUCH"]
    except KeyError:
        logger.exception("said %s", text, extra={"topic": "t"})
    return written(capfd)


def written(capfd: pytest.CaptureFixture[str]) -> str:
    logging.getLogger().handlers[0].flush()
    return capfd.readouterr().err


def test_a_console_line_has_time_level_and_logger(capfd: pytest.CaptureFixture[str]) -> None:
    first, *trace = logged(capfd, "console", "this").splitlines()

    time, level, rest = first.split(maxsplit=2)
    assert time.endswith("Z")
    assert len(time) == len("2030-01-31T09:30:00.000Z")
    assert (level, rest) == ("ERROR", "deferd.test: said this")
    assert trace[-1] == "KeyError: 'DEFERD_NO_SUCH'"


def test_a_message_cannot_fake_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    first = logged(capfd, "console", "a\n2030 b").splitlines()[0]

    assert first.endswith(r"said a\n2030 b")


@pytest.mark.parametrize("code", ["\x1b[2J", "\x07", "\x9b2J", "\x7f", "\r", "\x0b", "\x85", "\u2028", "\t"])
def test_a_message_cannot_control_the_terminal(capfd: pytest.CaptureFixture[str], code: str) -> None:
    first, _, trace = logged(capfd, "console", f"a{code}b").partition("\n")

    assert first.endswith("said a" + repr(code)[1:-1] + "b")
    assert trace.startswith("Traceback (most recent call last):\n  File")


def test_the_text_of_an_exception_cannot_control_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    logs.configure("console", "info")
    logging.getLogger("deferd.test").error("failed", exc_info=ValueError("a\x1b[2Jb"))

    assert written(capfd).endswith("ValueError: a\\x1b[2Jb\n")


def test_a_json_line_has_the_same_as_fields(capfd: pytest.CaptureFixture[str]) -> None:
    [line] = logged(capfd, "json", "a\nb").splitlines()

    fields = json.loads(line)
    assert fields.pop("exception").endswith("KeyError: 'DEFERD_NO_SUCH'")
    assert fields.pop("time").endswith("Z")
    assert fields.pop("pid") > 0
    assert fields == {"level": "error", "logger": "deferd.test", "message": "said a\nb", "topic": "t"}


LINE = "x" * 1000
NO_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def log(writer: LogWriter, first: int, last: int) -> None:
    for number in range(first, last):
        writer.handle(logging.makeLogRecord({"msg": f"{number} {LINE}"}))


def test_records_that_nobody_reads_wait_and_then_are_dropped_and_counted() -> None:
    with pipe() as (reader, writer_end):
        writer = LogWriter(writer_end, waiting_max_bytes=100_000)
        log(writer, 0, 1000)  # 1 MB: more than the pipe and the queue hold
        writer.flush()  # nobody reads yet: it gives up
        first, notices = read_lines(reader, 0, 1000)
        log(writer, 1000, 1010)
        read_lines(reader, 1000, 1010)
    assert first < 1000
    assert 1 <= notices < 10


def read_lines(reader: int, reached: int, until: int) -> tuple[int, int]:
    """Read lines with these numbers, or how many were dropped in their place; how many lines and notices there were."""
    lines = notices = 0
    rest = b""
    while reached < until:
        *whole, rest = (rest + os.read(reader, 65536)).split(b"\n")
        for line in whole:
            dropped = re.fullmatch(rb"(\d+) log lines? (?:was|were) dropped: nobody read standard error", line)
            assert dropped is not None or int(line.split()[0]) == reached
            reached += 1 if dropped is None else int(dropped[1])
            notices += dropped is not None
            lines += dropped is None
    assert (reached, rest) == (until, b"")
    return lines, notices


def test_a_record_larger_than_the_queue_is_written_when_nothing_waits() -> None:
    with pipe() as (reader, writer_end):
        writer = LogWriter(writer_end, waiting_max_bytes=10)
        log(writer, 0, 1)
        assert os.read(reader, 65536).decode() == f"0 {LINE}\n"


@NO_DEVICE
def test_records_that_cannot_be_written_are_counted_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_S", 10.0)  # the machine may be busy
    descriptor = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(descriptor)
    log(writer, 0, 3)
    writer.flush()
    log(writer, 3, 4)
    writer.flush()
    with pipe() as (reader, writer_end):
        os.dup2(writer_end, descriptor)
        log(writer, 4, 5)
        writer.flush()
        lines = os.read(reader, 65536).decode().splitlines()
    os.close(descriptor)
    assert lines == ["4 log lines were dropped: No space left on device", f"4 {LINE}"]


def test_a_descriptor_that_another_process_has_made_non_blocking_gets_whole_lines() -> None:
    with pipe() as (reader, writer_end):
        os.set_blocking(writer_end, False)
        writer = LogWriter(writer_end)
        log(writer, 0, 200)
        received = b""
        while received.count(b"\n") < 200:
            received += os.read(reader, 3000)
    assert [int(line.split()[0]) for line in received.splitlines()] == [*range(200)]


def test_a_finalizer_that_logs_within_a_log_call_does_not_hang_it() -> None:
    class Loud(LogWriter):
        def _add(self, line: Any) -> None:
            super()._add(line)
            if line.content == b"outer\n":  # as when the collector runs here
                self.handle(logging.makeLogRecord({"msg": "inner"}))

    with pipe() as (reader, writer_end):
        Loud(writer_end).handle(logging.makeLogRecord({"msg": "outer"}))
        received = b""
        while received != b"outer\ninner\n":
            received += os.read(reader, 100)


def test_the_lines_of_a_forked_process_and_those_at_a_crash_are_written() -> None:
    script = (
        "import logging, os; from deferd.server import logs; logs.configure('console', 'info');"
        "log = logging.getLogger('deferd'); log.info('before');"
        "pid = os.fork();"
        "pid or (log.info('in the child'), os._exit(0));"
        "os.waitpid(pid, 0); log.info('last'); raise SystemError('the crash')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], stderr=subprocess.PIPE, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert all(done.stderr.count(text) == 1 for text in (": before\n", ": in the child\n", ": last\n")), done.stderr
    # Python writes a traceback in several parts, and the thread that writes the lines may come in between.
    assert "SystemError: the crash" in re.sub(r"[0-9TZ:.-]+ INFO +deferd: [a-z ]+\n", "", done.stderr)

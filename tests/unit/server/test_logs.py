"""Log lines: one per record, for people or for machines."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import Literal

import pytest

from deferd.server import logs


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
